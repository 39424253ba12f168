// The inner loop of the narrow engines: blocks of output channels times a tile of pixels, any four non-zeros of a row at a time
// (a quad of bytes) or any two (a pair of bfloat16).
//
// For a vector of pixels a quad costs four loads, eight unpacks that bring its four inputs together, and four dot products for
// every row of the block, whatever the pattern of the non-zeros.
#pragma once

#include <utility>

#include "interface.h"

// How far ahead quads are brought into the cache.
constexpr int64_t kQuadBytesAhead = 1024;

// Results in planes.
template <class Simd>
struct PlaneSink {
    using Number = typename Simd::Wide::Number;
    const ByteOp& op;
    Number* output;                            // row 0, first pixel of the tile
    int64_t stride;
    const Number* other;                       // the same of what is added; may be null
    int64_t other_stride;
    const uint8_t* valid;                      // at the tile's first pixel

    // In registers for all vectors of a row: what is stored could change the same in memory.
    struct Row {
        const ByteOp& op;
        Number* output;
        const Number* other;
        const uint8_t* valid;
        float scale, bias;

        template <class Vector>
        void put(const typename Vector::Sums& sums, int64_t pixel) const {
            Vector::finish(sums, scale, bias, other ? other + pixel : nullptr, op, valid + pixel, output + pixel);
        }
    };
    Row row(const QuadRows& weights, int64_t row) const {
        return {op, output + row * stride, other ? other + row * other_stride : nullptr, valid, weights.scale[row], weights.bias[row]};
    }
};

// Results as floats, a row of the tile after the other, in the order of the vectors' parts.
template <class Simd>
struct FloatSink {
    float* output;                             // of row `first`
    int64_t stride, first;

    struct Row {
        float* output;
        float scale, bias;

        template <class Vector>
        void put(const typename Vector::Sums& sums, int64_t pixel) const {
            Vector::finish_floats(sums, scale, bias, output + pixel);
        }
    };
    Row row(const QuadRows& weights, int64_t row) const {
        return {output + (row - first) * stride, weights.scale[row], weights.bias[row]};
    }
};

// The quads of one block for as many vectors as stay in registers.
template <class Vector, int kRows, int kVectors>
struct BlockSums {
    using Number = typename Vector::Number;
    typename Vector::Sums sums[kVectors][kRows];

    BlockSums() {
        for (auto& vector : sums) {
            for (auto& row : vector) {
                row = Vector::zeros();
            }
        }
    }
    inline __attribute__((always_inline)) void add(const typename Vector::template Group<kRows>& quad, const Number* input) {
        typename Vector::Weight weights[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
            weights[r] = Vector::weight(quad.weight[r]);
        }
        const auto from = Vector::places(input, quad.offset);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
            const auto x = Vector::gather(from, v * Vector::pixels);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                Vector::dot(sums[v][r], x, weights[r]);
            }
        }
    }
    inline __attribute__((always_inline)) void add(const BlockSums& more) {
#pragma GCC unroll 16
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
                const auto to = sink.row(weights, row + r);
#pragma GCC unroll 16
                for (int v = 0; v < kVectors; ++v) {
                    to.template put<Vector>(sums[v][r], pixel + v * Vector::pixels);
                }
            }
        }
    }
};

template <class Vector, int kRows>
struct BlockSums<Vector, kRows, 0> {
    void add(const typename Vector::template Group<kRows>&, const typename Vector::Number*) {}
    template <class Sink>
    void put(const Sink&, const QuadRows&, int64_t, int64_t) const {}
};

// Blocks [begin, end) for a tile of kChunks.
template <class Simd, class Sink, int kRows, int kChunks>
void quad_rows(const QuadRows& weights, int64_t begin, int64_t end, const typename Simd::Wide::Number* input,
               const Sink& sink) {
    using Wide = typename Simd::Wide;
    using Rest = typename Simd::Rest;
    using Group = typename Wide::template Group<kRows>;
    constexpr int kPixels = kChunks * kChunkPixels, kVectors = kPixels / Wide::pixels, kWidePixels = kVectors * Wide::pixels;
    constexpr int kRests = (kPixels - kWidePixels) / Rest::pixels;
    const auto* quads = static_cast<const Group*>(weights.quads);
    for (int64_t block = begin; block < end; ++block) {
        BlockSums<Wide, kRows, kVectors> wide;
        BlockSums<Rest, kRows, kRests> rest;
        const Group* last = quads + weights.starts[block + 1];
        const Group* quad = quads + weights.starts[block];
        // a few vectors alone would wait for their own sums
        if constexpr (kRows * kVectors <= Wide::waiting && kRests == 0) {
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
        return block == 1 ? of_rows<1>(chunks, std::make_integer_sequence<int, Simd::chunks[0]>())
               : block == 2 ? of_rows<2>(chunks, std::make_integer_sequence<int, Simd::chunks[1]>())
                            : of_rows<4>(chunks, std::make_integer_sequence<int, Simd::chunks[2]>());
    }

private:
    template <int kRows, int... kIndices>
    static Kernel of_rows(int64_t chunks, std::integer_sequence<int, kIndices...>) {
        static constexpr Kernel kernels[] = {&quad_rows<Simd, Sink, kRows, kIndices + 1>...};
        return kernels[chunks - 1];
    }
};

static inline int64_t blocks_of(const QuadRows& weights) { return (weights.rows + weights.block - 1) / weights.block; }
