// A sparse linear layer for several tokens, as vectors of tokens.
#pragma once

#include <omp.h>

#include <cmath>

#include "common/arithmetic.h"
#include "finish.h"
#include "interface.h"
#include "rows.h"
#include "worker.h"

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

// The share of one of `workers` threads; `scratch` is its own.
template <class Simd>
void linear_share(const TermLinear& weight, int64_t tokens, int64_t workers, int64_t index, const float* input,
                  const float* other, float* scratch, float* output) {
    const int64_t width = weight.tile_vectors * Simd::lanes, tiles = divide_up(tokens, width);
    // With few tiles the output is shared among the threads too; each then turns the input for itself.
    const int64_t parts = parts_of(tiles, workers);
    const int64_t blocks = divide_up(weight.rows, Simd::lanes), items = tiles * parts;
    for (int64_t item = share_begin(items, workers, index); item < share_begin(items, workers, index + 1); ++item) {
        const int64_t first = item / parts * width, part = item % parts;
        const int64_t begin = share_begin(blocks, parts, part) * Simd::lanes;
        const int64_t end = smaller(share_begin(blocks, parts, part + 1) * Simd::lanes, weight.rows);
        linear_tile<Simd>(weight, smaller(width, tokens - first), begin, end, input + first * weight.columns,
                          other ? other + first * weight.rows : nullptr, scratch, output + first * weight.rows);
    }
}

template <class Simd>
void linear_many(const TermLinear* weight, int64_t tokens, int64_t threads, const float* input, const float* other,
                 float* scratch, float* output) {
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
    {
        const int64_t me = omp_get_thread_num();
        linear_share<Simd>(*weight, tokens, omp_get_num_threads(), me, input, other,
                           scratch + me * linear_scratch<Simd>(weight), output);
    }
}
