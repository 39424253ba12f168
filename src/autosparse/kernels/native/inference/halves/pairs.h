// The inner loop in bfloat16: blocks of output channels times a tile of pixels, any two non-zeros of a row at a time.
#pragma once

#include <utility>

#include "../bytes/interface.h"
#include "vectors.h"

// Any two non-zeros that `kRows` neighbouring output channels have in common.
template <int kRows>
struct Pair {
    int32_t offset[2];
    uint16_t weight[kRows][2];
};

constexpr int64_t kPairBytesAhead = 1024;

// Where the results of a tile go, and what becomes of them.
struct HalfTarget {
    uint16_t* output;                          // row 0, first pixel of the tile
    int64_t stride;
    const uint16_t* other;                     // same layout as the output; may be null
    int64_t other_stride;
    const uint8_t* valid;
    float low, high;
};

template <class Simd>
void finish_half(typename Simd::Two sums, float scale, float bias, const uint16_t* other, const HalfTarget& target, int64_t pixel,
                 uint16_t* to) {
    const auto m = _mm512_set1_ps(scale), b = _mm512_set1_ps(bias);
    const auto low = _mm512_set1_ps(target.low), high = _mm512_set1_ps(target.high);
    sums = {_mm512_fmadd_ps(sums.low, m, b), _mm512_fmadd_ps(sums.high, m, b)};
    if (other != nullptr) {
        const auto added = Simd::load(other);
        sums = {_mm512_add_ps(sums.low, added.low), _mm512_add_ps(sums.high, added.high)};
    }
    // the value stands last in both: then NaN passes through, as it does in torch
    sums = {_mm512_min_ps(high, _mm512_max_ps(low, sums.low)), _mm512_min_ps(high, _mm512_max_ps(low, sums.high))};
    Simd::store(sums, target.valid + pixel, to);
}

// The pairs of one block for a tile.
template <class Simd, int kRows, int kVectors>
struct PairSums {
    typename Simd::Two sums[kVectors][kRows];

    PairSums() {
        for (auto& vector : sums) {
            for (auto& row : vector) {
                row = Simd::zeros();
            }
        }
    }
    inline __attribute__((always_inline)) void add(const Pair<kRows>& pair, const uint16_t* input) {
        typename Simd::Int w[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
            w[r] = Simd::weight(pair.weight[r]);
        }
        const uint16_t *a = input + pair.offset[0], *b = input + pair.offset[1];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
            const auto x = Simd::gather(a + v * Simd::pixels, b + v * Simd::pixels);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                Simd::dot(sums[v][r], x, w[r]);
            }
        }
    }
    inline __attribute__((always_inline)) void add(const PairSums& more) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
                Simd::add_to(sums[v][r], more.sums[v][r]);
            }
        }
    }
};

// Blocks [begin, end) for a tile of kVectors.
template <class Simd, int kRows, int kVectors>
void pair_rows(const QuadRows& weights, int64_t begin, int64_t end, const uint16_t* input, const HalfTarget& target) {
    const auto* pairs = static_cast<const Pair<kRows>*>(weights.quads);
    for (int64_t block = begin; block < end; ++block) {
        PairSums<Simd, kRows, kVectors> whole;
        const Pair<kRows>* last = pairs + weights.starts[block + 1];
        const Pair<kRows>* pair = pairs + weights.starts[block];
        // a few vectors alone would wait for their own sums
        if constexpr (kRows * kVectors <= Simd::waiting) {
            PairSums<Simd, kRows, kVectors> second;
            for (; pair + 1 < last; pair += 2) {
                __builtin_prefetch(reinterpret_cast<const char*>(pair) + kPairBytesAhead);
                whole.add(pair[0], input);
                second.add(pair[1], input);
            }
            whole.add(second);
        }
        for (; pair < last; ++pair) {
            __builtin_prefetch(reinterpret_cast<const char*>(pair) + kPairBytesAhead);
            whole.add(*pair, input);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
            const int64_t row = block * kRows + r;
            if (row < weights.rows) {
                const uint16_t* other = target.other ? target.other + row * target.other_stride : nullptr;
#pragma GCC unroll 16
                for (int v = 0; v < kVectors; ++v) {
                    const int64_t pixel = v * Simd::pixels;
                    finish_half<Simd>(whole.sums[v][r], weights.scale[row], weights.bias[row], other ? other + pixel : nullptr, target,
                                      pixel, target.output + row * target.stride + pixel);
                }
            }
        }
    }
}

// The instances by rows of a block and vectors of a tile.
template <class Simd>
class PairKernels {
public:
    using Kernel = decltype(&pair_rows<Simd, 1, 1>);

    static Kernel of(int64_t block, int64_t vectors) {
        return block == 1 ? kOne[vectors - 1] : block == 2 ? kTwo[vectors - 1] : kFour[vectors - 1];
    }

private:
    template <int kRows, int... kIndices>
    struct Table {
        static constexpr Kernel kernels[] = {&pair_rows<Simd, kRows, kIndices + 1>...};
    };
    template <int kRows, int... kIndices>
    static constexpr const Kernel* table(std::integer_sequence<int, kIndices...>) {
        return Table<kRows, kIndices...>::kernels;
    }
    static constexpr const Kernel* kOne = table<1>(std::make_integer_sequence<int, Simd::vectors[0]>());
    static constexpr const Kernel* kTwo = table<2>(std::make_integer_sequence<int, Simd::vectors[1]>());
    static constexpr const Kernel* kFour = table<4>(std::make_integer_sequence<int, Simd::vectors[2]>());
};
