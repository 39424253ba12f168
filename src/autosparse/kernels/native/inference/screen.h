// The largest outputs of a dense linear layer without computing all of them: every row is estimated from eight-bit weights, and
// only the rows that can still be the largest are computed exactly.
#pragma once

#include <math.h>
#include <omp.h>

#include "common/arithmetic.h"
#include "interface.h"
#include "linear.h"

// estimates[tokens][rows] of rows [begin, end).
template <class Simd>
void estimate_rows(const ScreenedLinear& screen, int64_t tokens, int64_t begin, int64_t end, const float* input,
                   float* estimates) {
    const int64_t columns = screen.columns, stride = screen.exact.columns;
    if (tokens == 1) {
        for (int64_t row = begin; row < end; ++row) {
            estimates[row] = screen.scales[row] * dense_row<Simd>(screen.coarse + row * columns, columns, input);
        }
        return;
    }
    constexpr int kTokens = kTokensAtOnce<Simd>;
    for (int64_t row = begin; row < end; row += kRowsAtOnce) {
        const int64_t rows = smaller(kRowsAtOnce, end - row);
        for (int64_t token = 0; token < tokens; token += kTokens) {
            const int64_t count = smaller(kTokens, tokens - token);
            float found[kRowsAtOnce * kTokens];
            block_sums<Simd>(screen.coarse + row * columns, columns, rows, input + token * stride, stride, count, columns,
                             found);
            for (int64_t i = 0; i < rows; ++i) {
                for (int64_t j = 0; j < count; ++j) {
                    estimates[(token + j) * screen.exact.rows + row + i] = screen.scales[row + i] * found[i * kTokens + j];
                }
            }
        }
    }
}

static inline float length_of(const float* input, int64_t columns) {
    float squares = 0.0f;
    for (int64_t column = 0; column < columns; ++column) {
        squares += input[column] * input[column];
    }
    return sqrtf(squares);
}

// For every token the row with the largest output, the first of equals; all -1 if an input is not finite. `estimates` holds a
// float for every token and row. The input is [tokens][columns of the exact rows], and zeros or other tokens follow.
template <class Simd>
void largest_rows(const ScreenedLinear* given, int64_t tokens, int64_t threads, const float* input, float* estimates,
                  int64_t* found) {
    const ScreenedLinear& screen = *given;
    const DenseLinear& exact = screen.exact;
    bool finite = true;
    for (int64_t token = 0; token < tokens; ++token) {
        finite = finite && isfinite(length_of(input + token * exact.columns, exact.columns));
        found[token] = -1;
    }
    if (!finite) {
        return;
    }
    share_rows(exact.rows, threads, [&](int64_t begin, int64_t end) {
        estimate_rows<Simd>(screen, tokens, begin, end, input, estimates);
    });
    share_rows(tokens, smaller(threads, tokens), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
            const float* x = input + token * exact.columns;
            const float* guess = estimates + token * exact.rows;
            const float length = length_of(x, exact.columns);
            float floor = -INFINITY, best = -INFINITY;
            for (int64_t row = 0; row < exact.rows; ++row) {
                const float least = guess[row] - screen.errors[row] * length;
                floor = least > floor ? least : floor;
            }
            for (int64_t row = 0; row < exact.rows; ++row) {
                if (guess[row] + screen.errors[row] * length < floor) {
                    continue;
                }
                const float value = dense_row<Simd>(exact.values + row * exact.columns, exact.columns, x);
                if (value > best) {
                    best = value;
                    found[token] = row;
                }
            }
        }
    });
}
