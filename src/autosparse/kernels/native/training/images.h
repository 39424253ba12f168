// Tiles of tensors with images last, [row][channel][column][image]: a lane is an image, so that a channel's pixels go into a
// packed tile as they lie. All that is needed later is fetched meanwhile: the stretches are too short for the processor to
// foresee them.
#pragma once

#include <cstring>

#include "common/arithmetic.h"
#include "pixels.h"
#include "sums.h"
#include "tile.h"
#include "tile_kernels.h"

// Channels ahead whose pixels are fetched; at the end of a tile those of the next one.
constexpr int64_t kChannelsAhead = 16;

template <class Simd>
int64_t elements_ahead(const Lanes<Simd>& lanes, int64_t channel, int64_t channels) {
    const int64_t further = channel + kChannelsAhead;
    return kChannelsAhead * lanes.channel_pitch + (further < channels ? 0 : lanes.next_tile - channels * lanes.channel_pitch);
}

// One channel of one row: columns [first, end), which lie together in memory and in the tile.
template <class Simd, class From, class Group, class WideGroup>
void pack_run(const From& from, const Group& group, const WideGroup& wide_group, int64_t place, int64_t ahead, int64_t first,
              int64_t end, typename Simd::Cell* to) {
    using Images = typename Simd::Images;
    const auto wide = from.template on<Images>();
    int64_t at = first * Simd::lanes;
    const int64_t stop = end * Simd::lanes;
    for (; at + Images::lanes <= stop; at += Images::lanes) {
        wide.fetch(place + at + ahead);
        Images::store_unaligned(to + at, wide.load(wide_group, place + at, Images::lanes));
    }
    if (at < stop) {
        from.fetch(place + at + ahead);
        Simd::store_unaligned(to + at, from.load(group, place + at, Simd::lanes));
    }
}

// Puts channels [begin, end) out of `channels` of the window's pixels, as the source gives them, into a tile.
template <class Simd, class From>
void pack_images(const Lanes<Simd>& lanes, const Window& window, const From& from, int64_t begin, int64_t end,
                 int64_t channels, int64_t stride, typename Simd::Cell* tile) {
    constexpr int width = Simd::lanes;
    const auto wide = from.template on<typename Simd::Images>();
    const bool is_run = window.col_step == 1 && lanes.col_pitch == width;
    const int64_t slots_per_remainder = window.slots_per_row / window.col_step;
    const int64_t first = smaller(lanes.first_col_inside(), window.cols);
    const int64_t last = larger(lanes.end_col_inside(window.cols), first);
    const auto clear = [](typename Simd::Cell* row, int64_t from_slot, int64_t to_slot) {
        std::memset(row + from_slot * width, 0, (to_slot - from_slot) * width * sizeof(typename Simd::Cell));
    };
    for (int64_t channel = begin; channel < end; ++channel, tile += stride) {
        const auto group = from.group(OneChannel{channel});
        const auto wide_group = wide.group(OneChannel{channel});
        const int64_t ahead = elements_ahead(lanes, channel, channels);
        for (int64_t i = 0; i < window.rows; ++i) {
            if (window.used_rows != nullptr && !window.used_rows[i]) {
                continue;
            }
            typename Simd::Cell* row = tile + i * window.slots_per_row * width;
            const int64_t place = lanes.offset[0] + channel * lanes.channel_pitch + i * lanes.row_pitch;
            if (!lanes.row_is_inside(i)) {
                clear(row, 0, window.slots_per_row);
            } else if (is_run) {
                clear(row, 0, first);
                pack_run<Simd>(from, group, wide_group, place, ahead, first, last, row);
                clear(row, last, window.cols);
            } else {
                for (int64_t j = 0; j < window.cols; ++j) {
                    if (window.used_cols != nullptr && !window.used_cols[j]) {
                        continue;
                    }
                    const int64_t slot = j % window.col_step * slots_per_remainder + j / window.col_step;
                    if (j < first || j >= last) {
                        clear(row, slot, slot + 1);
                        continue;
                    }
                    const int64_t pixel = place + j * lanes.col_pitch;
                    from.fetch(pixel + ahead);
                    Simd::store_unaligned(row + slot * width, from.load(group, pixel, width));
                }
            }
        }
    }
}

// Gives channels [begin, begin + count) out of `channels`, count <= lanes, of staged sums to the sink.
template <class Simd, class To>
void unpack_images(const Lanes<Simd>& lanes, int64_t rows, int64_t cols, const float* staged, int64_t begin, int count,
                   int64_t channels, const To& to, TotalsOfImages<typename Simd::Float, To::kKinds>& totals) {
    using Images = typename Simd::Images;
    using Staged = StagedSums<typename Simd::Multiplier>;
    constexpr int width = Simd::lanes, step = Images::lanes / width;
    const auto wide = to.template on<Images>();
    const int64_t staged_channel = rows * Staged::columns(cols) * width;
    const int64_t end = lanes.end_col_inside(cols);
    const int64_t end_of_runs = lanes.col_pitch == width ? end - end % step : 0;
    for (int each = 0; each < count; ++each, staged += staged_channel) {
        const int64_t channel = begin + each, ahead = elements_ahead(lanes, channel, channels);
        auto group = to.group(OneChannel{channel});
        auto wide_group = wide.group(OneChannel{channel});
        for (int64_t i = 0; i < rows && lanes.row_is_inside(i); ++i) {
            const int64_t place = lanes.offset[0] + channel * lanes.channel_pitch + i * lanes.row_pitch;
            int64_t j = 0;
            for (; j < end_of_runs; j += step) {
                wide.fetch(place + j * width + ahead);
                wide.put(wide_group, place + j * width, Staged::run(staged, i, j, cols), Images::lanes);
            }
            for (; j < end; ++j) {
                to.fetch(place + j * lanes.col_pitch + ahead);
                to.put(group, place + j * lanes.col_pitch, Staged::pixel(staged, i, j, cols), width);
            }
        }
        to.finish(group, [&](int64_t kind, typename Simd::Vec value) { totals.add(kind, each, value); });
        wide.finish(wide_group, [&](int64_t kind, typename Images::Vec value) { totals.add(kind, each, Images::folded(value)); });
    }
}
