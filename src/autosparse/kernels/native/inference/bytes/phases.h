// Strides in the narrow engines: rows of bytes or of bfloat16 taken apart; and the largest of a window.
#pragma once

#include "../phases.h"
#include "../worker.h"
#include "interface.h"

// Loaded n bytes before the middle, the first n bytes are 255.
struct FirstBytes {
    uint8_t at[2 * kChunkPixels] = {};
    constexpr FirstBytes() {
        for (int64_t i = 0; i < kChunkPixels; ++i) {
            at[i] = 255;
        }
    }
};
constexpr FirstBytes kFirstBytes;

template <class Simd>
struct NarrowRows {
    using Vector = typename Simd::Split;
    using Number = typename Vector::Number;

    // A vector reaches into the next row, which is written after it.
    template <bool kOdd>
    static void take_alternate(const Number* from, int64_t from_stride, const PhaseRows<Number>& phase, Number* to) {
        const int64_t rest = (phase.cols - 1) % Vector::pixels + 1, last = phase.cols - rest;
        const auto mask = Vector::mask(kFirstBytes.at + kChunkPixels - rest);
        const auto outside = Vector::filled(phase.outside);
        // locals: stores of bytes may change whatever lies in memory
        const int64_t rows = phase.rows, to_stride = phase.row_pixels;
        const Number* end = to + phase.room;
        for (int64_t row = 0; row < rows; ++row, from += from_stride, to += to_stride) {
            for (int64_t col = 0; col < last; col += Vector::pixels) {
                Vector::store(to + col, Simd::Wide::template alternate<kOdd>(from + 2 * col));
            }
            const auto pixels = Simd::Wide::template alternate<kOdd>(from + 2 * last);
            if (to + last + Vector::pixels <= end) {
                Vector::store(to + last, Vector::select(mask, pixels, outside));
            } else {
                Vector::store_first(to + last, pixels, rest);
            }
        }
    }
};

// Channel by channel through scratch, where the least of all numbers lies around the pixels.
template <class Simd>
void run_largest(const ByteOp& op, const Worker& worker) {
    using Chunk = typename Simd::Rest;
    using Number = typename Chunk::Number;
    const Planes &in = *op.input, &out = *op.output;
    Number* scratch = reinterpret_cast<Number*>(worker.scratch);
    for (int64_t i = 0; i < op.phase_planes * out.plane_pixels + 2 * out.lead_pixels; ++i) {
        scratch[i] = Chunk::least;
    }
    Number* phases = scratch + out.lead_pixels;
    const auto around = Chunk::filled(static_cast<Number>(out.zero_point));
    worker.share(in.channels, [&](int64_t channel) {
        split_channel<NarrowRows<Simd>>(op, Chunk::least, worker.planes<const Number>(in) + channel * in.plane_pixels,
                                        out.plane_pixels, phases);
        Number* to = worker.planes<Number>(out) + channel * out.plane_pixels;
        for (int64_t chunk = 0; chunk < out.vectors; ++chunk) {
            const Number* from = phases + chunk * kChunkPixels;
            auto largest = Chunk::ordered(Chunk::load(from + op.tap_offsets[0]));
            for (int64_t tap = 1; tap < op.taps; ++tap) {
                largest = Chunk::largest(largest, Chunk::ordered(Chunk::load(from + op.tap_offsets[tap])));
            }
            const auto valid = Chunk::mask(static_cast<const uint8_t*>(out.valid) + chunk * kChunkPixels);
            Chunk::store(to + chunk * kChunkPixels, Chunk::select(valid, Chunk::ordered(largest), around));
        }
    });
}
