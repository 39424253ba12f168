// One pass over all pixels of a channels_last tensor, from a source to a sink: what stands alone of a batch norm.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "gather.h"
#include "interface.h"
#include "pixels.h"

// Pixels that one group of channels is taken through at a time: memory is read nearly in order, and a group's sums are
// moved between registers and cache once for all of them.
constexpr int64_t kSweepPixels = 4;
// Pixels whose sums are added up in float before they go to the doubles.
constexpr int64_t kFloatPixels = 64;

// Groups of neighbouring channels that a sweep works through together; what belongs to them stays in the first cache.
constexpr int64_t kSweepGroups = 64;

template <class Simd, class From, class To>
void sweep_pixels(int64_t begin, int64_t end, int64_t first_channel, int64_t last_channel, int64_t channels,
                  const From& from, const To& to, double* sums) {
    decltype(from.group(0, 0)) read[kSweepGroups];
    decltype(to.group(0, 0)) written[kSweepGroups];
    for (int64_t first = begin; first < end; first += kFloatPixels) {
        const int64_t last = smaller(first + kFloatPixels, end);
        for (int64_t channel = first_channel, group = 0; channel < last_channel; channel += Simd::lanes, ++group) {
            const int count = static_cast<int>(smaller(Simd::lanes, last_channel - channel));
            read[group] = from.group(channel, count);
            written[group] = to.group(channel, count);
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
            to.finish(written[group], channel, sums);
        }
    }
}

template <class Simd, class From, class To>
void sweep_slices(int64_t pixels, int64_t channels, const From& from, int64_t threads, int64_t slices, const To& to,
                  double* slice_sums) {
    const int64_t sums_per_slice = kSums * round_up(channels, Simd::lanes);
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
    for (int64_t slice = 0; slice < slices; ++slice) {
        double* sums = slice_sums == nullptr ? nullptr : slice_sums + slice * sums_per_slice;
        for (int64_t channel = 0; channel < channels; channel += kSweepGroups * Simd::lanes) {
            sweep_pixels<Simd>(share_begin(pixels, slices, slice), share_begin(pixels, slices, slice + 1), channel,
                               smaller(channel + kSweepGroups * Simd::lanes, channels), channels, from, to, sums);
        }
    }
}

template <class Simd>
void sweep(int64_t pixels, int64_t channels, const Source* source, int64_t threads, int64_t slices, const Sink* sink) {
    const auto run = [&](const auto& from, const auto& to, double* sums) {
        sweep_slices<Simd>(pixels, channels, from, threads, slices, to, sums);
    };
    with_sums<Simd>(*sink, slices, channels, [&](double* sums) {
        if (sink->kind == kStoreSink) {  // what only makes a tensor; a sink with sums takes a plain tensor
            const StoreSink<Simd> to{Target<Simd>(*sink)};
            const auto store = [&](const auto& from) { run(from, to, sums); };
            if (source->kind == kJoinedSource) {
                with_joined_source<Simd, false>(*source, store);
            } else if (source->kind == kJoinedActivatedSource) {
                with_joined_source<Simd, true>(*source, store);
            } else if (source->kind == kGradientSource) {
                store(gradient_source<Simd>(*source));
            } else {
                with_input<Simd>(*source, store);
            }
            return;
        }
        const PlainSource<Simd> from{elements<Simd>(source->tensor)};
        if (sink->kind == kStatisticsSink) {
            run(from, statistics_sink<Simd>(*sink, channels), sums);
        } else {
            with_gradient_sink<Simd>(*sink, channels, [&](const auto& to) { run(from, to, sums); });
        }
    });
}
