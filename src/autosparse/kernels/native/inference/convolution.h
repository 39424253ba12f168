// Sparse and dense operations: tiles of pixels, for each a prologue that prepares the input and then the rows of weights.
#pragma once

#include <cstring>

#include "common/arithmetic.h"
#include "depthwise.h"
#include "interface.h"
#include "rows.h"
#include "worker.h"

// Copies a tile once for every misalignment of its taps.
template <class Simd>
void pack_aligned(const Op& op, const float* input, int64_t vectors, float* tile) {
    const Planes& in = *op.input;
    for (int64_t channel = 0; channel < in.channels; ++channel) {
        float* to = tile + channel * op.shift_floats;
        for (int64_t s = 0; s < op.shift_count; ++s) {
            const float* from = input + channel * in.plane_pixels + op.shifts[s].first;
            for (int64_t v = 0; v < vectors + op.shifts[s].vectors; ++v) {
                Simd::store(to + v * Simd::lanes, Simd::load_unaligned(from + v * Simd::lanes));
            }
            to += (op.tile_vectors + op.shifts[s].vectors) * Simd::lanes;
        }
    }
}

// The input of one tile: the planes themselves, or scratch that was filled from them.
template <class Simd>
const float* prepare(const Op& op, const float* input, int64_t vectors, float* tile) {
    const Planes& in = *op.input;
    if (op.source == kDirect) {
        return input;
    }
    if (op.source == kAlignedTile) {
        pack_aligned<Simd>(op, input, vectors, tile);
        return tile;
    }
    for (int64_t channel = 0; channel < in.channels; ++channel) {
        depthwise_channel<Simd>(op, channel, input + channel * in.plane_pixels, vectors, nullptr,
                                tile + channel * op.tile_vectors * Simd::lanes);
    }
    return tile;
}

template <class Simd>
void dense_tile(const Op& op, int64_t begin, int64_t end, const float* input, Target target, int64_t vectors) {
    for (int64_t done = 0; done < vectors; done += Simd::dense_vectors) {
        const int64_t now = smaller(Simd::dense_vectors, vectors - done);
        RowKernels<Simd>::dense(now)(op, begin, end, input, target);
        input += now * Simd::lanes;
        target.output += now * Simd::lanes;
        target.other += target.other ? now * Simd::lanes : 0;
        target.valid += now * Simd::lanes;
    }
}

template <class Simd>
void run_convolution(const Op& op, const Worker& worker) {
    const Planes& out = *op.output;
    const int64_t tiles = divide_up(out.vectors, op.tile_vectors), parts = parts_of(tiles, worker.count);
    const int64_t block = op.kind == kDense ? Simd::dense_rows : 1;
    const int64_t blocks = divide_up(op.rows, block);
    int64_t prepared = -1;
    const float* input = nullptr;
    worker.share(tiles * parts, [&](int64_t item) {
        const int64_t tile = item / parts, part = item % parts;
        const int64_t first = tile * op.tile_vectors, vectors = smaller(op.tile_vectors, out.vectors - first);
        const int64_t at = first * Simd::lanes;
        if (prepared != tile) {
            input = prepare<Simd>(op, worker.planes(*op.input) + at, vectors, worker.scratch);
            prepared = tile;
        }
        const int64_t begin = share_begin(blocks, parts, part) * block;
        const int64_t end = smaller(share_begin(blocks, parts, part + 1) * block, op.rows);
        const Target target = {worker.planes(out) + at, out.plane_pixels, op.other ? worker.planes(*op.other) + at : nullptr,
                               op.other ? op.other->plane_pixels : 0, static_cast<const uint32_t*>(out.valid) + at};
        if (op.kind == kDense) {
            dense_tile<Simd>(op, begin, end, input, target, vectors);
        } else {
            RowKernels<Simd>::sparse(vectors)(op.row_start, op.terms, op.finish, begin, end, input, target);
        }
    });
}
