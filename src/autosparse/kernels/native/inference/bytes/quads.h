// The inner loop of the eight-bit engine: blocks of output channels times a tile of pixels.
//
// For a vector of pixels a quad costs four loads, eight unpacks that bring its four inputs together, and four dot products for
// every row of the block, whatever the pattern of the non-zeros.
#pragma once

#include <utility>

#include "interface.h"

// How far ahead quads are brought into the cache.
constexpr int64_t kQuadBytesAhead = 1024;

// Results as bytes in planes.
template <class Simd>
struct ByteSink {
    uint8_t* output;                           // row 0, first pixel of the tile
    int64_t stride;
    const uint8_t* other;                      // same layout as the output; may be null
    int64_t other_stride;
    float other_scale;
    const uint8_t* valid;                      // at the tile's first pixel
    uint8_t outside;

    template <class Vector>
    void put(const typename Vector::Four& sums, const QuadRows& weights, int64_t row, int64_t pixel) const {
        Vector::finish(sums, weights.scale[row], weights.bias[row], other ? other + row * other_stride + pixel : nullptr,
                       other_scale, valid + pixel, outside, output + row * stride + pixel);
    }
};

// Results as floats, a row of the tile after the other, in the order of the vectors' parts.
template <class Simd>
struct FloatSink {
    float* output;                             // of row `first`
    int64_t stride, first;

    template <class Vector>
    void put(const typename Vector::Four& sums, const QuadRows& weights, int64_t row, int64_t pixel) const {
        Vector::finish_floats(sums, weights.scale[row], weights.bias[row], output + (row - first) * stride + pixel);
    }
};

// The quads of one block for as many vectors as stay in registers.
template <class Vector, int kRows, int kVectors>
struct BlockSums {
    typename Vector::Four sums[kVectors][kRows];

    BlockSums() {
        for (auto& vector : sums) {
            for (auto& row : vector) {
                row = Vector::zeros();
            }
        }
    }
    inline __attribute__((always_inline)) void add(const Quad<kRows>& quad, const uint8_t* input) {
        typename Vector::Weight weights[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
            weights[r] = Vector::weight(quad.weight[r]);
        }
        const uint8_t *a = input + quad.offset[0], *b = input + quad.offset[1];
        const uint8_t *c = input + quad.offset[2], *d = input + quad.offset[3];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
            const int at = v * Vector::pixels;
            const auto x = Vector::gather(a + at, b + at, c + at, d + at);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                Vector::dot(sums[v][r], x, weights[r]);
            }
        }
    }
    inline __attribute__((always_inline)) void add(const BlockSums& more) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                Vector::add_to(sums[v][r], more.sums[v][r]);
            }
        }
    }
    template <class Sink>
    void put(const Sink& sink, const QuadRows& weights, int64_t row, int64_t pixel) const {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
            if (kRows == 1 || row + r < weights.rows) {
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v) {
                    sink.template put<Vector>(sums[v][r], weights, row + r, pixel + v * Vector::pixels);
                }
            }
        }
    }
};

template <class Vector, int kRows>
struct BlockSums<Vector, kRows, 0> {
    void add(const Quad<kRows>&, const uint8_t*) {}
    template <class Sink>
    void put(const Sink&, const QuadRows&, int64_t, int64_t) const {}
};

// Blocks [begin, end) for a tile of kChunks.
template <class Simd, class Sink, int kRows, int kChunks>
void quad_rows(const QuadRows& weights, int64_t begin, int64_t end, const uint8_t* input, const Sink& sink) {
    using Wide = typename Simd::Wide;
    using Rest = typename Simd::Rest;
    constexpr int kPixels = kChunks * kChunkPixels, kVectors = kPixels / Wide::pixels, kWidePixels = kVectors * Wide::pixels;
    constexpr int kRests = (kPixels - kWidePixels) / Rest::pixels;
    const auto* quads = static_cast<const Quad<kRows>*>(weights.quads);
    for (int64_t block = begin; block < end; ++block) {
        BlockSums<Wide, kRows, kVectors> wide;
        BlockSums<Rest, kRows, kRests> rest;
        const Quad<kRows>* last = quads + weights.starts[block + 1];
        const Quad<kRows>* quad = quads + weights.starts[block];
        // one vector alone would wait for its own sums
        if constexpr (kRows == 1 && kVectors == 1 && kRests == 0) {
            BlockSums<Wide, kRows, kVectors> second;
            for (; quad + 1 < last; quad += 2) {
                __builtin_prefetch(reinterpret_cast<const char*>(quad) + kQuadBytesAhead);
                wide.add(quad[0], input);
                second.add(quad[1], input);
            }
            wide.add(second);
        }
        for (; quad < last; ++quad) {
            __builtin_prefetch(reinterpret_cast<const char*>(quad) + kQuadBytesAhead);
            wide.add(*quad, input);
            rest.add(*quad, input + kWidePixels);
        }
        wide.put(sink, weights, block * kRows, 0);
        rest.put(sink, weights, block * kRows, kWidePixels);
    }
}

// The instances by rows of a block and chunks of a tile.
template <class Simd, class Sink>
class QuadKernels {
public:
    using Kernel = decltype(&quad_rows<Simd, Sink, 1, 1>);

    static Kernel of(int64_t block, int64_t chunks) {
        return block == 1 ? kOne[chunks - 1] : block == 2 ? kTwo[chunks - 1] : kFour[chunks - 1];
    }

private:
    template <int kRows, int... kIndices>
    struct Table {
        static constexpr Kernel kernels[] = {&quad_rows<Simd, Sink, kRows, kIndices + 1>...};
    };
    template <int kRows, int... kIndices>
    static constexpr const Kernel* table(std::integer_sequence<int, kIndices...>) {
        return Table<kRows, kIndices...>::kernels;
    }
    static constexpr const Kernel* kOne = table<1>(std::make_integer_sequence<int, Simd::chunks[0]>());
    static constexpr const Kernel* kTwo = table<2>(std::make_integer_sequence<int, Simd::chunks[1]>());
    static constexpr const Kernel* kFour = table<4>(std::make_integer_sequence<int, Simd::chunks[2]>());
};

// A kernel for any number of chunks: as many at a time as stay in registers.
static inline int64_t blocks_of(const QuadRows& weights) { return (weights.rows + weights.block - 1) / weights.block; }
