// A whole gather pass: tiles are packed block by block of input channels, multiplied, and written back.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "images.h"
#include "interface.h"
#include "sinks.h"
#include "tile.h"
#include "tile_kernels.h"

// Output channels of one part, in whole vectors.
static inline int64_t part_begin(const Pass& pass, int64_t parts, int64_t part, int64_t lanes) {
    const int64_t groups = divide_up(pass.out_channels, lanes);
    return smaller(share_begin(groups, parts, part) * lanes, pass.out_channels);
}

static inline int64_t largest_part(const Pass& pass, int64_t parts, int64_t lanes) {
    return divide_up(divide_up(pass.out_channels, lanes), parts) * lanes;
}

// Floats that so many cells of a packed tile take; whole vectors. Pairs of vectors are read to their end.
template <class Simd>
constexpr int64_t tile_words(int64_t cells) {
    return round_up(divide_up((cells + Simd::lanes) * static_cast<int64_t>(sizeof(typename Simd::Cell)), sizeof(float)), 16);
}

// Floats of one channel's sums in a tile.
template <class Simd>
constexpr int64_t staged_channel(int64_t rows, int64_t cols) {
    return rows * StagedSums<typename Simd::Multiplier>::columns(cols) * Simd::lanes;
}

template <class Simd>
using RowsOf = Rows<typename Simd::Multiplier>;

// Of one thread: sums that wait for the next block of input channels, and sums ready to be written.
struct Buffers {
    float *waiting, *ready;
};

// Scratch of one thread: the packed tile and the buffers.
template <class Simd>
struct GatherScratch {
    int64_t tile, waiting, ready;

    GatherScratch(const Pass& pass, int64_t row_parts) {
        const int64_t channel = staged_channel<Simd>(pass.tile_rows, pass.tile_cols);
        const bool one_block = pass.block_channels >= pass.in_channels;
        tile = tile_words<Simd>(pass.block_channels * channel_stride(pass, Simd::lanes));
        waiting = one_block ? 0 : largest_part(pass, row_parts, Simd::lanes) * channel;
        ready = Simd::lanes * channel;
    }
    int64_t total() const { return tile + waiting + ready; }
    typename Simd::Cell* tile_in(float* scratch) const { return reinterpret_cast<typename Simd::Cell*>(scratch); }
    Buffers buffers_in(float* scratch) const { return {scratch + tile, scratch + tile + waiting}; }
};

template <class Simd>
int64_t gather_scratch(const Pass* pass, int64_t row_parts) {
    return GatherScratch<Simd>(*pass, row_parts).total();
}

// The pixels of a tile that are multiplied together.
struct Part {
    int64_t rows, cols;
};

template <class Multiplier>
Part largest_of_tile(int64_t rows, int64_t cols) {
    const int64_t pieces = divide_up(cols, kMaxTile<Multiplier>);
    const int64_t across = pieces == 1 ? cols : StagedSums<Multiplier>::columns(divide_up(cols, pieces));
    return {smaller(rows, larger(1, kMaxTile<Multiplier> / StagedSums<Multiplier>::columns(across))), across};
}

// The sums of a packed tile's block of input channels, output channels [begin, end): kept for the next block, or after the
// last one given to the sink.
template <class Simd, class To>
class GatherBlock {
public:
    GatherBlock(const Pass& pass, const TilePlace<Simd>& place, const Lanes<Simd>& lanes, int64_t block, const float* bias,
                const RowsOf<Simd>& rows, const typename Simd::Cell* tile)
        : pass_(pass), place_(place), lanes_(lanes), bias_(bias), rows_(rows), tile_(tile),
          starts_(rows.start + block * pass.out_channels), is_first_(block == 0),
          is_last_((block + 1) * pass.block_channels >= pass.in_channels) {}

    void run(int64_t begin, int64_t end, const Buffers& buffers, const To& to, const Sums& sums) const {
        const int64_t channel = staged_channel<Simd>(place_.rows, place_.cols);
        for (int64_t row = begin; row < end; row += Simd::lanes) {
            const int count = static_cast<int>(smaller(Simd::lanes, end - row));
            float* waiting = buffers.waiting + (row - begin) * channel;
            if (pass_.images_last != 0) {
                of_images(row, count, waiting, buffers.ready, to, sums);
                continue;
            }
            multiply(place_.rows, place_.cols, tile_, row, count, waiting, buffers.ready);
            if (is_last_) {
                unpack_channels(lanes_, place_.rows, place_.cols, buffers.ready, row, count, to, sums);
            }
        }
    }

private:
    void of_images(int64_t row, int count, float* waiting, float* ready, const To& to, const Sums& sums) const {
        TotalsOfImages<typename Simd::Float, To::kKinds> totals;
        const Part part = largest_of_tile<typename Simd::Multiplier>(place_.rows, place_.cols);
        for (int64_t i = 0; i < place_.rows; i += part.rows) {
            const int64_t rows = smaller(part.rows, place_.rows - i);
            for (int64_t j = 0; j < place_.cols; j += part.cols) {
                const int64_t cols = smaller(part.cols, place_.cols - j);
                multiply(rows, cols, tile_ + i * row_pitch() + j * Simd::lanes, row, count, waiting, ready);
                waiting += count * staged_channel<Simd>(rows, cols);
                if (is_last_) {
                    unpack_images(lanes_.from_pixel(i, j), rows, cols, ready, row, count, pass_.out_channels, to, totals);
                }
            }
        }
        if (is_last_ && To::kKinds > 0) {
            totals.move_to(sums, row);
        }
    }

    void multiply(int64_t rows, int64_t cols, const typename Simd::Cell* tile, int64_t row, int count, float* waiting,
                  float* ready) const {
        const auto kernel = TileKernels<typename Simd::Multiplier>::multiply(rows, cols);
        kernel(count, starts_ + row, rows_.entries, tile, row_pitch(), is_first_ ? nullptr : waiting,
               bias_ ? bias_ + row : nullptr, is_last_ ? ready : waiting);
    }

    int64_t row_pitch() const { return pass_.in_row_step * pass_.slots_per_row * Simd::lanes; }

    const Pass& pass_;
    const TilePlace<Simd>& place_;
    const Lanes<Simd>& lanes_;
    const float* bias_;
    const RowsOf<Simd>& rows_;
    const typename Simd::Cell* tile_;
    const int32_t* starts_;
    bool is_first_, is_last_;
};

template <class Simd, class From>
void pack(const Pass& pass, const Lanes<Simd>& lanes, const Window& window, const From& from, int64_t begin, int64_t end,
          int64_t channels, int64_t stride, typename Simd::Cell* tile) {
    if (pass.images_last != 0) {
        pack_images(lanes, window, from, begin, end, channels, stride, tile);
    } else {
        pack_channels(lanes, window, from, begin, end, stride, tile);
    }
}

// One tile, output channels [begin, end).
template <class Simd, class From, class To>
void gather_tile(const Pass& pass, const TilePlace<Simd>& place, int64_t begin, int64_t end, const From& from,
                 const float* bias, const RowsOf<Simd>& rows, typename Simd::Cell* tile, const Buffers& buffers, const To& to,
                 const Sums& sums) {
    const Lanes<Simd> read = input_lanes(pass, place), written = output_lanes(pass, place);
    const Window window = input_window(pass, place.rows, place.cols);
    for (int64_t channel = 0; channel < pass.in_channels; channel += pass.block_channels) {
        const int64_t next = smaller(channel + pass.block_channels, pass.in_channels);
        pack(pass, read, window, from, channel, next, pass.in_channels, channel_stride(pass, Simd::lanes), tile);
        GatherBlock<Simd, To>(pass, place, written, channel / pass.block_channels, bias, rows, tile).run(begin, end, buffers, to, sums);
    }
}

// All tiles, in slices whose sums are kept apart.
template <class Simd, class From, class To>
void gather_tiles(const Pass& pass, const From& from, const float* bias, const int32_t* row_start, const Entry* entries,
                  int64_t threads, int64_t slices, int64_t row_parts, float* scratch, const To& to,
                  const SliceSums& slice_sums) {
    const GatherScratch<Simd> sizes(pass, row_parts);
    const int64_t tiles = count_tiles(pass, Simd::lanes);
    const RowsOf<Simd> rows(divide_up(pass.in_channels, pass.block_channels) * pass.out_channels, row_start, entries, threads);
#pragma omp parallel num_threads(static_cast<int>(threads))
    {
        float* own = scratch + omp_get_thread_num() * sizes.total();
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < slices * row_parts; ++item) {
            const int64_t slice = item / row_parts, part = item % row_parts;
            const int64_t begin = part_begin(pass, row_parts, part, Simd::lanes);
            const int64_t end = part_begin(pass, row_parts, part + 1, Simd::lanes);
            for (int64_t each = share_begin(tiles, slices, slice); each < share_begin(tiles, slices, slice + 1); ++each) {
                gather_tile<Simd>(pass, place_tile<Simd>(pass, each), begin, end, from, bias, rows, sizes.tile_in(own),
                                  sizes.buffers_in(own), to, slice_sums.of(slice));
            }
        }
    }
}

// Only the pairs that occur are made: every one is a copy of the loops above.
template <class Simd>
void gather(const Pass* given, const Source* source, const float* bias, const int32_t* row_start, const Entry* entries,
            int64_t threads, int64_t slices, int64_t row_parts, float* scratch, const Sink* sink) {
    const Pass pass = *given;
    with_sums<Simd>(*sink, slices, pass.out_channels, [&](const SliceSums& sums) {
        const auto run = [&](const auto& from, const auto& to) {
            gather_tiles<Simd>(pass, from, bias, row_start, entries, threads, slices, row_parts, scratch, to, sums);
        };
        if (source->kind == kGradientSource) {
            const auto from = gradient_source<Simd>(*source);
            with_gradient_sink<Simd>(*sink, [&](const auto& to) { run(from, to); });
        } else if (sink->kind == kStoreSink) {
            run(PlainSource<Simd>{elements<Simd>(source->tensor)}, StoreSink<Simd>{Target<Simd>(*sink)});
        } else {
            const auto to = statistics_sink<Simd>(*sink);
            with_input<Simd>(*source, [&](const auto& from) { run(from, to); });
        }
    });
}
