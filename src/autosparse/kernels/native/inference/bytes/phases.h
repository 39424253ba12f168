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

// count pixels from every step-th one.
template <class Simd>
void take_every_byte(const uint8_t* from, int64_t step, int64_t count, uint8_t* to) {
    if (step == 1) {
        std::memcpy(to, from, count);
        return;
    }
    int64_t i = 0;
    if (step == 2) {
        for (; i + kPairsOfBytes / 2 <= count; i += kPairsOfBytes / 2) {
            Simd::Wide::store_even(from + 2 * i, to + i);
        }
        if (i < count) {
            Simd::Wide::store_first_even(from + 2 * i, to + i, count - i);
        }
        return;
    }
    for (; i < count; ++i) {
        to[i] = from[i * step];
    }
}

// One channel's phases; phase p begins at to + phases[p] * phase_bytes and lies on the grid of `grid`.
template <class Simd>
void split_channel_bytes(const ByteOp& op, const BytePlanes& in, const BytePlanes& grid, const uint8_t* from,
                         int64_t phase_bytes, uint8_t* to) {
    for (int64_t phase = 0; phase < op.step * op.step; ++phase) {
        if (op.phases[phase] < 0) {
            continue;
        }
        const int64_t top = phase / op.step, left = phase % op.step;
        const int64_t rows = divide_up(in.rows - top, op.step), cols = divide_up(in.cols - left, op.step);
        uint8_t* plane = to + op.phases[phase] * phase_bytes;
        for (int64_t image = 0; image < in.images; ++image) {
            for (int64_t row = 0; row < rows; ++row) {
                take_every_byte<Simd>(from + image * in.image_bytes + (row * op.step + top) * in.row_bytes + left, op.step, cols,
                                plane + image * grid.image_bytes + row * grid.row_bytes);
            }
        }
    }
}

template <class Simd>
void split_bytes(const ByteOp& op, const Worker& worker) {
    const BytePlanes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        split_channel_bytes<Simd>(op, in, out, bytes_of(worker, in) + channel * in.plane_bytes, in.channels * out.plane_bytes,
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
        split_channel_bytes<Simd>(op, in, out, bytes_of(worker, in) + channel * in.plane_bytes, out.plane_bytes,
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
