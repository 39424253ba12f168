// Operations on planes of bytes: in and out of the engine, products, and means.
#pragma once

#include <cstring>

#include "../planes.h"
#include "../worker.h"
#include "common/arithmetic.h"
#include "interface.h"
#include "quads.h"

// Floats as bytes: rounded to the nearest, halves to even; what is not a number becomes 0.
template <class Simd>
void quantize_row(const float* from, int64_t count, float inverse_scale, float zero_point, uint8_t* to) {
    using Wide = typename Simd::Wide;
    int64_t i = 0;
    for (; i + Wide::quantized <= count; i += Wide::quantized) {
        Wide::quantize(from + i, inverse_scale, zero_point, to + i);
    }
    if (i < count) {
        float rest[Wide::quantized] = {};
        uint8_t bytes[Wide::quantized];
        std::memcpy(rest, from + i, (count - i) * sizeof(float));
        Wide::quantize(rest, inverse_scale, zero_point, bytes);
        std::memcpy(to + i, bytes, count - i);
    }
}

// The sum of the bytes of a plane with one image.
template <class Simd>
int64_t sum_of_plane(const Planes& planes, const uint8_t* from) {
    using Vector = typename Simd::Rest;  // of a chunk
    typename Vector::Int sums = Vector::filled(0);
    const auto* valid = static_cast<const uint8_t*>(planes.valid);
    for (int64_t chunk = 0; chunk < planes.vectors; ++chunk) {
        const int64_t at = chunk * kChunkPixels;
        Vector::dot_row(sums, Vector::both(Vector::load(from + at), Vector::load(valid + at)), Vector::filled(1));
    }
    return Vector::sum(sums);
}

// Into the eight-bit engine and out of it.
template <class Simd>
struct ByteEnds {
    static void load(const ByteOp& op, const Worker& worker, const float* from) {
        const Planes& out = *op.output;
        const float inverse = 1.0f / out.scale, zero = static_cast<float>(out.zero_point);
        for_each_row<uint8_t>(out, worker, [&](uint8_t* inside, int64_t outside) {
            quantize_row<Simd>(from + outside, out.cols, inverse, zero, inside);
        });
    }
    static void store(const ByteOp& op, const Worker& worker, float* to) {
        const Planes& in = *op.input;
        const int32_t zero = static_cast<int32_t>(in.zero_point);
        for_each_row<uint8_t>(in, worker, [&](const uint8_t* inside, int64_t outside) {
            for (int64_t col = 0; col < in.cols; ++col) {
                to[outside + col] = static_cast<float>(inside[col] - zero) * in.scale;
            }
        });
    }
    static void mean(const ByteOp& op, const Worker& worker, float* to) {
        const Planes& in = *op.input;
        const int64_t pixels = in.rows * in.cols;
        const float scale = in.scale / static_cast<float>(pixels);
        for_each_plane<const uint8_t>(in, worker, [&](const uint8_t* from, int64_t outside) {
            int64_t sum = -in.zero_point * pixels + (in.images == 1 ? sum_of_plane<Simd>(in, from) : 0);
            for (int64_t row = 0; row < in.rows && in.images > 1; ++row, from += in.row_pixels) {
                int32_t of_row = 0;
                for (int64_t col = 0; col < in.cols; ++col) {
                    of_row += from[col];
                }
                sum += of_row;
            }
            to[outside] = static_cast<float>(sum) * scale;
        });
    }
};

// Tiles of pixels, for each all rows.
template <class Simd>
void run_quads(const ByteOp& op, const Worker& worker) {
    using Number = typename Simd::Wide::Number;
    const Planes& out = *op.output;
    const int64_t tiles = divide_up(out.vectors, op.tile_vectors), blocks = blocks_of(op.weights);
    const int64_t parts = parts_of(tiles, worker.count);
    worker.share(tiles * parts, [&](int64_t item) {
        const int64_t tile = item / parts, part = item % parts, first = tile * op.tile_vectors;
        const int64_t chunks = smaller(op.tile_vectors, out.vectors - first), at = first * kChunkPixels;
        const PlaneSink<Simd> sink = {op,
                                      worker.planes<Number>(out) + op.first_channel * out.plane_pixels + at,
                                      out.plane_pixels,
                                      op.other ? worker.planes<Number>(*op.other) + at : nullptr,
                                      op.other ? op.other->plane_pixels : 0,
                                      static_cast<const uint8_t*>(out.valid) + at};
        QuadKernels<Simd, PlaneSink<Simd>>::of(op.weights.block, chunks)(
            op.weights, share_begin(blocks, parts, part), share_begin(blocks, parts, part + 1),
            worker.planes<Number>(*op.input) + at, sink);
    });
}
