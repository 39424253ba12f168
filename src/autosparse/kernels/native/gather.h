// A whole gather pass: tiles are packed block by block of input channels, multiplied, and written back.
#pragma once

#include <omp.h>

#include "arithmetic.h"
#include "interface.h"
#include "tile.h"
#include "tile_kernels.h"

// Output channels of one part, in whole vectors.
static inline int64_t part_begin(const Pass& pass, int64_t parts, int64_t part, int64_t lanes) {
    const int64_t groups = divide_up(pass.out_channels, lanes);
    return smaller(share_begin(groups, parts, part) * lanes, pass.out_channels);
}

static inline int64_t largest_part(const Pass& pass, int64_t parts, int64_t lanes) {
    return divide_up(divide_up(pass.out_channels, lanes), parts) * lanes;
}

// Scratch of one thread: the packed tile, sums that wait for the next block of input channels, sums ready to be written.
template <class Simd>
struct GatherScratch {
    int64_t tile, waiting, ready;

    GatherScratch(const Pass& pass, int64_t row_parts) {
        const int64_t pixels = pass.tile_rows * pass.tile_cols * Simd::lanes;
        const bool one_block = pass.block_channels >= pass.in_channels;
        tile = pass.block_channels * channel_stride(pass, Simd::lanes);
        waiting = one_block ? 0 : largest_part(pass, row_parts, Simd::lanes) * pixels;
        ready = Simd::lanes * pixels;
    }
    int64_t total() const { return tile + waiting + ready; }
};

template <class Simd>
int64_t gather_scratch(const Pass* pass, int64_t row_parts) {
    return GatherScratch<Simd>(*pass, row_parts).total();
}

// One tile, output channels [begin, end).
template <class Simd>
void gather_tile(const Pass& pass, const TilePlace<Simd>& place, int64_t begin, int64_t end, const float* input,
                 const float* bias, const int32_t* row_start, const Entry* entries, float* tile, float* waiting,
                 float* ready, float* output) {
    const int64_t stride = channel_stride(pass, Simd::lanes);
    const int64_t row_pitch = pass.in_row_step * pass.slots_per_row * Simd::lanes;
    const int64_t pixels = place.rows * place.cols * Simd::lanes;
    const Lanes<Simd> from = input_lanes(pass, place);
    const Lanes<Simd> to = output_lanes(pass, place);
    const Window window = input_window(pass, place.rows, place.cols);
    const auto multiply = TileKernels<Simd>::multiply(place.rows, place.cols);
    for (int64_t channel = 0; channel < pass.in_channels; channel += pass.block_channels) {
        const int64_t block = channel / pass.block_channels;
        const int64_t next = smaller(channel + pass.block_channels, pass.in_channels);
        pack(from, window, input, channel, next, stride, tile);
        const int32_t* starts = row_start + block * pass.out_channels;
        const float* earlier = block > 0 ? waiting : nullptr;
        if (next < pass.in_channels) {
            multiply(end - begin, starts + begin, entries, tile, row_pitch, earlier, bias ? bias + begin : nullptr, waiting);
            continue;
        }
        for (int64_t row = begin; row < end; row += Simd::lanes) {
            const int64_t count = smaller(Simd::lanes, end - row);
            multiply(count, starts + row, entries, tile, row_pitch, earlier ? earlier + (row - begin) * pixels : nullptr,
                     bias ? bias + row : nullptr, ready);
            unpack(to, place.rows, place.cols, ready, row, static_cast<int>(count), output);
        }
    }
}

template <class Simd>
void gather(const Pass* given, const float* input, const float* bias, const int32_t* row_start, const Entry* entries,
            int64_t threads, int64_t row_parts, float* scratch, float* output) {
    const Pass pass = *given;
    const GatherScratch<Simd> sizes(pass, row_parts);
    const int64_t items = count_tiles(pass, Simd::lanes) * row_parts;
#pragma omp parallel num_threads(static_cast<int>(threads))
    {
        float* tile = scratch + omp_get_thread_num() * sizes.total();
        float* waiting = tile + sizes.tile;
        float* ready = waiting + sizes.waiting;
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < items; ++item) {
            const int64_t part = item % row_parts;
            gather_tile<Simd>(pass, place_tile<Simd>(pass, item / row_parts), part_begin(pass, row_parts, part, Simd::lanes),
                              part_begin(pass, row_parts, part + 1, Simd::lanes), input, bias, row_start, entries, tile,
                              waiting, ready, output);
        }
    }
}
