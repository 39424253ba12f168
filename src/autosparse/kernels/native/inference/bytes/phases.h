// Strides on planes of bytes: a plane taken apart into planes of every step-th pixel; and the largest of a window.
#pragma once

#include <cstring>

#include "../interface.h"
#include "../worker.h"
#include "common/arithmetic.h"
#include "interface.h"
#include "planes.h"

// Bytes that are taken apart at once, and that a row may be read beyond its end.
constexpr int64_t kPairsOfBytes = 64;

// Loaded n bytes before the middle, the first n bytes are 255.
struct FirstBytes {
    uint8_t at[kPairsOfBytes] = {};
    constexpr FirstBytes() {
        for (int64_t i = 0; i < kPairsOfBytes / 2; ++i) {
            at[i] = 255;
        }
    }
};
constexpr FirstBytes kFirstBytes;

// Rows of one phase: pixels of a row, and how many bytes may be written from the first one on.
struct PhaseRows {
    int64_t rows, cols, row_bytes, room;
    uint8_t outside;                           // what lies between the rows
};

// The even or the odd bytes of rows. A vector reaches into the next row, which is written after it.
template <class Simd, bool kOdd>
void take_alternate_bytes(const uint8_t* from, int64_t from_stride, const PhaseRows& phase, uint8_t* to) {
    using Half = typename Simd::Rest;  // of a chunk
    static_assert(Half::pixels == kPairsOfBytes / 2);
    const int64_t rest = (phase.cols - 1) % Half::pixels + 1, last = phase.cols - rest;
    const auto mask = Half::load(kFirstBytes.at + Half::pixels - rest), outside = Half::splat_byte(phase.outside);
    // locals: stores of bytes may change whatever lies in memory
    const int64_t rows = phase.rows, to_stride = phase.row_bytes;
    const uint8_t* end = to + phase.room;
    for (int64_t row = 0; row < rows; ++row, from += from_stride, to += to_stride) {
        for (int64_t col = 0; col < last; col += Half::pixels) {
            Half::store(to + col, Simd::Wide::template alternate<kOdd>(from + 2 * col));
        }
        const auto bytes = Simd::Wide::template alternate<kOdd>(from + 2 * last);
        if (to + last + Half::pixels <= end) {
            Half::store(to + last, Half::select(mask, bytes, outside));
        } else {
            Half::store_first(to + last, bytes, rest);
        }
    }
}

static inline void take_every_byte(const uint8_t* from, int64_t from_stride, int64_t step, const PhaseRows& phase, uint8_t* to) {
    for (int64_t row = 0; row < phase.rows; ++row, from += from_stride, to += phase.row_bytes) {
        if (step == 1) {
            std::memcpy(to, from, phase.cols);
            continue;
        }
        for (int64_t col = 0; col < phase.cols; ++col) {
            to[col] = from[col * step];
        }
    }
}

// One channel's phases, `outside` between their pixels; phase p begins at to + phases[p] * phase_bytes and lies on the grid of `grid`.
// A known step spares divisions.
template <class Simd, int64_t kStep>
void split_channel_by(const ByteOp& op, const BytePlanes& in, const BytePlanes& grid, uint8_t outside, const uint8_t* from,
                      int64_t phase_bytes, uint8_t* to) {
    const int64_t step = kStep ? kStep : op.step, stride = step * in.row_bytes;
    for (int64_t phase = 0; phase < step * step; ++phase) {
        const int64_t top = phase / step, left = phase % step;
        const PhaseRows rows = {divide_up(in.rows - top, step), divide_up(in.cols - left, step), grid.row_bytes, grid.image_bytes,
                                outside};
        if (op.phases[phase] < 0 || rows.cols < 1) {
            continue;
        }
        for (int64_t image = 0; image < in.images; ++image) {
            const uint8_t* source = from + image * in.image_bytes + top * in.row_bytes;
            uint8_t* target = to + op.phases[phase] * phase_bytes + image * grid.image_bytes;
            if (step == 2 && left == 0) {
                take_alternate_bytes<Simd, false>(source, stride, rows, target);
            } else if (step == 2) {
                take_alternate_bytes<Simd, true>(source, stride, rows, target);
            } else {
                take_every_byte(source + left, stride, step, rows, target);
            }
        }
    }
}

template <class Simd>
void split_channel_bytes(const ByteOp& op, const BytePlanes& in, const BytePlanes& grid, uint8_t outside, const uint8_t* from,
                         int64_t phase_bytes, uint8_t* to) {
    const auto split = op.step == 2 ? split_channel_by<Simd, 2> : split_channel_by<Simd, 0>;
    split(op, in, grid, outside, from, phase_bytes, to);
}

template <class Simd>
void split_bytes(const ByteOp& op, const Worker& worker) {
    const BytePlanes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        split_channel_bytes<Simd>(op, in, out, static_cast<uint8_t>(out.zero_point),
                                  bytes_of(worker, in) + channel * in.plane_bytes, in.channels * out.plane_bytes,
                                  bytes_of(worker, out) + channel * out.plane_bytes);
    });
}

// Channel by channel through scratch, where zeros lie around the pixels: nothing is smaller.
template <class Simd>
void largest_bytes(const ByteOp& op, const Worker& worker) {
    const BytePlanes &in = *op.input, &out = *op.output;
    uint8_t* scratch = reinterpret_cast<uint8_t*>(worker.scratch);
    std::memset(scratch, 0, op.phase_planes * out.plane_bytes + 2 * op.lead_bytes);
    const uint8_t* input = scratch + op.lead_bytes;
    using Vector = typename Simd::Rest;  // of a chunk
    const auto around = Vector::splat_byte(static_cast<uint8_t>(out.zero_point));
    worker.share(in.channels, [&](int64_t channel) {
        split_channel_bytes<Simd>(op, in, out, 0, bytes_of(worker, in) + channel * in.plane_bytes, out.plane_bytes,
                                  scratch + op.lead_bytes);
        uint8_t* to = bytes_of(worker, out) + channel * out.plane_bytes;
        for (int64_t chunk = 0; chunk < out.chunks; ++chunk) {
            const uint8_t* from = input + chunk * kChunkPixels;
            auto largest = Vector::load(from + op.tap_offsets[0]);
            for (int64_t tap = 1; tap < op.taps; ++tap) {
                largest = Vector::largest(largest, Vector::load(from + op.tap_offsets[tap]));
            }
            const auto valid = Vector::load(out.valid + chunk * kChunkPixels);
            Vector::store(to + chunk * kChunkPixels, Vector::select(valid, largest, around));
        }
    });
}
