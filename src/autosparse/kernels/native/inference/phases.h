// Strides: a plane taken apart into planes of every step-th pixel, on which a strided operation has no stride any more.
#pragma once

#include <cmath>
#include <cstring>

#include "common/arithmetic.h"
#include "depthwise.h"
#include "interface.h"
#include "worker.h"

// count pixels from every step-th one.
template <class Simd>
void take_every(const float* from, int64_t step, int64_t count, float* to) {
    if (step == 1) {
        std::memcpy(to, from, count * sizeof(float));
        return;
    }
    int64_t i = 0;
    if (step == 2) {
        for (; i + Simd::lanes <= count; i += Simd::lanes) {
            const float* pair = from + 2 * i;
            Simd::store_unaligned(to + i, Simd::even(Simd::load_unaligned(pair), Simd::load_unaligned(pair + Simd::lanes)));
        }
        if (i < count) {
            const float* pair = from + 2 * i;
            const auto rest = Simd::even(Simd::load_unaligned(pair), Simd::load_unaligned(pair + Simd::lanes));
            Simd::store_first(to + i, rest, static_cast<int>(count - i));
        }
        return;
    }
    for (; i < count; ++i) {
        to[i] = from[i * step];
    }
}

// One channel's phases; phase p begins at to + phases[p] * phase_floats and lies on the grid of `grid`.
template <class Simd>
void split_channel(const Op& op, const Planes& in, const Planes& grid, const float* from, int64_t phase_floats, float* to) {
    for (int64_t phase = 0; phase < op.step * op.step; ++phase) {
        if (op.phases[phase] < 0) {
            continue;
        }
        const int64_t top = phase / op.step, left = phase % op.step;
        const int64_t rows = divide_up(in.rows - top, op.step), cols = divide_up(in.cols - left, op.step);
        float* plane = to + op.phases[phase] * phase_floats;
        for (int64_t image = 0; image < in.images; ++image) {
            for (int64_t row = 0; row < rows; ++row) {
                take_every<Simd>(from + image * in.image_floats + (row * op.step + top) * in.row_floats + left, op.step, cols,
                                 plane + image * grid.image_floats + row * grid.row_floats);
            }
        }
    }
}

template <class Simd>
void run_split(const Op& op, const Worker& worker) {
    const Planes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        split_channel<Simd>(op, in, out, worker.planes(in) + channel * in.plane_floats, in.channels * out.plane_floats,
                            worker.planes(out) + channel * out.plane_floats);
    });
}

// Depthwise and pools on one channel whose phases (or the plane itself, without a stride) begin at `input`.
template <class Simd>
void taps_of_channel(const Op& op, int64_t channel, const float* input, float* output) {
    const Planes& out = *op.output;
    const Activation<Simd> activate(op.tap_finish);
    if (op.kind == kDepthwise) {
        depthwise_channel<Simd>(op, channel, input, out.vectors, out.valid, output);
    } else if (op.kind == kMaxPool) {
        apply_taps<Simd>(LargestTap<Simd>{op.tap_offsets, op.taps}, activate, input, out.vectors, out.valid, output);
    } else {
        apply_taps<Simd>(MeanTap<Simd>{op.tap_offsets, op.taps, op.scale}, activate, input, out.vectors, out.valid, output);
    }
}

// Channel by channel through scratch: the phases of one channel stay in the nearest cache.
template <class Simd>
void run_taps(const Op& op, const Worker& worker) {
    const Planes &in = *op.input, &out = *op.output;
    const bool in_place = op.step == 1 && op.kind != kMaxPool;
    if (!in_place) {
        // Around a pool's input lies what can never be the largest; the pixels themselves are overwritten every time.
        const float around = op.kind == kMaxPool ? -INFINITY : 0.0f;
        for (int64_t i = 0; i < op.phase_planes * out.plane_floats; ++i) {
            worker.scratch[i] = around;
        }
    }
    worker.share(in.channels, [&](int64_t channel) {
        const float* from = worker.planes(in) + channel * in.plane_floats;
        if (!in_place) {
            split_channel<Simd>(op, in, out, from, out.plane_floats, worker.scratch + out.lead_floats);
        }
        taps_of_channel<Simd>(op, channel, in_place ? from : worker.scratch + out.lead_floats,
                              worker.planes(out) + channel * out.plane_floats);
    });
}
