// Linear layers for one token: a bitmask, rows of values with their columns, or dense; the dense way takes several tokens too.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "finish.h"
#include "interface.h"

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

template <class Simd>
typename Simd::Vec load_weights(const float* from) {
    return Simd::load_unaligned(from);
}

template <class Simd>
typename Simd::Vec load_weights(const int8_t* from) {
    return Simd::from_bytes(from);
}

template <class Simd>
typename Simd::Vec load_last_weights(const float* from, int count) {
    return Simd::load_first(from, count);
}

// Rows of bytes end with a whole vector.
template <class Simd>
typename Simd::Vec load_last_weights(const int8_t* from, int) {
    return Simd::from_bytes(from);
}

// One row of a dense weight times the input.
template <class Simd, class Element>
float dense_row(const Element* weight, int64_t columns, const float* input) {
    typename Simd::Vec sums[kDenseVectorsAtOnce];
    for (int i = 0; i < kDenseVectorsAtOnce; ++i) {
        sums[i] = Simd::zero();
    }
    int64_t column = 0;
    for (; column + kDenseVectorsAtOnce * Simd::lanes <= columns; column += kDenseVectorsAtOnce * Simd::lanes) {
        for (int i = 0; i < kDenseVectorsAtOnce; ++i) {
            const int64_t at = column + i * Simd::lanes;
            sums[i] = Simd::multiply_add(load_weights<Simd>(weight + at), Simd::load_unaligned(input + at), sums[i]);
        }
    }
    for (; column < columns; column += Simd::lanes) {
        const int count = static_cast<int>(smaller(Simd::lanes, columns - column));
        const typename Simd::Vec w = load_last_weights<Simd>(weight + column, count);
        sums[0] = Simd::multiply_add(w, Simd::load_first(input + column, count), sums[0]);
    }
    for (int i = 1; i < kDenseVectorsAtOnce; ++i) {
        sums[0] = Simd::add(sums[0], sums[i]);
    }
    return Simd::sum(sums[0]);
}

static inline float finish_one(float sum, const Finish& finish, int64_t row, const float* other) {
    return bounded(sum + bias_of(finish, row) + (other ? *other : 0.0f), finish.low, finish.high);
}

// Rows [begin, end) for one token. Nothing is read of `other` after it is written, so the output may be the same.
template <class Simd>
void bitmask_rows(const BitmaskLinear& weight, int64_t begin, int64_t end, const float* input, const float* other,
                  float* output) {
    for (int64_t row = begin; row < end; ++row) {
        const float sum = bitmask_row<Simd>(weight.bits + row * weight.words, weight.values + weight.row_start[row],
                                            weight.words, input);
        output[row] = finish_one(sum, weight.finish, row, other ? other + row : nullptr);
    }
}

// One row of values and their columns times the input; sums of a block overlap.
static inline float indexed_row(const uint16_t* columns, const float* values, int64_t blocks, const float* input) {
    float sums[kIndexedBlock] = {};
    for (int64_t block = 0; block < blocks; ++block) {
        for (int i = 0; i < kIndexedBlock; ++i) {
            sums[i] += values[i] * input[columns[i]];
        }
        columns += kIndexedBlock;
        values += kIndexedBlock;
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Rows [begin, end) for one token: fewer instructions than with a bitmask, more bytes.
static inline void indexed_rows(const IndexedLinear& weight, int64_t begin, int64_t end, const float* input,
                                const float* other, float* output) {
    for (int64_t row = begin; row < end; ++row) {
        const int64_t first = weight.row_start[row], blocks = weight.row_start[row + 1] - first;
        const float sum = indexed_row(weight.columns + first * kIndexedBlock, weight.values + first * kIndexedBlock, blocks, input);
        output[row] = finish_one(sum, weight.finish, row, other ? other + row : nullptr);
    }
}

// Rows of a dense weight whose products with several tokens are summed at once, and the tokens: what the registers hold.
constexpr int kRowsAtOnce = 2, kBlocksAhead = 2;
template <class Simd>
constexpr int kTokensAtOnce = Simd::lanes == 16 ? 8 : 4;

// A few rows of a weight times a few tokens, found[row][token]. Where there are fewer rows or tokens than are computed at once,
// the last is repeated.
template <class Simd, class Element>
void block_sums(const Element* weight, int64_t weight_stride, int64_t rows, const float* input, int64_t input_stride,
                int64_t tokens, int64_t columns, float* found) {
    constexpr int kTokens = kTokensAtOnce<Simd>, kSums = kRowsAtOnce * kTokens;
    typename Simd::Vec sums[kSums];
    const Element* weights[kRowsAtOnce];
    const float* inputs[kTokens];
    for (int i = 0; i < kRowsAtOnce; ++i) {
        weights[i] = weight + smaller(i, rows - 1) * weight_stride;
    }
    for (int j = 0; j < kTokens; ++j) {
        inputs[j] = input + smaller(j, tokens - 1) * input_stride;
    }
    for (int i = 0; i < kSums; ++i) {
        sums[i] = Simd::zero();
    }
    // memory brings rows of later blocks while this one is computed
    const int64_t ahead = kBlocksAhead * kRowsAtOnce * weight_stride;
    int64_t column = 0;
    for (; column + Simd::lanes <= columns; column += Simd::lanes) {
        typename Simd::Vec w[kRowsAtOnce];
        for (int i = 0; i < kRowsAtOnce; ++i) {
            __builtin_prefetch(weights[i] + column + ahead);
            w[i] = load_weights<Simd>(weights[i] + column);
        }
        for (int j = 0; j < kTokens; ++j) {
            const typename Simd::Vec x = Simd::load_unaligned(inputs[j] + column);
            for (int i = 0; i < kRowsAtOnce; ++i) {
                sums[i * kTokens + j] = Simd::multiply_add(w[i], x, sums[i * kTokens + j]);
            }
        }
    }
    if (column < columns) {
        const int left = static_cast<int>(columns - column);
        for (int i = 0; i < kRowsAtOnce; ++i) {
            const typename Simd::Vec w = load_last_weights<Simd>(weights[i] + column, left);
            for (int j = 0; j < kTokens; ++j) {
                typename Simd::Vec& sum = sums[i * kTokens + j];
                sum = Simd::multiply_add(w, Simd::load_first(inputs[j] + column, left), sum);
            }
        }
    }
    for (int i = 0; i < kSums; i += Simd::lanes) {
        Simd::store_unaligned(found + i, Simd::sums(sums + i));
    }
}

// A few rows of a dense weight for a few tokens.
template <class Simd>
void dense_block(const DenseLinear& weight, int64_t tokens, int64_t token, int64_t row, int64_t rows, const float* input,
                 const float* other, float* output) {
    constexpr int kTokens = kTokensAtOnce<Simd>;
    const int64_t columns = weight.columns, count = smaller(kTokens, tokens - token);
    float found[kRowsAtOnce * kTokens];
    block_sums<Simd>(weight.values + row * columns, columns, rows, input + token * columns, columns, count, columns, found);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < count; ++j) {
            const int64_t at = (token + j) * weight.rows + row + i;
            output[at] = finish_one(found[i * kTokens + j], weight.finish, row + i, other ? other + at : nullptr);
        }
    }
}

// Rows [begin, end) of a dense weight for any number of tokens.
template <class Simd>
void dense_rows(const DenseLinear& weight, int64_t tokens, int64_t begin, int64_t end, const float* input, const float* other,
                float* output) {
    if (tokens > 1) {
        for (int64_t row = begin; row < end; row += kRowsAtOnce) {
            for (int64_t token = 0; token < tokens; token += kTokensAtOnce<Simd>) {
                dense_block<Simd>(weight, tokens, token, row, smaller(kRowsAtOnce, end - row), input, other, output);
            }
        }
        return;
    }
    for (int64_t row = begin; row < end; ++row) {
        const float sum = dense_row<Simd>(weight.values + row * weight.columns, weight.columns, input);
        output[row] = finish_one(sum, weight.finish, row, other ? other + row : nullptr);
    }
}

// Calls rows(begin, end) on every thread with its share.
template <class Rows>
void share_rows(int64_t count, int64_t threads, const Rows& rows) {
    if (threads == 1) {
        return rows(0, count);
    }
#pragma omp parallel num_threads(static_cast<int>(threads))
    {
        const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        rows(share_begin(count, all, me), share_begin(count, all, me + 1));
    }
}

template <class Simd>
void linear_one(const BitmaskLinear* weight, int64_t threads, const float* input, const float* other, float* output) {
    share_rows(weight->rows, threads, [&](int64_t begin, int64_t end) {
        bitmask_rows<Simd>(*weight, begin, end, input, other, output);
    });
}

template <class Simd>
void linear_indexed(const IndexedLinear* weight, int64_t threads, const float* input, const float* other, float* output) {
    share_rows(weight->rows, threads, [&](int64_t begin, int64_t end) {
        indexed_rows(*weight, begin, end, input, other, output);
    });
}

template <class Simd>
void linear_dense(const DenseLinear* weight, int64_t tokens, int64_t threads, const float* input, const float* other,
                  float* output) {
    share_rows(weight->rows, threads, [&](int64_t begin, int64_t end) {
        dense_rows<Simd>(*weight, tokens, begin, end, input, other, output);
    });
}
