// The largest output of a dense linear layer without computing all of them: every row is estimated from eight-bit weights, and
// only the rows that can still be the largest are computed exactly.
#pragma once

#include <math.h>
#include <omp.h>

#include "arithmetic.h"
#include "infer_interface.h"
#include "infer_linear.h"

template <class Simd>
float coarse_row(const int8_t* weight, int64_t columns, const float* input) {
    typename Simd::Vec sums[kDenseVectorsAtOnce];
    for (int i = 0; i < kDenseVectorsAtOnce; ++i) {
        sums[i] = Simd::zero();
    }
    int64_t column = 0;
    const auto add = [&](int i) {
        sums[i] = Simd::multiply_add(Simd::from_bytes(weight + column), Simd::load_unaligned(input + column), sums[i]);
        column += Simd::lanes;
    };
    while (column + kDenseVectorsAtOnce * Simd::lanes <= columns) {
        for (int i = 0; i < kDenseVectorsAtOnce; ++i) {
            add(i);
        }
    }
    while (column < columns) {
        add(0);
    }
    for (int i = 1; i < kDenseVectorsAtOnce; ++i) {
        sums[0] = Simd::add(sums[0], sums[i]);
    }
    return Simd::sum(sums[0]);
}

// The row with the largest output, the first of equals; -1 if the input is not finite. `estimates` holds a float a row.
template <class Simd>
int64_t largest_row(const ScreenedLinear* given, int64_t threads, const float* input, float* estimates) {
    const ScreenedLinear& screen = *given;
    const DenseLinear& exact = screen.exact;
    float length = 0.0f;
    for (int64_t column = 0; column < exact.columns; ++column) {
        length += input[column] * input[column];
    }
    length = sqrtf(length);
    if (!isfinite(length)) {
        return -1;
    }
    float floor = -INFINITY, best = -INFINITY;
    int64_t found = -1;
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
    {
        const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        const int64_t begin = share_begin(exact.rows, all, me), end = share_begin(exact.rows, all, me + 1);
        float mine = -INFINITY;
        for (int64_t row = begin; row < end; ++row) {
            estimates[row] = screen.scales[row] * coarse_row<Simd>(screen.coarse + row * screen.columns, screen.columns, input);
            const float least = estimates[row] - screen.errors[row] * length;
            mine = least > mine ? least : mine;
        }
#pragma omp critical
        floor = mine > floor ? mine : floor;
#pragma omp barrier
        float best_here = -INFINITY;
        int64_t found_here = -1;
        for (int64_t row = begin; row < end; ++row) {
            if (estimates[row] + screen.errors[row] * length >= floor) {
                const float value = dense_row<Simd>(exact.values + row * exact.columns, exact.columns, input);
                if (value > best_here) {
                    best_here = value;
                    found_here = row;
                }
            }
        }
#pragma omp critical
        if (best_here > best || (best_here == best && found_here < found)) {
            best = best_here;
            found = found_here;
        }
    }
    return found;
}
