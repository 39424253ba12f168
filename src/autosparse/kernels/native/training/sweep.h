// One pass over all pixels of a tensor, from a source to a sink: what stands alone of a batch norm.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "interface.h"
#include "pixels.h"
#include "sinks.h"
#include "sums.h"

// Pixels that one group of channels is taken through at a time: memory is read nearly in order, and a group's sums are
// moved between registers and cache once for all of them.
constexpr int64_t kSweepPixels = 4;
// Pixels whose sums are added up in float before they go to the doubles.
constexpr int64_t kFloatPixels = 64;

// Groups of neighbouring channels that a sweep works through together; what belongs to them stays in the first cache.
constexpr int64_t kSweepGroups = 64;

template <class Simd, class From, class To>
void sweep_pixels(int64_t begin, int64_t end, int64_t first_channel, int64_t last_channel, int64_t channels,
                  const From& from, const To& to, const Sums& sums) {
    decltype(from.group(NeighbouringChannels())) read[kSweepGroups];
    decltype(to.group(NeighbouringChannels())) written[kSweepGroups];
    for (int64_t first = begin; first < end; first += kFloatPixels) {
        const int64_t last = smaller(first + kFloatPixels, end);
        for (int64_t channel = first_channel, group = 0; channel < last_channel; channel += Simd::lanes, ++group) {
            const int count = static_cast<int>(smaller(Simd::lanes, last_channel - channel));
            read[group] = from.group(NeighbouringChannels{channel, count});
            written[group] = to.group(NeighbouringChannels{channel, count});
        }
        for (int64_t pixel = first; pixel < last; pixel += kSweepPixels) {
            const int64_t pixels = smaller(kSweepPixels, last - pixel);
            for (int64_t channel = first_channel, group = 0; channel < last_channel; channel += Simd::lanes, ++group) {
                const int count = static_cast<int>(smaller(Simd::lanes, last_channel - channel));
                const auto coefficients = read[group];
                auto totals = written[group];
                int64_t place = pixel * channels + channel;
                if (count == Simd::lanes && pixels == kSweepPixels) {
                    for (int64_t each = 0; each < kSweepPixels; ++each, place += channels) {
                        to.put(totals, place, from.load(coefficients, place, Simd::lanes), Simd::lanes);
                    }
                } else {
                    for (int64_t each = 0; each < pixels; ++each, place += channels) {
                        to.put(totals, place, from.load(coefficients, place, count), count);
                    }
                }
                written[group] = totals;
            }
        }
        for (int64_t channel = first_channel, group = 0; channel < last_channel; channel += Simd::lanes, ++group) {
            to.finish(written[group], [&](int64_t kind, typename Simd::Vec value) { sums.add<Simd>(kind, channel, value); });
        }
    }
}

// Groups of channels [begin, end) of all rows, row by row, with images last; the vectors of source and sink fill a row.
template <class Simd, class Images, class From, class To>
void sweep_images(const Extent& extent, int64_t begin, int64_t end, const From& from, const To& to, const Sums& sums) {
    const int64_t run = extent.cols * extent.images, groups = divide_up(extent.channels, Simd::lanes);
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t first = unit % groups * Simd::lanes, last = smaller(first + Simd::lanes, extent.channels);
        TotalsOfImages<typename Simd::Float, To::kKinds> totals;
        for (int64_t channel = first; channel < last; ++channel) {
            const auto read = from.group(OneChannel{channel});
            auto written = to.group(OneChannel{channel});
            const int64_t start = (unit / groups * extent.channels + channel) * run;
            for (int64_t place = start; place < start + run; place += Images::lanes) {
                to.put(written, place, from.load(read, place, Images::lanes), Images::lanes);
            }
            to.finish(written, [&](int64_t kind, typename Images::Vec value) {
                totals.add(kind, channel - first, Images::folded(value));
            });
        }
        if (To::kKinds > 0) {
            totals.move_to(sums, first);
        }
    }
}

template <class Simd, class From, class To>
void sweep_slices(const Extent& extent, bool images_last, const From& from, int64_t threads, int64_t slices, const To& to,
                  const SliceSums& slice_sums) {
    using Images = typename Simd::Images;
    const int64_t channels = extent.channels, pixels = extent.images * extent.rows * extent.cols;
    const int64_t units = images_last ? extent.rows * divide_up(channels, Simd::lanes) : pixels;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
    for (int64_t slice = 0; slice < slices; ++slice) {
        const Sums sums = slice_sums.of(slice);
        const int64_t begin = share_begin(units, slices, slice), end = share_begin(units, slices, slice + 1);
        if (images_last) {
            if (extent.cols * extent.images % Images::lanes == 0) {
                sweep_images<Simd, Images>(extent, begin, end, from.template on<Images>(), to.template on<Images>(), sums);
            } else {
                sweep_images<Simd, Simd>(extent, begin, end, from, to, sums);
            }
            continue;
        }
        for (int64_t channel = 0; channel < channels; channel += kSweepGroups * Simd::lanes) {
            sweep_pixels<Simd>(begin, end, channel, smaller(channel + kSweepGroups * Simd::lanes, channels), channels, from, to, sums);
        }
    }
}

template <class Simd>
void sweep(const Extent* extent, int64_t images_last, const Source* source, int64_t threads, int64_t slices, const Sink* sink) {
    with_sums<Simd>(*sink, slices, extent->channels, [&](const SliceSums& sums) {
        const auto run = [&](const auto& from, const auto& to) {
            sweep_slices<Simd>(*extent, images_last != 0, from, threads, slices, to, sums);
        };
        if (sink->kind == kStoreSink) {  // what only makes a tensor; a sink with sums takes a plain tensor
            const StoreSink<Simd> to{Target<Simd>(*sink)};
            with_source<Simd>(*source, [&](const auto& from) { run(from, to); });
            return;
        }
        const PlainSource<Simd> from{elements<Simd>(source->tensor)};
        if (sink->kind == kStatisticsSink) {
            run(from, statistics_sink<Simd>(*sink));
        } else {
            with_gradient_sink<Simd>(*sink, [&](const auto& to) { run(from, to); });
        }
    });
}
