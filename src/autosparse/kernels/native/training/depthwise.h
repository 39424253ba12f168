// Depthwise 3x3 convolutions with padding 1 and stride 1 or 2: dense, but with the same steps around them as the sparse
// ones. Channels are in the lanes; three rows of what is read are kept in a ring, made once by the source.
#pragma once

#include <omp.h>

#include <cstring>
#include <type_traits>

#include "common/arithmetic.h"
#include "interface.h"
#include "pixels.h"
#include "sinks.h"
#include "sums.h"

constexpr int64_t kTaps = 9, kRingRows = 3;
constexpr int64_t kBlockRows = 28;  // rows that one thread computes in a row: the two around them are read once more

// Three rows of pixels, each with a zero pixel at both ends and the channels in whole vectors.
template <class Simd>
class Ring {
public:
    Ring(float* memory, int64_t cols, int64_t channels)
        : memory_(memory), cols_(cols), channels_(channels), pitch_(round_up(channels, Simd::lanes)) {
        std::memset(memory, 0, size(cols, channels) * sizeof(float));
    }
    static int64_t size(int64_t cols, int64_t channels) { return kRingRows * (cols + 2) * round_up(channels, Simd::lanes); }

    // Row -1 and beyond are zero.
    const float* row(int64_t row) const { return memory_ + (row + kRingRows) % kRingRows * (cols_ + 2) * pitch_; }

    // Fills rows [first, last] that are not there yet; `rows` is how many the tensor has, `image` its first place.
    template <class From>
    void fill(const From& from, int64_t image, int64_t first, int64_t last, int64_t rows) {
        for (int64_t each = first > filled_ ? first : filled_ + 1; each <= last; ++each) {
            float* to = const_cast<float*>(row(each)) + pitch_;
            if (each < 0 || each >= rows) {
                std::memset(to, 0, cols_ * pitch_ * sizeof(float));
            } else {
                read(from, image + each * cols_ * channels_, to);
            }
            filled_ = each;
        }
    }

private:
    template <class From>
    void read(const From& from, int64_t place, float* to) const {
        for (int64_t col = 0; col < cols_; ++col, place += channels_, to += pitch_) {
            for (int64_t channel = 0; channel < channels_; channel += Simd::lanes) {
                const int count = static_cast<int>(smaller(Simd::lanes, channels_ - channel));
                Simd::store(to + channel, from.load(from.group(NeighbouringChannels{channel, count}), place + channel, count));
            }
        }
    }

    float* memory_;
    int64_t cols_, channels_, pitch_;
    int64_t filled_ = INT64_MIN / 2;
};

// Fetches the row after the present one while that is computed, a vector for every pixel and group of channels. A group is
// read and written at single places far apart, which the processor does not foresee; fetched ahead, the next row is read
// from end to end. The last group of a row may reach beyond the tensor: fetching does no harm there.
template <class Simd>
class NextRow {
public:
    NextRow(const typename Simd::Element* row, int64_t cols, int64_t channels, int64_t channel) : share_(row + cols * (channels + channel)) {}
    void fetch_to_read(int64_t col) const { __builtin_prefetch(share_ + col * Simd::lanes, 0); }
    void fetch_to_write(int64_t col) const { __builtin_prefetch(share_ + col * Simd::lanes, 1); }

private:
    const typename Simd::Element* share_;
};

// Scratch: the weight by taps, and for every thread a ring and the sums of a block's weight gradient.
template <class Simd>
struct DepthwiseScratch {
    int64_t weight, ring;

    DepthwiseScratch(const Depthwise& shape)
        : weight(kTaps * round_up(shape.channels, Simd::lanes)),
          ring(Ring<Simd>::size(shape.in_cols > shape.out_cols ? shape.in_cols : shape.out_cols, shape.channels)) {}
    float* of_thread(float* scratch, int64_t thread) const { return scratch + weight + thread * (ring + weight); }
    int64_t total(int64_t threads) const { return weight + threads * (ring + weight); }
};

template <class Simd>
int64_t depthwise_scratch(const Depthwise* shape, int64_t threads) {
    return DepthwiseScratch<Simd>(*shape).total(threads);
}

// [channels][9] to [9][channels in whole vectors].
template <class Simd>
void turn_weight(const float* weight, int64_t channels, float* turned) {
    const int64_t pitch = round_up(channels, Simd::lanes);
    std::memset(turned, 0, kTaps * pitch * sizeof(float));
    for (int64_t channel = 0; channel < channels; ++channel) {
        for (int64_t tap = 0; tap < kTaps; ++tap) {
            turned[tap * pitch + channel] = weight[channel * kTaps + tap];
        }
    }
}

// Calls work(image, first row, last row + 1, slice, thread) for every block of rows, slice by slice.
template <class Work>
void for_row_blocks(int64_t images, int64_t rows, int64_t threads, int64_t slices, const Work& work) {
    const int64_t blocks = divide_up(rows, kBlockRows), units = images * blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads))
    for (int64_t slice = 0; slice < slices; ++slice) {
        for (int64_t unit = share_begin(units, slices, slice); unit < share_begin(units, slices, slice + 1); ++unit) {
            const int64_t first = unit % blocks * kBlockRows;
            work(unit / blocks, first, smaller(first + kBlockRows, rows), slice, omp_get_thread_num());
        }
    }
}

// One row of results for one group of channels; `rows` are the three rows of the input, `input_row` the last of them in the
// tensor.
template <class Simd, class To>
void depthwise_row(const Depthwise& shape, const float* const* rows, const float* weight, int64_t channel, int64_t place,
                   const typename Simd::Element* input_row, const To& to, const Sums& sums) {
    using Vec = typename Simd::Vec;
    const int64_t pitch = round_up(shape.channels, Simd::lanes);
    const NextRow<Simd> next_input(input_row, shape.in_cols, shape.channels, channel);
    const NextRow<Simd> next_output(to.target.memory + place, shape.out_cols, shape.channels, channel);
    place += channel;
    const int count = static_cast<int>(smaller(Simd::lanes, shape.channels - channel));
    Vec taps[kTaps];
    for (int tap = 0; tap < kTaps; ++tap) {
        taps[tap] = Simd::load(weight + tap * pitch + channel);
    }
    auto group = to.group(NeighbouringChannels{channel, count});
    for (int64_t col = 0; col < shape.out_cols; ++col, place += shape.channels) {
        if (shape.stride == 1) {  // else the ring takes two rows at a time, from end to end
            next_input.fetch_to_read(col);
        }
        if (!to.target.streams) {
            next_output.fetch_to_write(col);
        }
        const int64_t at = col * shape.stride * pitch + channel;
        Vec parts[3] = {Simd::zero(), Simd::zero(), Simd::zero()};
        for (int across = 0; across < 3; ++across) {
            for (int down = 0; down < 3; ++down) {
                parts[down] = Simd::multiply_add(taps[down * 3 + across], Simd::load(rows[down] + at + across * pitch), parts[down]);
            }
        }
        to.put(group, place, Simd::add(parts[0], Simd::add(parts[1], parts[2])), count);
    }
    to.finish(group, [&](int64_t kind, Vec value) { sums.add<Simd>(kind, channel, value); });
}

template <class Simd>
void depthwise_forward(const Depthwise* given, const Source* source, const float* weight, int64_t threads, int64_t slices,
                       float* scratch, const Sink* sink) {
    const Depthwise shape = *given;
    const DepthwiseScratch<Simd> sizes(shape);
    turn_weight<Simd>(weight, shape.channels, scratch);
    const auto to = statistics_sink<Simd>(*sink);
    with_sums<Simd>(*sink, slices, shape.channels, [&](const SliceSums& slice_sums) {
        with_input<Simd>(*source, [&](const auto& from) {
            for_row_blocks(shape.images, shape.out_rows, threads, slices, [&](int64_t image, int64_t first, int64_t end, int64_t slice, int thread) {
                Ring<Simd> ring(sizes.of_thread(scratch, thread), shape.in_cols, shape.channels);
                const int64_t input = image * shape.in_rows * shape.in_cols * shape.channels;
                for (int64_t row = first; row < end; ++row) {
                    const int64_t top = row * shape.stride - 1;
                    ring.fill(from, input, top, top + 2, shape.in_rows);
                    const typename Simd::Element* last_row = from.tensor + input + (top + 2) * shape.in_cols * shape.channels;
                    const float* rows[3] = {ring.row(top), ring.row(top + 1), ring.row(top + 2)};
                    const int64_t place = (image * shape.out_rows + row) * shape.out_cols * shape.channels;
                    for (int64_t channel = 0; channel < shape.channels; channel += Simd::lanes) {
                        depthwise_row<Simd>(shape, rows, scratch, channel, place, last_row, to, slice_sums.of(slice));
                    }
                }
            });
        });
    });
}

// One row of the input's gradient, for one group of channels; that row's share of the weight's gradient is added to `shares`,
// [9][channels in whole vectors]. `kDown` rows of the output's gradient reach it, through the rows of the kernel that
// `downs` lists.
template <class Simd, int kStride, int kDown, class Input, class To>
void depthwise_gradient_row(const Depthwise& shape, const float* const* rows, const int* downs, const float* weight,
                            int64_t channel, int64_t place, const Input& input, const To& to, const Sums& sums, float* shares) {
    using Vec = typename Simd::Vec;
    const int64_t pitch = round_up(shape.channels, Simd::lanes);
    const NextRow<Simd> next_input(input.tensor + place, shape.in_cols, shape.channels, channel);
    const NextRow<Simd> next_target(to.target.memory + place, shape.in_cols, shape.channels, channel);
    place += channel;
    const int count = static_cast<int>(smaller(Simd::lanes, shape.channels - channel));
    Vec taps[kDown][3], products[kDown][3];
    for (int down = 0; down < kDown; ++down) {
        for (int across = 0; across < 3; ++across) {
            taps[down][across] = Simd::load(weight + (downs[down] * 3 + across) * pitch + channel);
            products[down][across] = Simd::load(shares + (downs[down] * 3 + across) * pitch + channel);
        }
    }
    const auto read = input.group(NeighbouringChannels{channel, count});
    auto group = to.group(NeighbouringChannels{channel, count});
    // Column `across` of the kernel leads from input column col to output column (col + 1 - across) / stride.
    const auto pixel = [&](int64_t col, auto first_across) {
        const Vec value = input.load(read, place + col * shape.channels, count);
        next_input.fetch_to_read(col);
        if (!to.target.streams) {
            next_target.fetch_to_write(col);
        }
        Vec parts[kDown];
        for (int down = 0; down < kDown; ++down) {
            parts[down] = Simd::zero();
        }
        for (int across = decltype(first_across)::value; across < 3; across += kStride) {
            const int64_t at = ((col + 1 - across) / kStride + 1) * pitch + channel;
            for (int down = 0; down < kDown; ++down) {
                const Vec grad = Simd::load(rows[down] + at);
                parts[down] = Simd::multiply_add(taps[down][across], grad, parts[down]);
                products[down][across] = Simd::multiply_add(value, grad, products[down][across]);
            }
        }
        Vec total = parts[0];
        for (int down = 1; down < kDown; ++down) {
            total = Simd::add(total, parts[down]);
        }
        to.put(group, place + col * shape.channels, total, count);
    };
    if constexpr (kStride == 1) {
        for (int64_t col = 0; col < shape.in_cols; ++col) {
            pixel(col, std::integral_constant<int, 0>());
        }
    } else {
        for (int64_t col = 0; col + 1 < shape.in_cols; col += 2) {
            pixel(col, std::integral_constant<int, 1>());
            pixel(col + 1, std::integral_constant<int, 0>());
        }
        if (shape.in_cols % 2 == 1) {
            pixel(shape.in_cols - 1, std::integral_constant<int, 1>());
        }
    }
    to.finish(group, [&](int64_t kind, Vec value) { sums.add<Simd>(kind, channel, value); });
    for (int down = 0; down < kDown; ++down) {
        for (int across = 0; across < 3; ++across) {
            Simd::store(shares + (downs[down] * 3 + across) * pitch + channel, products[down][across]);
        }
    }
}

template <class Simd>
void depthwise_gradients(const Depthwise* given, const Source* input_source, const Source* grad_output, const float* weight,
                         int64_t threads, int64_t slices, float* scratch, const Sink* sink, double* weight_sums,
                         float* weight_gradient) {
    const Depthwise shape = *given;
    const int64_t pitch = round_up(shape.channels, Simd::lanes);
    const DepthwiseScratch<Simd> sizes(shape);
    turn_weight<Simd>(weight, shape.channels, scratch);
    std::memset(weight_sums, 0, slices * kTaps * pitch * sizeof(double));
    const auto grad = gradient_source<Simd>(*grad_output);
    with_sums<Simd>(*sink, slices, shape.channels, [&](const SliceSums& slice_sums) {
        with_input_and_sink<Simd>(*input_source, *sink, [&](const auto& input, const auto& to) {
            for_row_blocks(shape.images, shape.in_rows, threads, slices, [&](int64_t image, int64_t first, int64_t end, int64_t slice, int thread) {
                float* own = sizes.of_thread(scratch, thread);
                Ring<Simd> ring(own, shape.out_cols, shape.channels);
                float* shares = own + sizes.ring;
                std::memset(shares, 0, kTaps * pitch * sizeof(float));
                const int64_t from = image * shape.out_rows * shape.out_cols * shape.channels;
                const Sums sums = slice_sums.of(slice);
                for (int64_t row = first; row < end; ++row) {
                    const int64_t place = (image * shape.in_rows + row) * shape.in_cols * shape.channels;
                    const auto run = [&](auto stride, auto count, const float* const* rows, const int* downs) {
                        for (int64_t channel = 0; channel < shape.channels; channel += Simd::lanes) {
                            depthwise_gradient_row<Simd, decltype(stride)::value, decltype(count)::value>(
                                shape, rows, downs, scratch, channel, place, input, to, sums, shares);
                        }
                    };
                    using One = std::integral_constant<int, 1>;
                    using Two = std::integral_constant<int, 2>;
                    using Three = std::integral_constant<int, 3>;
                    if (shape.stride == 1) {
                        ring.fill(grad, from, row - 1, row + 1, shape.out_rows);
                        const float* rows[3] = {ring.row(row + 1), ring.row(row), ring.row(row - 1)};
                        const int downs[3] = {0, 1, 2};
                        run(One(), Three(), rows, downs);
                    } else if (row % 2 == 0) {
                        ring.fill(grad, from, row / 2, row / 2, shape.out_rows);
                        const float* rows[1] = {ring.row(row / 2)};
                        const int downs[1] = {1};
                        run(Two(), One(), rows, downs);
                    } else {
                        ring.fill(grad, from, row / 2, row / 2 + 1, shape.out_rows);
                        const float* rows[2] = {ring.row(row / 2 + 1), ring.row(row / 2)};
                        const int downs[2] = {0, 2};
                        run(Two(), Two(), rows, downs);
                    }
                }
                for (int64_t each = 0; each < kTaps * pitch; each += Simd::lanes) {
                    Simd::add_to(weight_sums + slice * kTaps * pitch + each, Simd::load(shares + each));
                }
            });
        });
    });
    for (int64_t slice = 1; slice < slices; ++slice) {
        for (int64_t each = 0; each < kTaps * pitch; ++each) {
            weight_sums[each] += weight_sums[slice * kTaps * pitch + each];
        }
    }
    for (int64_t channel = 0; channel < shape.channels; ++channel) {
        for (int64_t tap = 0; tap < kTaps; ++tap) {
            weight_gradient[channel * kTaps + tap] = static_cast<float>(weight_sums[tap * pitch + channel]);
        }
    }
}
