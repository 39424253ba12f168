// Linear layers: one token with a bitmask, several tokens as vectors of tokens.
#pragma once

#include <omp.h>

#include <cmath>

#include "arithmetic.h"
#include "infer_convolution.h"
#include "infer_finish.h"
#include "infer_interface.h"
#include "infer_rows.h"

// Words of a row that are multiplied side by side, each into sums of its own: the multiply-adds then overlap.
constexpr int kWordsAtOnce = 2;
// Vectors of a dense row that are multiplied side by side. Rows come one after the other: memory is read in one stream.
constexpr int kDenseVectorsAtOnce = 4;

// One row of a bitmask weight times the input.
template <class Simd>
float bitmask_row(const uint16_t* bits, const float* values, int64_t words, const float* input) {
    constexpr int kParts = kBitmaskColumns / Simd::lanes, kSums = kParts * kWordsAtOnce;
    constexpr uint32_t kPart = (1u << Simd::lanes) - 1;
    typename Simd::Vec sums[kSums];
    for (int i = 0; i < kSums; ++i) {
        sums[i] = Simd::zero();
    }
    const auto add_word = [&](int64_t word, int first) {
        const uint32_t all = bits[word];
        for (int part = 0; part < kParts; ++part) {
            const uint32_t some = all >> (part * Simd::lanes) & kPart;
            const float* x = input + word * kBitmaskColumns + part * Simd::lanes;
            sums[first + part] = Simd::multiply_add(Simd::expand(values, some), Simd::load_unaligned(x), sums[first + part]);
            values += __builtin_popcount(some);
        }
    };
    int64_t word = 0;
    for (; word + kWordsAtOnce <= words; word += kWordsAtOnce) {
        for (int i = 0; i < kWordsAtOnce; ++i) {
            add_word(word + i, i * kParts);
        }
    }
    for (; word < words; ++word) {
        add_word(word, 0);
    }
    for (int i = 1; i < kSums; ++i) {
        sums[0] = Simd::add(sums[0], sums[i]);
    }
    return Simd::sum(sums[0]);
}

// One row of a dense weight times the input.
template <class Simd>
float dense_row(const float* weight, int64_t columns, const float* input) {
    typename Simd::Vec sums[kDenseVectorsAtOnce];
    for (int i = 0; i < kDenseVectorsAtOnce; ++i) {
        sums[i] = Simd::zero();
    }
    int64_t column = 0;
    for (; column + kDenseVectorsAtOnce * Simd::lanes <= columns; column += kDenseVectorsAtOnce * Simd::lanes) {
        for (int i = 0; i < kDenseVectorsAtOnce; ++i) {
            const int64_t at = column + i * Simd::lanes;
            sums[i] = Simd::multiply_add(Simd::load_unaligned(weight + at), Simd::load_unaligned(input + at), sums[i]);
        }
    }
    for (; column < columns; column += Simd::lanes) {
        const int count = static_cast<int>(smaller(Simd::lanes, columns - column));
        sums[0] = Simd::multiply_add(Simd::load_first(weight + column, count), Simd::load_first(input + column, count), sums[0]);
    }
    for (int i = 1; i < kDenseVectorsAtOnce; ++i) {
        sums[0] = Simd::add(sums[0], sums[i]);
    }
    return Simd::sum(sums[0]);
}

static inline float activate_one(float value, const Finish& finish) {
    value = value < finish.low ? finish.low : value;  // in this order NaN passes through
    return value > finish.high ? finish.high : value;
}

template <class Simd>
void linear_one(const BitmaskLinear* given, int64_t threads, const float* input, const float* other, float* output) {
    const BitmaskLinear weight = *given;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
    for (int64_t row = 0; row < weight.rows; ++row) {
        const float sum = bitmask_row<Simd>(weight.bits + row * weight.words, weight.values + weight.row_start[row],
                                            weight.words, input);
        const float added = sum + bias_of(weight.finish, row) + (other ? other[row] : 0.0f);
        output[row] = activate_one(added, weight.finish);
    }
}

// One row of terms times the input; several sums overlap.
static inline float term_row(const Term* term, const Term* end, const float* input) {
    constexpr int kSums = 8;
    float sums[kSums] = {};
    for (; term + kSums <= end; term += kSums) {
        for (int i = 0; i < kSums; ++i) {
            sums[i] += term[i].value * input[term[i].offset];
        }
    }
    for (; term < end; ++term) {
        sums[0] += term->value * input[term->offset];
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// One token on rows of terms whose offsets are columns: fewer instructions than a bitmask, twice the bytes.
template <class Simd>
void linear_terms(const TermLinear* given, int64_t threads, const float* input, const float* other, float* output) {
    const TermLinear weight = *given;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
    for (int64_t row = 0; row < weight.rows; ++row) {
        const float sum = term_row(weight.terms + weight.row_start[row], weight.terms + weight.row_start[row + 1], input);
        const float added = sum + bias_of(weight.finish, row) + (other ? other[row] : 0.0f);
        output[row] = activate_one(added, weight.finish);
    }
}

template <class Simd>
void linear_dense(const DenseLinear* given, int64_t threads, const float* input, const float* other, float* output) {
    const DenseLinear weight = *given;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
    for (int64_t row = 0; row < weight.rows; ++row) {
        const float sum = dense_row<Simd>(weight.values + row * weight.columns, weight.columns, input);
        const float added = sum + bias_of(weight.finish, row) + (other ? other[row] : 0.0f);
        output[row] = activate_one(added, weight.finish);
    }
}

// Scratch of one thread: a tile of the input by column, and the results of as many rows as a vector has lanes.
template <class Simd>
int64_t linear_scratch(const TermLinear* weight) {
    return (round_up(weight->columns, Simd::lanes) + Simd::lanes) * weight->tile_vectors * Simd::lanes;
}

// from[tokens][columns], at most lanes of each, turned into to[columns][stride].
template <class Simd>
void turn(const float* from, int64_t from_stride, int64_t tokens, int64_t columns, float* to, int64_t to_stride) {
    typename Simd::Vec square[Simd::lanes];
    for (int64_t token = 0; token < Simd::lanes; ++token) {
        square[token] = token < tokens ? Simd::load_first(from + token * from_stride, static_cast<int>(columns)) : Simd::zero();
    }
    Simd::transpose(square);
    for (int64_t column = 0; column < columns; ++column) {
        Simd::store_first(to + column * to_stride, square[column], static_cast<int>(tokens));
    }
}

// Rows [begin, end) for at most a tile's tokens; begin is a multiple of the lanes.
template <class Simd>
void linear_tile(const TermLinear& weight, int64_t tokens, int64_t begin, int64_t end, const float* input,
                 const float* other, float* tile, float* output) {
    const int64_t vectors = divide_up(tokens, Simd::lanes), width = weight.tile_vectors * Simd::lanes;
    for (int64_t column = 0; column < weight.columns; column += Simd::lanes) {
        for (int64_t token = 0; token < tokens; token += Simd::lanes) {
            turn<Simd>(input + token * weight.columns + column, weight.columns, smaller(Simd::lanes, tokens - token),
                       smaller(Simd::lanes, weight.columns - column), tile + column * width + token, width);
        }
    }
    float* ready = tile + round_up(weight.columns, Simd::lanes) * width;
    const Target target = {ready, width, nullptr, 0, nullptr};
    const Activation<Simd> activate(weight.finish);
    for (int64_t row = begin; row < end; row += Simd::lanes) {
        const int64_t rows = smaller(Simd::lanes, end - row);
        const Finish bias_only = {weight.finish.bias ? weight.finish.bias + row : nullptr, -INFINITY, INFINITY};
        RowKernels<Simd>::sparse(vectors)(weight.row_start + row, weight.terms, bias_only, 0, rows, tile, target);
        for (int64_t token = 0; token < tokens; token += Simd::lanes) {
            typename Simd::Vec square[Simd::lanes];
            for (int64_t i = 0; i < Simd::lanes; ++i) {
                square[i] = i < rows ? Simd::load(ready + i * width + token) : Simd::zero();
            }
            Simd::transpose(square);
            for (int64_t i = 0; i < smaller(Simd::lanes, tokens - token); ++i) {
                const int64_t at = (token + i) * weight.rows + row;
                const int count = static_cast<int>(rows);
                const auto sum = other ? Simd::add(square[i], Simd::load_first(other + at, count)) : square[i];
                Simd::store_first(output + at, activate(sum), count);
            }
        }
    }
}

template <class Simd>
void linear_many(const TermLinear* given, int64_t tokens, int64_t threads, const float* input, const float* other,
                 float* scratch, float* output) {
    const TermLinear weight = *given;
    const int64_t width = weight.tile_vectors * Simd::lanes, tiles = divide_up(tokens, width);
    // With few tiles the output is shared among the threads too; each then turns the input for itself.
    const int64_t parts = tiles % threads == 0 || tiles >= kManyTiles * threads ? 1 : threads;
    const int64_t blocks = divide_up(weight.rows, Simd::lanes);
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) if (threads > 1)
    for (int64_t item = 0; item < tiles * parts; ++item) {
        const int64_t first = item / parts * width, part = item % parts;
        const int64_t begin = share_begin(blocks, parts, part) * Simd::lanes;
        const int64_t end = smaller(share_begin(blocks, parts, part + 1) * Simd::lanes, weight.rows);
        linear_tile<Simd>(weight, smaller(width, tokens - first), begin, end, input + first * weight.columns,
                          other ? other + first * weight.rows : nullptr,
                          scratch + omp_get_thread_num() * linear_scratch<Simd>(given), output + first * weight.rows);
    }
}
