// Programs of the bfloat16 engine. They are those of the eight-bit engine with two bytes per pixel; zero points are 0, and
// scales of tensors 1.
#pragma once

#include <cstring>

#include "../bytes/program.h"
#include "vectors.h"

static inline float half_to_float(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Into the engine and out of it.
struct HalfEnds {
    static void load(const ByteOp& op, const Worker& worker, const float* from) {
        const Planes& out = *op.output;
        for_each_row<uint16_t>(out, worker, [&](uint16_t* inside, int64_t outside) {
            for (int64_t col = 0; col < out.cols; col += 16) {
                HalfVectors::store_floats(from + outside + col, out.cols - col, inside + col);
            }
        });
    }
    static void store(const ByteOp& op, const Worker& worker, float* to) {
        const Planes& in = *op.input;
        for_each_row<uint16_t>(in, worker, [&](const uint16_t* inside, int64_t outside) {
            for (int64_t col = 0; col < in.cols; ++col) {
                to[outside + col] = half_to_float(inside[col]);
            }
        });
    }
    static void mean(const ByteOp& op, const Worker& worker, float* to) {
        const Planes& in = *op.input;
        const float scale = 1.0f / static_cast<float>(in.rows * in.cols);
        for_each_plane<const uint16_t>(in, worker, [&](const uint16_t* from, int64_t outside) {
            __m512 sums = _mm512_setzero_ps();
            for (int64_t row = 0; row < in.rows; ++row, from += in.row_pixels) {
                for (int64_t col = 0; col < in.cols; col += 16) {
                    sums = HalfVectors::add_first(sums, from + col, HalfVectors::first_of(in.cols - col));
                }
            }
            to[outside] = _mm512_reduce_add_ps(sums) * scale;
        });
    }
};

template <class Simd>
constexpr ByteTable make_half_table() {
    return {{Simd::chunks[0], Simd::chunks[1], Simd::chunks[2]}, run_narrow_program<Simd, HalfEnds>, nullptr, nullptr, nullptr};
}
