// Tiles: which pixels the lanes of a tile stand for, and the way from a channels_last tensor into a packed tile and back.
//
// A packed tile is [channel][slot][lane]: a slot is one input pixel of the window, lane l holds that pixel of site l. The
// columns of a window row are ordered by their remainder modulo the column step, so that output pixels which are
// neighbours read slots which are neighbours, whatever the stride.
#pragma once

#include "common/arithmetic.h"
#include "interface.h"
#include "pixels.h"

// The pixels (row[l] + i, col[l] + j * col_stride) of a tensor, as seen from the lanes of a tile. Pixels outside the
// limits are padding, or lie beyond the edge of a patch that sticks out.
template <class Simd>
struct Lanes {
    int32_t row[Simd::lanes], col[Simd::lanes];
    int64_t offset[Simd::lanes];  // of pixel (0, 0), in floats; meaningful only where pixels are inside
    int32_t row_limit, col_limit;
    int32_t col_stride;
    int64_t row_pitch, col_pitch;  // floats from i to i + 1, from j to j + 1

    uint32_t rows_inside(int64_t i) const { return inside(row, static_cast<int32_t>(i), row_limit); }
    uint32_t cols_inside(int64_t j) const { return inside(col, static_cast<int32_t>(j) * col_stride, col_limit); }

    // Whether a whole rectangle of pixels is inside for every lane: its corners are.
    bool all_inside(int64_t rows, int64_t cols) const {
        return (rows_inside(0) & rows_inside(rows - 1) & cols_inside(0) & cols_inside(cols - 1)) == kAllLanes;
    }

    static constexpr uint32_t kAllLanes = (1u << Simd::lanes) - 1;

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

// The first grid pixel of every lane in one tile, and how much of the tile lies inside the patch.
template <class Simd>
struct TilePlace {
    int64_t image[Simd::lanes];  // -1: no site for this lane
    int64_t row[Simd::lanes], col[Simd::lanes];
    int64_t rows, cols;
};

static inline int64_t count_tiles(const Pass& pass, int64_t lanes) {
    const int64_t sites = pass.images * pass.patches_down * pass.patches_across;
    return divide_up(sites, lanes) * divide_up(pass.patch_rows, pass.tile_rows) * divide_up(pass.patch_cols, pass.tile_cols);
}

template <class Simd>
TilePlace<Simd> place_tile(const Pass& pass, int64_t tile) {
    const int64_t tiles_across = divide_up(pass.patch_cols, pass.tile_cols);
    const int64_t tiles_down = divide_up(pass.patch_rows, pass.tile_rows);
    const int64_t first_col = tile % tiles_across * pass.tile_cols;
    const int64_t first_row = tile / tiles_across % tiles_down * pass.tile_rows;
    const int64_t first_site = tile / tiles_across / tiles_down * Simd::lanes;
    TilePlace<Simd> place;
    place.rows = smaller(pass.tile_rows, pass.patch_rows - first_row);
    place.cols = smaller(pass.tile_cols, pass.patch_cols - first_col);
    // Counted up from lane to lane: divisions for every lane would cost as much as a small tile.
    int64_t across = first_site % pass.patches_across;
    int64_t down = first_site / pass.patches_across % pass.patches_down;
    int64_t image = first_site / pass.patches_across / pass.patches_down;
    for (int lane = 0; lane < Simd::lanes; ++lane) {
        place.image[lane] = image < pass.images ? image : -1;
        place.row[lane] = down * pass.patch_rows + first_row;
        place.col[lane] = across * pass.site_step + first_col * pass.pixel_step;
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

template <class Simd>
Lanes<Simd> input_lanes(const Pass& pass, const TilePlace<Simd>& place) {
    Lanes<Simd> lanes;
    lanes.row_limit = static_cast<int32_t>(pass.in_rows);
    lanes.col_limit = static_cast<int32_t>(pass.in_cols);
    lanes.col_stride = static_cast<int32_t>(pass.pixel_step);
    lanes.row_pitch = pass.in_cols * pass.in_channels;
    lanes.col_pitch = pass.pixel_step * pass.in_channels;
    for (int lane = 0; lane < Simd::lanes; ++lane) {
        const int64_t row = place.row[lane] * pass.in_row_step + pass.in_first_row;
        const int64_t col = place.col[lane] * pass.in_col_step + pass.in_first_col;
        const bool exists = place.image[lane] >= 0;
        lanes.row[lane] = exists ? static_cast<int32_t>(row) : kNowhere;
        lanes.col[lane] = exists ? static_cast<int32_t>(col) : kNowhere;
        lanes.offset[lane] = ((place.image[lane] * pass.in_rows + row) * pass.in_cols + col) * pass.in_channels;
    }
    return lanes;
}

// Counted in grid pixels, which is where the limits are.
template <class Simd>
Lanes<Simd> output_lanes(const Pass& pass, const TilePlace<Simd>& place) {
    Lanes<Simd> lanes;
    lanes.row_limit = static_cast<int32_t>(pass.grid_rows);
    lanes.col_limit = static_cast<int32_t>(pass.grid_cols);
    lanes.col_stride = static_cast<int32_t>(pass.pixel_step);
    lanes.row_pitch = pass.out_row_step * pass.out_cols * pass.out_channels;
    lanes.col_pitch = pass.out_col_step * pass.pixel_step * pass.out_channels;
    for (int lane = 0; lane < Simd::lanes; ++lane) {
        const int64_t row = place.row[lane] * pass.out_row_step + pass.out_first_row;
        const int64_t col = place.col[lane] * pass.out_col_step + pass.out_first_col;
        const bool exists = place.image[lane] >= 0;
        lanes.row[lane] = exists ? static_cast<int32_t>(place.row[lane]) : kNowhere;
        lanes.col[lane] = exists ? static_cast<int32_t>(place.col[lane]) : kNowhere;
        lanes.offset[lane] = ((place.image[lane] * pass.out_rows + row) * pass.out_cols + col) * pass.out_channels;
    }
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
void pack(const Lanes<Simd>& lanes, const Window& window, const From& from, int64_t begin, int64_t end, int64_t stride,
          typename Simd::Cell* tile) {
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
                const auto group = from.group(channel, count);
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
void unpack(const Lanes<Simd>& lanes, int64_t tile_rows, int64_t tile_cols, const float* staged, int64_t begin, int count,
            const To& to, double* sums) {
    constexpr int width = Simd::lanes;
    const int64_t pixels = tile_rows * tile_cols;
    const bool all_inside = lanes.all_inside(tile_rows, tile_cols);
    auto group = to.group(begin, count);
    for (int64_t i = 0; i < tile_rows; ++i) {
        const uint32_t rows_inside = lanes.rows_inside(i);
        for (int64_t j = 0; j < tile_cols; ++j) {
            const uint32_t inside = all_inside ? Lanes<Simd>::kAllLanes : rows_inside & lanes.cols_inside(j);
            const int64_t pixel = i * lanes.row_pitch + j * lanes.col_pitch + begin;
            typename Simd::Vec rows[width];
            for (int each = 0; each < width; ++each) {
                rows[each] = Simd::load(staged + (each * pixels + i * tile_cols + j) * width);
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
    to.finish(group, begin, sums);
}
