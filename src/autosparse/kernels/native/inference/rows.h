// The inner loops of sparse and dense operations: rows of weights times a few vectors of pixels.
#pragma once

#include <utility>

#include "finish.h"
#include "interface.h"

// The most pixels (in vectors) whose sums stay in registers; one register is left for a weight and one for an input.
constexpr int kMostVectors = 14;
// With fewer sums than this, two sets of them hide the latency of the multiply-adds.
constexpr int kFewVectors = 4;

// Where the results of a tile go.
struct Target {
    float* output;                             // channel 0, first pixel of the tile
    int64_t stride;                            // floats from a channel to the next
    const float* other;                        // same layout as the output; may be null
    int64_t other_stride;
    const uint32_t* valid;                     // at the tile's first pixel; null where everything is kept
};

template <class Simd, int kVectors>
void finish_row(typename Simd::Vec* sums, const Activation<Simd>& activate, const Target& target, int64_t row) {
    if (target.other != nullptr) {
        const float* other = target.other + row * target.other_stride;
        for (int v = 0; v < kVectors; ++v) {
            sums[v] = Simd::add(sums[v], Simd::load(other + v * Simd::lanes));
        }
    }
    float* output = target.output + row * target.stride;
    for (int v = 0; v < kVectors; ++v) {
        const typename Simd::Vec value = activate(sums[v]);
        Simd::store(output + v * Simd::lanes, target.valid ? Simd::keep(value, target.valid + v * Simd::lanes) : value);
    }
}

// Adds the products of terms [begin, end) to the sums.
template <class Simd, int kVectors>
void add_terms(const Term* begin, const Term* end, const float* input, typename Simd::Vec* sums) {
    using Vec = typename Simd::Vec;
    const Term* term = begin;
    if constexpr (kVectors <= kFewVectors) {
        Vec second[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            second[v] = Simd::zero();
        }
        for (; term + 1 < end; term += 2) {
            const Vec a = Simd::broadcast(term[0].value), b = Simd::broadcast(term[1].value);
            const float *x = input + term[0].offset, *y = input + term[1].offset;
            for (int v = 0; v < kVectors; ++v) {
                sums[v] = Simd::multiply_add(a, Simd::load_unaligned(x + v * Simd::lanes), sums[v]);
                second[v] = Simd::multiply_add(b, Simd::load_unaligned(y + v * Simd::lanes), second[v]);
            }
        }
        for (int v = 0; v < kVectors; ++v) {
            sums[v] = Simd::add(sums[v], second[v]);
        }
    }
    for (; term < end; ++term) {
        const Vec value = Simd::broadcast(term->value);
        const float* x = input + term->offset;
        for (int v = 0; v < kVectors; ++v) {
            sums[v] = Simd::multiply_add(value, Simd::load_unaligned(x + v * Simd::lanes), sums[v]);
        }
    }
}

// Output channels [begin, end) of one tile.
template <class Simd, int kVectors>
void sparse_rows(const int32_t* row_start, const Term* terms, const Finish& finish, int64_t begin, int64_t end,
                 const float* input, const Target& target) {
    const Activation<Simd> activate(finish);
    for (int64_t row = begin; row < end; ++row) {
        typename Simd::Vec sums[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            sums[v] = Simd::broadcast(bias_of(finish, row));
        }
        add_terms<Simd, kVectors>(terms + row_start[row], terms + row_start[row + 1], input, sums);
        finish_row<Simd, kVectors>(sums, activate, target, row);
    }
}

// Blocks of output channels over the same inputs: every input loaded serves all rows of the block.
template <class Simd, int kVectors>
void dense_rows(const Op& op, int64_t begin, int64_t end, const float* input, const Target& target) {
    using Vec = typename Simd::Vec;
    constexpr int kRows = Simd::dense_rows;
    const Activation<Simd> activate(op.finish);
    for (int64_t first = begin; first < end; first += kRows) {
        Vec sums[kRows][kVectors];
        for (int r = 0; r < kRows; ++r) {
            const Vec bias = Simd::broadcast(first + r < op.rows ? bias_of(op.finish, first + r) : 0.0f);
            for (int v = 0; v < kVectors; ++v) {
                sums[r][v] = bias;
            }
        }
        const float* weights = op.blocks + first * op.columns;
        for (int64_t column = 0; column < op.columns; ++column, weights += kRows) {
            Vec x[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                x[v] = Simd::load_unaligned(input + op.offsets[column] + v * Simd::lanes);
            }
            for (int r = 0; r < kRows; ++r) {
                const Vec weight = Simd::broadcast(weights[r]);
                for (int v = 0; v < kVectors; ++v) {
                    sums[r][v] = Simd::multiply_add(weight, x[v], sums[r][v]);
                }
            }
        }
        for (int64_t r = 0; r < kRows && first + r < end; ++r) {
            finish_row<Simd, kVectors>(sums[r], activate, target, first + r);
        }
    }
}

// The instances by number of vectors.
template <class Simd>
class RowKernels {
public:
    using Sparse = decltype(&sparse_rows<Simd, 1>);
    using Dense = decltype(&dense_rows<Simd, 1>);

    static Sparse sparse(int64_t vectors) { return sparse(vectors, std::make_integer_sequence<int, kMostVectors>()); }
    static Dense dense(int64_t vectors) { return dense(vectors, std::make_integer_sequence<int, Simd::dense_vectors>()); }

private:
    template <int... kIndices>
    static Sparse sparse(int64_t vectors, std::integer_sequence<int, kIndices...>) {
        static constexpr Sparse kernels[] = {&sparse_rows<Simd, kIndices + 1>...};
        return kernels[vectors - 1];
    }
    template <int... kIndices>
    static Dense dense(int64_t vectors, std::integer_sequence<int, kIndices...>) {
        static constexpr Dense kernels[] = {&dense_rows<Simd, kIndices + 1>...};
        return kernels[vectors - 1];
    }
};
