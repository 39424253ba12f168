// Operations on whole planes: in and out of the engine, sums, copies and means.
#pragma once

#include <cstring>

#include "common/arithmetic.h"
#include "finish.h"
#include "interface.h"
#include "worker.h"

// Calls visit(pixels inside, pixels outside) for every row of this worker's share of images and channels.
template <class Visit>
void for_each_row(const Planes& planes, const Worker& worker, const Visit& visit) {
    const int64_t outside_plane = planes.rows * planes.cols;
    worker.share(worker.images * planes.channels, [&](int64_t item) {
        const int64_t image = item / planes.channels, channel = item % planes.channels;
        float* inside = worker.planes(planes) + channel * planes.plane_floats + image * planes.image_floats;
        const int64_t outside = ((worker.first_image + image) * planes.channels + channel) * outside_plane;
        for (int64_t row = 0; row < planes.rows; ++row) {
            visit(inside + row * planes.row_floats, outside + row * planes.cols);
        }
    });
}

template <class Simd>
void run_load(const Op& op, const Worker& worker, const float* from) {
    const Planes& out = *op.output;
    for_each_row(out, worker, [&](float* inside, int64_t outside) {
        std::memcpy(inside, from + outside, out.cols * sizeof(float));
    });
}

template <class Simd>
void run_store(const Op& op, const Worker& worker, float* to) {
    const Planes& in = *op.input;
    for_each_row(in, worker, [&](const float* inside, int64_t outside) {
        std::memcpy(to + outside, inside, in.cols * sizeof(float));
    });
}

template <class Simd>
void run_add(const Op& op, const Worker& worker) {
    const Planes& out = *op.output;
    const Activation<Simd> activate(op.finish);
    worker.share(out.channels, [&](int64_t channel) {
        const float* a = worker.planes(*op.input) + channel * op.input->plane_floats;
        // without a second tensor this is an activation alone
        const float* b = op.other ? worker.planes(*op.other) + channel * op.other->plane_floats : nullptr;
        float* to = worker.planes(out) + channel * out.plane_floats;
        for (int64_t i = 0; i < out.vectors * Simd::lanes; i += Simd::lanes) {
            const auto value = b ? Simd::add(Simd::load(a + i), Simd::load(b + i)) : Simd::load(a + i);
            Simd::store(to + i, Simd::keep(activate(value), out.valid + i));
        }
    });
}

template <class Simd>
void run_copy(const Op& op, const Worker& worker) {
    const Planes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        std::memcpy(worker.planes(out) + (op.first_channel + channel) * out.plane_floats,
                    worker.planes(in) + channel * in.plane_floats, out.vectors * Simd::lanes * sizeof(float));
    });
}

template <class Simd>
void run_mean(const Op& op, const Worker& worker, float* to) {
    const Planes& in = *op.input;
    const float scale = 1.0f / static_cast<float>(in.rows * in.cols);
    worker.share(worker.images * in.channels, [&](int64_t item) {
        const int64_t image = item / in.channels, channel = item % in.channels;
        const float* from = worker.planes(in) + channel * in.plane_floats + image * in.image_floats;
        auto sum = Simd::zero();
        for (int64_t row = 0; row < in.rows; ++row, from += in.row_floats) {
            int64_t col = 0;
            for (; col + Simd::lanes <= in.cols; col += Simd::lanes) {
                sum = Simd::add(sum, Simd::load_unaligned(from + col));
            }
            if (col < in.cols) {
                sum = Simd::add(sum, Simd::load_first(from + col, static_cast<int>(in.cols - col)));
            }
        }
        to[(worker.first_image + image) * in.channels + channel] = Simd::sum(sum) * scale;
    });
}
