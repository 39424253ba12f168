// Operations on planes of bytes: in and out of the engine, products, and means.
#pragma once

#include <cstring>

#include "../interface.h"
#include "../worker.h"
#include "common/arithmetic.h"
#include "interface.h"
#include "quads.h"

// With at least this many tiles for every thread, whole tiles are dealt out; else the output channels are shared too.
constexpr int64_t kManyByteTiles = 4;

static inline uint8_t* bytes_of(const Worker& worker, const BytePlanes& planes) {
    return planes.first + worker.shift * static_cast<int64_t>(sizeof(float));
}

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

// Calls visit(pixels inside, pixels outside) for every row of this worker's share of images and channels.
template <class Visit>
void for_each_byte_row(const BytePlanes& planes, const Worker& worker, const Visit& visit) {
    worker.share(worker.images * planes.channels, [&](int64_t item) {
        const int64_t image = item / planes.channels, channel = item % planes.channels;
        uint8_t* inside = bytes_of(worker, planes) + channel * planes.plane_bytes + image * planes.image_bytes;
        const int64_t outside = ((worker.first_image + image) * planes.channels + channel) * planes.rows * planes.cols;
        for (int64_t row = 0; row < planes.rows; ++row) {
            visit(inside + row * planes.row_bytes, outside + row * planes.cols);
        }
    });
}

template <class Simd>
void load_bytes(const ByteOp& op, const Worker& worker, const float* from) {
    const BytePlanes& out = *op.output;
    const float inverse = 1.0f / out.scale, zero = static_cast<float>(out.zero_point);
    for_each_byte_row(out, worker, [&](uint8_t* inside, int64_t outside) {
        quantize_row<Simd>(from + outside, out.cols, inverse, zero, inside);
    });
}

template <class Simd>
void store_bytes(const ByteOp& op, const Worker& worker, float* to) {
    const BytePlanes& in = *op.input;
    const int32_t zero = static_cast<int32_t>(in.zero_point);
    for_each_byte_row(in, worker, [&](const uint8_t* inside, int64_t outside) {
        for (int64_t col = 0; col < in.cols; ++col) {
            to[outside + col] = static_cast<float>(inside[col] - zero) * in.scale;
        }
    });
}

// The sum of the bytes of a plane with one image.
template <class Simd>
int64_t sum_of_plane(const BytePlanes& planes, const uint8_t* from) {
    using Vector = typename Simd::Rest;  // of a chunk
    typename Vector::Int sums = Vector::splat_byte(0);
    for (int64_t chunk = 0; chunk < planes.chunks; ++chunk) {
        const auto valid = Vector::load(planes.valid + chunk * kChunkPixels);
        Vector::dot_row(sums, Vector::both(Vector::load(from + chunk * kChunkPixels), valid), Vector::splat_byte(1));
    }
    return Vector::sum(sums);
}

template <class Simd>
void mean_bytes(const ByteOp& op, const Worker& worker, float* to) {
    const BytePlanes& in = *op.input;
    const int64_t pixels = in.rows * in.cols;
    const float scale = in.scale / static_cast<float>(pixels);
    worker.share(worker.images * in.channels, [&](int64_t item) {
        const int64_t image = item / in.channels, channel = item % in.channels;
        const uint8_t* from = bytes_of(worker, in) + channel * in.plane_bytes + image * in.image_bytes;
        int64_t sum = -in.zero_point * pixels + (in.images == 1 ? sum_of_plane<Simd>(in, from) : 0);
        for (int64_t row = 0; row < in.rows && in.images > 1; ++row, from += in.row_bytes) {
            int32_t of_row = 0;
            for (int64_t col = 0; col < in.cols; ++col) {
                of_row += from[col];
            }
            sum += of_row;
        }
        to[(worker.first_image + image) * in.channels + channel] = static_cast<float>(sum) * scale;
    });
}

// Tiles of pixels, for each all rows.
template <class Simd>
void run_quads(const ByteOp& op, const Worker& worker) {
    const BytePlanes& out = *op.output;
    const int64_t tiles = divide_up(out.chunks, op.tile_chunks), blocks = blocks_of(op.weights);
    const int64_t parts = tiles % worker.count == 0 || tiles >= kManyByteTiles * worker.count ? 1 : worker.count;
    worker.share(tiles * parts, [&](int64_t item) {
        const int64_t tile = item / parts, part = item % parts, first = tile * op.tile_chunks;
        const int64_t chunks = smaller(op.tile_chunks, out.chunks - first), at = first * kChunkPixels;
        const ByteSink<Simd> sink = {bytes_of(worker, out) + op.first_channel * out.plane_bytes + at,
                                     out.plane_bytes,
                                     op.other ? bytes_of(worker, *op.other) + at : nullptr,
                                     op.other ? op.other->plane_bytes : 0,
                                     op.other_scale,
                                     out.valid + at,
                                     static_cast<uint8_t>(out.zero_point)};
        QuadKernels<Simd, ByteSink<Simd>>::of(op.weights.block, chunks)(
            op.weights, share_begin(blocks, parts, part), share_begin(blocks, parts, part + 1),
            bytes_of(worker, *op.input) + at, sink);
    });
}
