// Tiles: which pixels the lanes of a tile stand for, and the way from a tensor with channels last into a packed tile and
// back; for images last, where lanes are images, see images.h.
//
// A packed tile is [channel][slot][lane]: a slot is one input pixel of the window, lane l holds that pixel of site l. The
// columns of a window row are ordered by their remainder modulo the column step, so that output pixels which are
// neighbours read slots which are neighbours, whatever the stride.
#pragma once

#include "common/arithmetic.h"
#include "interface.h"
#include "pixels.h"
#include "sums.h"
#include "tile_kernels.h"

// The pixels (row[l] + i, col[l] + j * col_stride) of a tensor, as seen from the lanes of a tile. Pixels outside the
// limits are padding, or lie beyond the edge of a patch that sticks out.
template <class Simd>
struct Lanes {
    int32_t row[Simd::lanes], col[Simd::lanes];
    int64_t offset[Simd::lanes];  // of pixel (0, 0), in elements; meaningful only where pixels are inside
    int32_t row_limit, col_limit;
    int32_t col_stride;
    int64_t row_pitch, col_pitch, channel_pitch;  // elements from i to i + 1, from j to j + 1, from channel to channel
    int64_t next_tile;  // images last: elements from a pixel to the same one of the next tile

    uint32_t rows_inside(int64_t i) const { return inside(row, static_cast<int32_t>(i), row_limit); }
    uint32_t cols_inside(int64_t j) const { return inside(col, static_cast<int32_t>(j) * col_stride, col_limit); }

    // Whether a whole rectangle of pixels is inside for every lane: its corners are.
    bool all_inside(int64_t rows, int64_t cols) const {
        return (rows_inside(0) & rows_inside(rows - 1) & cols_inside(0) & cols_inside(cols - 1)) == kAllLanes;
    }

    // With images last all lanes are at the same pixel, and one of them tells of all.
    bool row_is_inside(int64_t i) const { return row[0] + i >= 0 && row[0] + i < row_limit; }
    int64_t first_col_inside() const { return col[0] < 0 ? -col[0] : 0; }
    int64_t end_col_inside(int64_t cols) const { return smaller(cols, col_limit - col[0]); }

    // The same lanes from another pixel of the tile on.
    Lanes from_pixel(int64_t i, int64_t j) const {
        Lanes lanes = *this;
        lanes.row[0] += static_cast<int32_t>(i);
        lanes.col[0] += static_cast<int32_t>(j);
        lanes.offset[0] += i * row_pitch + j * col_pitch;
        return lanes;
    }

    static constexpr uint32_t kAllLanes = static_cast<uint32_t>((uint64_t{1} << Simd::lanes) - 1);

private:
    // Bit l is set where 0 <= first[l] + step < limit.
    static uint32_t inside(const int32_t* first, int32_t step, int32_t limit) {
        uint32_t bits = 0;
        for (int lane = 0; lane < Simd::lanes; ++lane) {
            bits |= static_cast<uint32_t>(static_cast<uint32_t>(first[lane] + step) < static_cast<uint32_t>(limit)) << lane;
        }
        return bits;
    }
};

static inline int64_t count_tiles(const Pass& pass, int64_t lanes) {
    const int64_t sites = pass.images * pass.patches_down * pass.patches_across;
    return divide_up(sites, lanes) * divide_up(pass.patch_rows, pass.tile_rows) * divide_up(pass.patch_cols, pass.tile_cols);
}

// Where a tile begins in its patch, and the site of its first lane. With images last the groups of images that share
// pixels follow each other, as they do in memory.
struct TileStart {
    int64_t row, col, site;
};

static inline TileStart start_of(const Pass& pass, int64_t tile, int64_t lanes) {
    const int64_t across = divide_up(pass.patch_cols, pass.tile_cols), down = divide_up(pass.patch_rows, pass.tile_rows);
    if (pass.images_last != 0) {
        const int64_t groups = divide_up(pass.images, lanes);
        return {tile / groups / across * pass.tile_rows, tile / groups % across * pass.tile_cols, tile % groups * lanes};
    }
    return {tile / across % down * pass.tile_rows, tile % across * pass.tile_cols, tile / across / down * lanes};
}

// The first grid pixel of every lane in one tile, and how much of the tile lies inside the patch.
template <class Simd>
struct TilePlace {
    int64_t image[Simd::lanes];  // -1: no site for this lane
    int64_t row[Simd::lanes], col[Simd::lanes];
    int64_t rows, cols;
    TileStart start, next;  // of this tile and of the one after it
};

template <class Simd>
TilePlace<Simd> place_tile(const Pass& pass, int64_t tile) {
    TilePlace<Simd> place;
    place.start = start_of(pass, tile, Simd::lanes);
    place.next = start_of(pass, tile + 1, Simd::lanes);
    place.rows = smaller(pass.tile_rows, pass.patch_rows - place.start.row);
    place.cols = smaller(pass.tile_cols, pass.patch_cols - place.start.col);
    // Counted up from lane to lane: divisions for every lane would cost as much as a small tile.
    int64_t across = place.start.site % pass.patches_across;
    int64_t down = place.start.site / pass.patches_across % pass.patches_down;
    int64_t image = place.start.site / pass.patches_across / pass.patches_down;
    for (int lane = 0; lane < Simd::lanes; ++lane) {
        place.image[lane] = image < pass.images ? image : -1;
        place.row[lane] = down * pass.patch_rows + place.start.row;
        place.col[lane] = across * pass.site_step + place.start.col * pass.pixel_step;
        if (++across == pass.patches_across) {
            across = 0;
            if (++down == pass.patches_down) {
                down = 0;
                ++image;
            }
        }
    }
    return place;
}

// Far enough below zero that no step of a tile brings it inside.
constexpr int32_t kNowhere = INT32_MIN / 2;

// Where the pixels of a tensor lie: elements from a row to the next one, and so on.
struct Pitches {
    int64_t image, row, col, channel;
};

static inline Pitches pitches_of(const Pass& pass, int64_t rows, int64_t cols, int64_t channels) {
    if (pass.images_last != 0) {
        return {1, channels * cols * pass.images, pass.images, cols * pass.images};
    }
    return {rows * cols * channels, cols * channels, channels, 1};
}

template <class Simd>
Lanes<Simd> input_lanes(const Pass& pass, const TilePlace<Simd>& place) {
    const Pitches pitches = pitches_of(pass, pass.in_rows, pass.in_cols, pass.in_channels);
    Lanes<Simd> lanes;
    lanes.row_limit = static_cast<int32_t>(pass.in_rows);
    lanes.col_limit = static_cast<int32_t>(pass.in_cols);
    lanes.col_stride = static_cast<int32_t>(pass.pixel_step);
    lanes.row_pitch = pitches.row;
    lanes.col_pitch = pass.pixel_step * pitches.col;
    lanes.channel_pitch = pitches.channel;
    for (int lane = 0; lane < Simd::lanes; ++lane) {
        const int64_t row = place.row[lane] * pass.in_row_step + pass.in_first_row;
        const int64_t col = place.col[lane] * pass.in_col_step + pass.in_first_col;
        const bool exists = place.image[lane] >= 0;
        lanes.row[lane] = exists ? static_cast<int32_t>(row) : kNowhere;
        lanes.col[lane] = exists ? static_cast<int32_t>(col) : kNowhere;
        lanes.offset[lane] = place.image[lane] * pitches.image + row * pitches.row + col * pitches.col;
    }
    lanes.next_tile = (place.next.row - place.start.row) * pass.in_row_step * pitches.row +
                      (place.next.col - place.start.col) * pass.in_col_step * pitches.col + place.next.site - place.start.site;
    return lanes;
}

// Counted in grid pixels, which is where the limits are.
template <class Simd>
Lanes<Simd> output_lanes(const Pass& pass, const TilePlace<Simd>& place) {
    const Pitches pitches = pitches_of(pass, pass.out_rows, pass.out_cols, pass.out_channels);
    Lanes<Simd> lanes;
    lanes.row_limit = static_cast<int32_t>(pass.grid_rows);
    lanes.col_limit = static_cast<int32_t>(pass.grid_cols);
    lanes.col_stride = static_cast<int32_t>(pass.pixel_step);
    lanes.row_pitch = pass.out_row_step * pitches.row;
    lanes.col_pitch = pass.out_col_step * pass.pixel_step * pitches.col;
    lanes.channel_pitch = pitches.channel;
    for (int lane = 0; lane < Simd::lanes; ++lane) {
        const int64_t row = place.row[lane] * pass.out_row_step + pass.out_first_row;
        const int64_t col = place.col[lane] * pass.out_col_step + pass.out_first_col;
        const bool exists = place.image[lane] >= 0;
        lanes.row[lane] = exists ? static_cast<int32_t>(place.row[lane]) : kNowhere;
        lanes.col[lane] = exists ? static_cast<int32_t>(place.col[lane]) : kNowhere;
        lanes.offset[lane] = place.image[lane] * pitches.image + row * pitches.row + col * pitches.col;
    }
    lanes.next_tile = (place.next.row - place.start.row) * pass.out_row_step * pitches.row +
                      (place.next.col - place.start.col) * pass.out_col_step * pitches.col + place.next.site - place.start.site;
    return lanes;
}

// The pixels that a tile holds and the order of its slots.
struct Window {
    int64_t rows, cols;
    int64_t slots_per_row, col_step;
    const uint8_t* used_rows;  // null: all
    const uint8_t* used_cols;
};

static inline Window input_window(const Pass& pass, int64_t rows, int64_t cols) {
    return {pass.window_rows - (pass.tile_rows - rows) * pass.in_row_step,
            pass.window_cols - (pass.tile_cols - cols) * pass.in_col_step,
            pass.slots_per_row,
            pass.in_col_step,
            pass.used_rows,
            pass.used_cols};
}

// Floats between neighbouring channels of a packed input tile.
static inline int64_t channel_stride(const Pass& pass, int64_t lanes) {
    return pass.window_rows * pass.slots_per_row * lanes;
}

// Puts channels [begin, end) of the window's pixels, as the source gives them, into a tile; zero for pixels outside.
template <class Simd, class From>
void pack_channels(const Lanes<Simd>& lanes, const Window& window, const From& from, int64_t begin, int64_t end,
                   int64_t stride, typename Simd::Cell* tile) {
    constexpr int width = Simd::lanes;
    const int64_t slots_per_remainder = window.slots_per_row / window.col_step;
    const bool all_inside = lanes.all_inside(window.rows, window.cols);
    for (int64_t i = 0; i < window.rows; ++i) {
        if (window.used_rows != nullptr && !window.used_rows[i]) {
            continue;
        }
        const uint32_t rows_inside = lanes.rows_inside(i);
        int64_t quotient = 0, remainder = 0;  // of the next j by the column step
        for (int64_t j = 0; j < window.cols; ++j) {
            const int64_t slot = i * window.slots_per_row + remainder * slots_per_remainder + quotient;
            if (++remainder == window.col_step) {
                remainder = 0;
                ++quotient;
            }
            if (window.used_cols != nullptr && !window.used_cols[j]) {
                continue;
            }
            const uint32_t inside = all_inside ? Lanes<Simd>::kAllLanes : rows_inside & lanes.cols_inside(j);
            const int64_t pixel = i * lanes.row_pitch + j * lanes.col_pitch;
            typename Simd::Cell* to = tile + slot * width;
            for (int64_t channel = begin; channel < end; channel += width, to += width * stride) {
                const int count = static_cast<int>(smaller(width, end - channel));
                typename Simd::Vec rows[width];
                const auto group = from.group(NeighbouringChannels{channel, count});
                if (inside == Lanes<Simd>::kAllLanes && count == width) {
                    for (int lane = 0; lane < width; ++lane) {
                        rows[lane] = from.load(group, lanes.offset[lane] + pixel + channel, width);
                    }
                } else {
                    for (int lane = 0; lane < width; ++lane) {
                        const bool exists = inside >> lane & 1;
                        rows[lane] = exists ? from.load(group, lanes.offset[lane] + pixel + channel, count) : Simd::zero();
                    }
                }
                Simd::transpose(rows);
                for (int each = 0; each < count; ++each) {
                    Simd::store(to + each * stride, rows[each]);
                }
            }
        }
    }
}

// Gives channels [begin, begin + count), count <= lanes, of [channel][pixel][lane] to the sink, pixel by pixel.
template <class Simd, class To>
void unpack_channels(const Lanes<Simd>& lanes, int64_t tile_rows, int64_t tile_cols, const float* staged, int64_t begin,
                     int count, const To& to, const Sums& sums) {
    using Multiplier = typename Simd::Multiplier;
    constexpr int width = Simd::lanes;
    const int64_t staged_channel = tile_rows * StagedSums<Multiplier>::columns(tile_cols) * width;
    const bool all_inside = lanes.all_inside(tile_rows, tile_cols);
    auto group = to.group(NeighbouringChannels{begin, count});
    for (int64_t i = 0; i < tile_rows; ++i) {
        const uint32_t rows_inside = lanes.rows_inside(i);
        for (int64_t j = 0; j < tile_cols; ++j) {
            const uint32_t inside = all_inside ? Lanes<Simd>::kAllLanes : rows_inside & lanes.cols_inside(j);
            const int64_t pixel = i * lanes.row_pitch + j * lanes.col_pitch + begin;
            typename Simd::Vec rows[width];
            for (int each = 0; each < width; ++each) {
                rows[each] = StagedSums<Multiplier>::pixel(staged + each * staged_channel, i, j, tile_cols);
            }
            Simd::transpose(rows);
            if (inside == Lanes<Simd>::kAllLanes && count == width) {
                for (int lane = 0; lane < width; ++lane) {
                    to.put(group, lanes.offset[lane] + pixel, rows[lane], width);
                }
                continue;
            }
            for (int lane = 0; lane < width; ++lane) {
                if (inside >> lane & 1) {
                    to.put(group, lanes.offset[lane] + pixel, rows[lane], count);
                }
            }
        }
    }
    to.finish(group, [&](int64_t kind, typename Simd::Vec value) { sums.add<Simd>(kind, begin, value); });
}
