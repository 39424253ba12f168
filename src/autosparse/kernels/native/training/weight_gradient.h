// The weight gradient at listed positions. Tiles are dealt out in fixed slices, each with sums of its own that are added
// in a fixed order: the result does not depend on which thread was faster.
#pragma once

#include <omp.h>

#include <cstring>

#include "common/arithmetic.h"
#include "gather.h"
#include "interface.h"
#include "tile.h"
#include "tile_kernels.h"

// Scratch of one thread: a packed tile of the input and one of the output's gradient.
template <class Simd>
struct WeightGradientScratch {
    int64_t tile, grad;

    WeightGradientScratch(const Pass& pass, int64_t row_parts) {
        tile = tile_words<Simd>(pass.block_channels * channel_stride(pass, Simd::lanes));
        grad = tile_words<Simd>(largest_part(pass, row_parts, Simd::lanes) * pass.tile_rows * pass.tile_cols * Simd::lanes);
    }
    int64_t total() const { return tile + grad; }
};

template <class Simd>
int64_t weight_gradient_scratch(const Pass* pass, int64_t row_parts) {
    return WeightGradientScratch<Simd>(*pass, row_parts).total();
}

// One tile's share for output channels [begin, end), added to `sums`.
template <class Simd, class Input, class Grad>
void weight_gradient_tile(const Pass& pass, const TilePlace<Simd>& place, int64_t begin, int64_t end, const Input& input,
                          const Grad& grad_output, const int32_t* row_start, const Entry* entries,
                          typename Simd::Cell* tile, typename Simd::Cell* grad_tile, float* sums) {
    const int64_t stride = channel_stride(pass, Simd::lanes);
    const int64_t row_pitch = pass.in_row_step * pass.slots_per_row * Simd::lanes;
    const int64_t pixels = place.rows * place.cols * Simd::lanes;
    const Lanes<Simd> from = input_lanes(pass, place);
    const Window window = input_window(pass, place.rows, place.cols);
    const Window output_window = {place.rows, place.cols, place.cols, 1, nullptr, nullptr};
    const auto multiply = TileKernels<typename Simd::Multiplier>::gradients(place.rows, place.cols);
    pack(pass, output_lanes(pass, place), output_window, grad_output, begin, end, pass.out_channels, pixels, grad_tile);
    for (int64_t channel = 0; channel < pass.in_channels; channel += pass.block_channels) {
        const int64_t next = smaller(channel + pass.block_channels, pass.in_channels);
        pack(pass, from, window, input, channel, next, pass.in_channels, stride, tile);
        const int32_t* starts = row_start + channel / pass.block_channels * pass.out_channels;
        multiply(end - begin, starts + begin, entries, tile, row_pitch, grad_tile, sums);
    }
}

template <class Simd, class Input, class Grad>
void weight_gradient_tiles(const Pass& pass, const Input& input, const Grad& grad_output, const int32_t* row_start,
                           const Entry* entries, int64_t threads, int64_t slices, int64_t row_parts, float* scratch,
                           float* sums) {
    const WeightGradientScratch<Simd> sizes(pass, row_parts);
    const int64_t tiles = count_tiles(pass, Simd::lanes);
    const int64_t count = row_start[divide_up(pass.in_channels, pass.block_channels) * pass.out_channels];
#pragma omp parallel num_threads(static_cast<int>(threads))
    {
        float* own = scratch + omp_get_thread_num() * sizes.total();
        auto* tile = reinterpret_cast<typename Simd::Cell*>(own);
        auto* grad_tile = reinterpret_cast<typename Simd::Cell*>(own + sizes.tile);
#pragma omp for schedule(static)
        for (int64_t slice = 0; slice < slices; ++slice) {
            std::memset(sums + slice * count, 0, count * sizeof(float));
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < slices * row_parts; ++item) {
            const int64_t slice = item / row_parts, part = item % row_parts;
            const int64_t begin = part_begin(pass, row_parts, part, Simd::lanes);
            const int64_t end = part_begin(pass, row_parts, part + 1, Simd::lanes);
            for (int64_t each = share_begin(tiles, slices, slice); each < share_begin(tiles, slices, slice + 1); ++each) {
                weight_gradient_tile<Simd>(pass, place_tile<Simd>(pass, each), begin, end, input, grad_output, row_start,
                                           entries, tile, grad_tile, sums + slice * count);
            }
        }
    }
}

template <class Simd>
void weight_gradient(const Pass* pass, const Source* input, const Source* grad_output, const int32_t* row_start,
                     const Entry* entries, int64_t threads, int64_t slices, int64_t row_parts, float* scratch, float* sums) {
    const auto run = [&](const auto& from, const auto& grad) {
        weight_gradient_tiles<Simd>(*pass, from, grad, row_start, entries, threads, slices, row_parts, scratch, sums);
    };
    if (grad_output->kind == kPlainSource) {
        run(PlainSource<Simd>{elements<Simd>(input->tensor)}, PlainSource<Simd>{elements<Simd>(grad_output->tensor)});
    } else {
        with_input<Simd>(*input, [&](const auto& from) { run(from, gradient_source<Simd>(*grad_output)); });
    }
}
