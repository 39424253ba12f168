// Operations on whole planes: in and out of the engine, sums, copies and means.
#pragma once

#include <cstring>

#include "common/arithmetic.h"
#include "finish.h"
#include "interface.h"
#include "worker.h"

// Calls visit(first pixel, number among the planes outside) for this worker's share of images and channels.
template <class Number, class Visit>
void for_each_plane(const Planes& planes, const Worker& worker, const Visit& visit) {
    worker.share(worker.images * planes.channels, [&](int64_t item) {
        const int64_t image = item / planes.channels, channel = item % planes.channels;
        visit(worker.planes<Number>(planes) + channel * planes.plane_pixels + image * planes.image_pixels,
              worker.first_image * planes.channels + item);
    });
}

// Calls visit(pixels inside, pixels outside) for every row of these planes.
template <class Number, class Visit>
void for_each_row(const Planes& planes, const Worker& worker, const Visit& visit) {
    for_each_plane<Number>(planes, worker, [&](Number* inside, int64_t outside) {
        for (int64_t row = 0; row < planes.rows; ++row) {
            visit(inside + row * planes.row_pixels, (outside * planes.rows + row) * planes.cols);
        }
    });
}

template <class Simd>
void run_load(const Op& op, const Worker& worker, const float* from) {
    const Planes& out = *op.output;
    for_each_row<float>(out, worker, [&](float* inside, int64_t outside) {
        std::memcpy(inside, from + outside, out.cols * sizeof(float));
    });
}

template <class Simd>
void run_store(const Op& op, const Worker& worker, float* to) {
    const Planes& in = *op.input;
    for_each_row<float>(in, worker, [&](const float* inside, int64_t outside) {
        std::memcpy(to + outside, inside, in.cols * sizeof(float));
    });
}

template <class Simd>
void run_add(const Op& op, const Worker& worker) {
    const Planes& out = *op.output;
    const Activation<Simd> activate(op.finish);
    const auto* valid = static_cast<const uint32_t*>(out.valid);
    worker.share(out.channels, [&](int64_t channel) {
        const float* a = worker.planes(*op.input) + channel * op.input->plane_pixels;
        // without a second tensor this is an activation alone
        const float* b = op.other ? worker.planes(*op.other) + channel * op.other->plane_pixels : nullptr;
        float* to = worker.planes(out) + channel * out.plane_pixels;
        for (int64_t i = 0; i < out.vectors * Simd::lanes; i += Simd::lanes) {
            const auto value = b ? Simd::add(Simd::load(a + i), Simd::load(b + i)) : Simd::load(a + i);
            Simd::store(to + i, Simd::keep(activate(value), valid + i));
        }
    });
}

template <class Simd>
void run_copy(const Op& op, const Worker& worker) {
    const Planes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        std::memcpy(worker.planes(out) + (op.first_channel + channel) * out.plane_pixels,
                    worker.planes(in) + channel * in.plane_pixels, out.vectors * Simd::lanes * sizeof(float));
    });
}

template <class Simd>
void run_mean(const Op& op, const Worker& worker, float* to) {
    const Planes& in = *op.input;
    const float scale = 1.0f / static_cast<float>(in.rows * in.cols);
    for_each_plane<const float>(in, worker, [&](const float* from, int64_t outside) {
        auto sum = Simd::zero();
        for (int64_t row = 0; row < in.rows; ++row, from += in.row_pixels) {
            int64_t col = 0;
            for (; col + Simd::lanes <= in.cols; col += Simd::lanes) {
                sum = Simd::add(sum, Simd::load_unaligned(from + col));
            }
            if (col < in.cols) {
                sum = Simd::add(sum, Simd::load_first(from + col, static_cast<int>(in.cols - col)));
            }
        }
        to[outside] = Simd::sum(sum) * scale;
    });
}
