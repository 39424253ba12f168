// Strides: a plane taken apart into planes of every step-th pixel, on which a strided operation has no stride any more.
#pragma once

#include <cmath>
#include <cstring>

#include "common/arithmetic.h"
#include "depthwise.h"
#include "interface.h"
#include "worker.h"

// Rows of one phase: pixels of a row, from a row to the next, and how many may be written from the first one on.
template <class Number>
struct PhaseRows {
    int64_t rows, cols, row_pixels, room;
    Number outside;                            // what lies between the rows
};

// How rows of floats are taken apart.
template <class Simd>
struct FloatRows {
    template <bool kOdd>
    static void take_alternate(const float* from, int64_t from_stride, const PhaseRows<float>& phase, float* to) {
        for (int64_t row = 0; row < phase.rows; ++row, from += from_stride, to += phase.row_pixels) {
            const auto pixels_at = [from](int64_t col) {
                const float* pairs = from + 2 * col + kOdd;
                return Simd::even(Simd::load_unaligned(pairs), Simd::load_unaligned(pairs + Simd::lanes));
            };
            int64_t col = 0;
            for (; col + Simd::lanes <= phase.cols; col += Simd::lanes) {
                Simd::store_unaligned(to + col, pixels_at(col));
            }
            if (col < phase.cols) {
                Simd::store_first(to + col, pixels_at(col), static_cast<int>(phase.cols - col));
            }
        }
    }
};

// One channel's phases, on the grid of the output, `outside` between their pixels; phase p begins at
// to + phases[p] * phase_pixels. A known step spares divisions.
template <class Rows, int64_t kStep, class Op, class Number>
void split_channel_by(const Op& op, Number outside, const Number* from, int64_t phase_pixels, Number* to) {
    const Planes &in = *op.input, &grid = *op.output;
    const int64_t step = kStep ? kStep : op.step, stride = step * in.row_pixels;
    for (int64_t phase = 0; phase < step * step; ++phase) {
        const int64_t top = phase / step, left = phase % step;
        const PhaseRows<Number> rows = {divide_up(in.rows - top, step), divide_up(in.cols - left, step), grid.row_pixels,
                                        grid.image_pixels, outside};
        if (op.phases[phase] < 0 || rows.cols < 1) {
            continue;
        }
        for (int64_t image = 0; image < in.images; ++image) {
            const Number* source = from + image * in.image_pixels + top * in.row_pixels;
            Number* target = to + op.phases[phase] * phase_pixels + image * grid.image_pixels;
            if (step == 2) {
                if (left == 0) {
                    Rows::template take_alternate<false>(source, stride, rows, target);
                } else {
                    Rows::template take_alternate<true>(source, stride, rows, target);
                }
                continue;
            }
            for (int64_t row = 0; row < rows.rows; ++row, source += stride, target += grid.row_pixels) {
                if (step == 1) {
                    std::memcpy(target, source, rows.cols * sizeof(Number));
                    continue;
                }
                for (int64_t col = 0; col < rows.cols; ++col) {
                    target[col] = source[col * step + left];
                }
            }
        }
    }
}

template <class Rows, class Op, class Number>
void split_channel(const Op& op, Number outside, const Number* from, int64_t phase_pixels, Number* to) {
    const auto split = op.step == 2 ? split_channel_by<Rows, 2, Op, Number> : split_channel_by<Rows, 0, Op, Number>;
    split(op, outside, from, phase_pixels, to);
}

template <class Rows, class Op, class Number>
void run_split(const Op& op, const Worker& worker, Number outside) {
    const Planes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        split_channel<Rows>(op, outside, worker.planes<const Number>(in) + channel * in.plane_pixels,
                            in.channels * out.plane_pixels, worker.planes<Number>(out) + channel * out.plane_pixels);
    });
}

// Depthwise and pools on one channel whose phases (or the plane itself, without a stride) begin at `input`.
template <class Simd>
void taps_of_channel(const Op& op, int64_t channel, const float* input, float* output) {
    const Planes& out = *op.output;
    const Activation<Simd> activate(op.tap_finish);
    const auto* valid = static_cast<const uint32_t*>(out.valid);
    if (op.kind == kDepthwise) {
        depthwise_channel<Simd>(op, channel, input, out.vectors, valid, output);
    } else if (op.kind == kMaxPool) {
        apply_taps<Simd>(LargestTap<Simd>{op.tap_offsets, op.taps}, activate, input, out.vectors, valid, output);
    } else {
        apply_taps<Simd>(MeanTap<Simd>{op.tap_offsets, op.taps, op.scale}, activate, input, out.vectors, valid, output);
    }
}

// Channel by channel through scratch: the phases of one channel stay in the nearest cache.
template <class Simd>
void run_taps(const Op& op, const Worker& worker) {
    const Planes &in = *op.input, &out = *op.output;
    const bool in_place = op.step == 1 && op.kind != kMaxPool;
    // Around a pool's input lies what can never be the largest; the pixels themselves are overwritten every time.
    const float around = op.kind == kMaxPool ? -INFINITY : 0.0f;
    if (!in_place) {
        for (int64_t i = 0; i < op.phase_planes * out.plane_pixels; ++i) {
            worker.scratch[i] = around;
        }
    }
    worker.share(in.channels, [&](int64_t channel) {
        const float* from = worker.planes(in) + channel * in.plane_pixels;
        if (!in_place) {
            split_channel<FloatRows<Simd>>(op, around, from, out.plane_pixels, worker.scratch + out.lead_pixels);
        }
        taps_of_channel<Simd>(op, channel, in_place ? from : worker.scratch + out.lead_pixels,
                              worker.planes(out) + channel * out.plane_pixels);
    });
}
