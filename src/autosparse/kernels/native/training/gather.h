// A whole gather pass: tiles are packed block by block of input channels, multiplied, and written back.
#pragma once

#include <omp.h>

#include <cstring>

#include "common/arithmetic.h"
#include "interface.h"
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

// Floats that so many cells of a packed tile take; whole vectors.
template <class Simd>
constexpr int64_t tile_words(int64_t cells) {
    return round_up(divide_up(cells * static_cast<int64_t>(sizeof(typename Simd::Cell)), sizeof(float)), 16);
}

template <class Simd>
using RowsOf = Rows<typename Simd::Multiplier>;

// Scratch of one thread: the packed tile, sums that wait for the next block of input channels, sums ready to be written.
template <class Simd>
struct GatherScratch {
    int64_t tile, waiting, ready;

    GatherScratch(const Pass& pass, int64_t row_parts) {
        const int64_t pixels = pass.tile_rows * pass.tile_cols * Simd::lanes;
        const bool one_block = pass.block_channels >= pass.in_channels;
        tile = tile_words<Simd>(pass.block_channels * channel_stride(pass, Simd::lanes));
        waiting = one_block ? 0 : largest_part(pass, row_parts, Simd::lanes) * pixels;
        ready = Simd::lanes * pixels;
    }
    int64_t total() const { return tile + waiting + ready; }
};

template <class Simd>
int64_t gather_scratch(const Pass* pass, int64_t row_parts) {
    return GatherScratch<Simd>(*pass, row_parts).total();
}

// The sums of a packed tile's block of input channels, output channels [begin, end): kept for the next block, or after the
// last one given to the sink.
template <class Simd, class To>
void gather_block(const Pass& pass, const TilePlace<Simd>& place, const Lanes<Simd>& lanes, int64_t block, int64_t begin,
                  int64_t end, const float* bias, const RowsOf<Simd>& rows, const typename Simd::Cell* tile,
                  float* waiting, float* ready, const To& to, double* sums) {
    const int64_t row_pitch = pass.in_row_step * pass.slots_per_row * Simd::lanes;
    const int64_t pixels = place.rows * place.cols * Simd::lanes;
    const auto multiply = TileKernels<typename Simd::Multiplier>::multiply(place.rows, place.cols);
    const auto* starts = rows.start + block * pass.out_channels;
    const float* earlier = block > 0 ? waiting : nullptr;
    if ((block + 1) * pass.block_channels < pass.in_channels) {
        multiply(end - begin, starts + begin, rows.entries, tile, row_pitch, earlier, bias ? bias + begin : nullptr, waiting);
        return;
    }
    for (int64_t row = begin; row < end; row += Simd::lanes) {
        const int64_t count = smaller(Simd::lanes, end - row);
        multiply(count, starts + row, rows.entries, tile, row_pitch, earlier ? earlier + (row - begin) * pixels : nullptr,
                 bias ? bias + row : nullptr, ready);
        unpack(lanes, place.rows, place.cols, ready, row, static_cast<int>(count), to, sums);
    }
}

// One tile, output channels [begin, end).
template <class Simd, class From, class To>
void gather_tile(const Pass& pass, const TilePlace<Simd>& place, int64_t begin, int64_t end, const From& from,
                 const float* bias, const RowsOf<Simd>& rows, typename Simd::Cell* tile, float* waiting,
                 float* ready, const To& to, double* sums) {
    const Lanes<Simd> read = input_lanes(pass, place), written = output_lanes(pass, place);
    const Window window = input_window(pass, place.rows, place.cols);
    for (int64_t channel = 0; channel < pass.in_channels; channel += pass.block_channels) {
        const int64_t next = smaller(channel + pass.block_channels, pass.in_channels);
        pack(read, window, from, channel, next, channel_stride(pass, Simd::lanes), tile);
        gather_block(pass, place, written, channel / pass.block_channels, begin, end, bias, rows, tile,
                     waiting, ready, to, sums);
    }
}

// All tiles, in slices whose sums are kept apart; slice_sums may be null for a sink that makes none.
template <class Simd, class From, class To>
void gather_tiles(const Pass& pass, const From& from, const float* bias, const int32_t* row_start, const Entry* entries,
                  int64_t threads, int64_t slices, int64_t row_parts, float* scratch, const To& to, double* slice_sums) {
    const GatherScratch<Simd> sizes(pass, row_parts);
    const int64_t tiles = count_tiles(pass, Simd::lanes);
    const int64_t sums_per_slice = kSums * round_up(pass.out_channels, Simd::lanes);
    const RowsOf<Simd> rows(divide_up(pass.in_channels, pass.block_channels) * pass.out_channels, row_start, entries, threads);
#pragma omp parallel num_threads(static_cast<int>(threads))
    {
        float* own = scratch + omp_get_thread_num() * sizes.total();
        auto* tile = reinterpret_cast<typename Simd::Cell*>(own);
        float* waiting = own + sizes.tile;
        float* ready = waiting + sizes.waiting;
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < slices * row_parts; ++item) {
            const int64_t slice = item / row_parts, part = item % row_parts;
            const int64_t begin = part_begin(pass, row_parts, part, Simd::lanes);
            const int64_t end = part_begin(pass, row_parts, part + 1, Simd::lanes);
            double* sums = slice_sums == nullptr ? nullptr : slice_sums + slice * sums_per_slice;
            for (int64_t each = share_begin(tiles, slices, slice); each < share_begin(tiles, slices, slice + 1); ++each) {
                gather_tile<Simd>(pass, place_tile<Simd>(pass, each), begin, end, from, bias, rows, tile,
                                  waiting, ready, to, sums);
            }
        }
    }
}

// Zeroes the slices' sums before `call` and adds them up after it.
template <class Simd, class Call>
void with_sums(const Sink& to, int64_t slices, int64_t channels, const Call& call) {
    if (to.kind == kStoreSink) {
        call(nullptr);
        return;
    }
    std::memset(to.slice_sums, 0, slices * kSums * round_up(channels, Simd::lanes) * sizeof(double));
    call(to.slice_sums);
    add_slices<Simd>(to.slice_sums, slices, channels, to.sums);
}

// Only the pairs that occur are made: every one is a copy of the loops above.
template <class Simd>
void gather(const Pass* given, const Source* source, const float* bias, const int32_t* row_start, const Entry* entries,
            int64_t threads, int64_t slices, int64_t row_parts, float* scratch, const Sink* sink) {
    const Pass pass = *given;
    with_sums<Simd>(*sink, slices, pass.out_channels, [&](double* sums) {
        const auto run = [&](const auto& from, const auto& to) {
            gather_tiles<Simd>(pass, from, bias, row_start, entries, threads, slices, row_parts, scratch, to, sums);
        };
        if (source->kind == kGradientSource) {
            const auto from = gradient_source<Simd>(*source);
            with_gradient_sink<Simd>(*sink, pass.out_channels, [&](const auto& to) { run(from, to); });
        } else if (sink->kind == kStoreSink) {
            run(PlainSource<Simd>{elements<Simd>(source->tensor)}, StoreSink<Simd>{Target<Simd>(*sink)});
        } else {
            const auto to = statistics_sink<Simd>(*sink, pass.out_channels);
            with_input<Simd>(*source, [&](const auto& from) { run(from, to); });
        }
    });
}
