// Both gradients of a convolution with a kernel of one pixel in one pass: a tile of the output's gradient is packed once, multiplied
// by the transposed weight for the input's gradient, and with the packed input for the weight's.
#pragma once

#include <omp.h>

#include <cstring>

#include "common/arithmetic.h"
#include "gather.h"
#include "interface.h"
#include "tile.h"
#include "tile_kernels.h"

// Scratch of one thread: the output's gradient, the input, and the two buffers of a gather pass.
template <class Simd>
struct JointScratch {
    int64_t grad, input, waiting, ready;

    JointScratch(const Pass& forward, const Pass& backward) {
        const int64_t pixels = forward.tile_rows * forward.tile_cols * Simd::lanes;
        const int64_t channel = staged_channel<Simd>(forward.tile_rows, forward.tile_cols);
        grad = tile_words<Simd>(forward.out_channels * pixels);
        input = tile_words<Simd>(forward.block_channels * pixels);
        waiting = backward.block_channels >= backward.in_channels ? 0 : round_up(backward.out_channels, Simd::lanes) * channel;
        ready = Simd::lanes * channel;
    }
    int64_t total() const { return grad + input + waiting + ready; }
};

template <class Simd>
int64_t joint_gradient_scratch(const Pass* forward, const Pass* backward) {
    return JointScratch<Simd>(*forward, *backward).total();
}

template <class Simd, class Input, class Grad, class To>
void joint_gradient_tile(const Pass& forward, const Pass& backward, int64_t tile, const Input& input, const Grad& grad,
                         const int32_t* row_start, const Entry* entries, const RowsOf<Simd>& transposed,
                         float* scratch, const To& to, const Sums& sink_sums, float* sums) {
    const JointScratch<Simd> sizes(forward, backward);
    auto* grad_tile = reinterpret_cast<typename Simd::Cell*>(scratch);
    auto* input_tile = reinterpret_cast<typename Simd::Cell*>(scratch + sizes.grad);
    float* waiting = scratch + sizes.grad + sizes.input;
    const Buffers buffers = {waiting, waiting + sizes.waiting};
    TilePlace<Simd> place = place_tile<Simd>(forward, tile);
    place.rows = forward.tile_rows;  // the last tiles too: what lies outside is packed as zero and not written
    place.cols = forward.tile_cols;
    const int64_t stride = place.rows * place.cols * Simd::lanes;
    const Lanes<Simd> outputs = output_lanes(forward, place), inputs = input_lanes(forward, place);
    const Window window = {place.rows, place.cols, place.cols, 1, nullptr, nullptr};
    pack(forward, outputs, window, grad, 0, forward.out_channels, forward.out_channels, stride, grad_tile);
    for (int64_t channel = 0; channel < backward.in_channels; channel += backward.block_channels) {
        GatherBlock<Simd, To>(backward, place, inputs, channel / backward.block_channels, nullptr, transposed,
                              grad_tile + channel * stride).run(0, backward.out_channels, buffers, to, sink_sums);
    }
    const auto multiply = TileKernels<typename Simd::Multiplier>::gradients(place.rows, place.cols);
    for (int64_t channel = 0; channel < forward.in_channels; channel += forward.block_channels) {
        const int64_t next = smaller(channel + forward.block_channels, forward.in_channels);
        pack(forward, inputs, window, input, channel, next, forward.in_channels, stride, input_tile);
        const int32_t* starts = row_start + channel / forward.block_channels * forward.out_channels;
        multiply(forward.out_channels, starts, entries, input_tile, place.cols * Simd::lanes, grad_tile, sums);
    }
}

template <class Simd>
void joint_gradient(const Pass* given, const Pass* given_backward, const Source* input, const Source* grad_output,
                    const int32_t* row_start, const Entry* entries, const int32_t* transposed_start,
                    const Entry* transposed, int64_t threads, int64_t slices, float* scratch, const Sink* sink, float* sums) {
    const Pass forward = *given, backward = *given_backward;
    const int64_t tiles = count_tiles(forward, Simd::lanes), scratch_size = JointScratch<Simd>(forward, backward).total();
    const int64_t count = row_start[divide_up(forward.in_channels, forward.block_channels) * forward.out_channels];
    const auto grad = gradient_source<Simd>(*grad_output);
    const int64_t row_count = divide_up(backward.in_channels, backward.block_channels) * backward.out_channels;
    const RowsOf<Simd> rows(row_count, transposed_start, transposed, threads);
    const auto run = [&](const auto& from, const auto& to, const SliceSums& slice_sums) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads))
        for (int64_t slice = 0; slice < slices; ++slice) {
            float* mine = sums + slice * count;
            std::memset(mine, 0, count * sizeof(float));
            float* own = scratch + omp_get_thread_num() * scratch_size;
            for (int64_t tile = share_begin(tiles, slices, slice); tile < share_begin(tiles, slices, slice + 1); ++tile) {
                joint_gradient_tile<Simd>(forward, backward, tile, from, grad, row_start, entries, rows,
                                          own, to, slice_sums.of(slice), mine);
            }
        }
    };
    with_sums<Simd>(*sink, slices, backward.out_channels, [&](const SliceSums& slice_sums) {
        with_input_and_sink<Simd>(*input, *sink, [&](const auto& from, const auto& to) { run(from, to, slice_sums); });
    });
}
