// The compressed weight by input channel, for the input gradient: a counting sort of the entries, shared among threads.
#pragma once

#include <omp.h>

#include <cstring>

#include "common/arithmetic.h"
#include "compress.h"
#include "interface.h"

// Where the entries of one output channel go: added to what the slot says.
struct ChannelPlace {
    int64_t row, offset;
};

static inline ChannelPlace place_channel(const TransposedLayout& target, int64_t channel) {
    return {channel / target.block_channels * target.rows_per_block, channel % target.block_channels * target.channel_stride};
}

template <class Simd>
void transpose(const WeightLayout* given, const TransposedLayout* given_target, const Slot* slots, const int32_t* row_start,
               const Entry* entries, int64_t threads, int32_t* counts, int32_t* transposed_start, Entry* transposed,
               int32_t* source) {
    const WeightLayout layout = *given;
    const TransposedLayout target = *given_target;
    const int64_t blocks = count_blocks(layout);
    // A share is a range of output channels; its counts become the places where its entries go.
    const int64_t shares = threads;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(threads))
    for (int64_t share = 0; share < shares; ++share) {
        int32_t* mine = counts + share * target.compressed_rows;
        std::memset(mine, 0, target.compressed_rows * sizeof(int32_t));
        for (int64_t row = share_begin(layout.rows, shares, share); row < share_begin(layout.rows, shares, share + 1); ++row) {
            const ChannelPlace place = place_channel(target, row);
            for (int64_t block = 0; block < blocks; ++block) {
                int32_t* rows = mine + place.row + block * layout.block_channels;
                const int64_t end = row_start[block * layout.rows + row + 1];
                for (int64_t k = row_start[block * layout.rows + row]; k < end; ++k) {
                    ++rows[slot_of<Simd>(slots, entries[k]).transposed_row];
                }
            }
        }
    }
    int32_t next = 0;
    for (int64_t row = 0; row < target.compressed_rows; ++row) {
        transposed_start[row] = next;
        for (int64_t share = 0; share < shares; ++share) {
            int32_t& count = counts[share * target.compressed_rows + row];
            const int32_t size = count;
            count = next;
            next += size;
        }
    }
    transposed_start[target.compressed_rows] = next;
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(threads))
    for (int64_t share = 0; share < shares; ++share) {
        int32_t* mine = counts + share * target.compressed_rows;
        for (int64_t row = share_begin(layout.rows, shares, share); row < share_begin(layout.rows, shares, share + 1); ++row) {
            const ChannelPlace place = place_channel(target, row);
            for (int64_t block = 0; block < blocks; ++block) {
                int32_t* rows = mine + place.row + block * layout.block_channels;
                const int64_t end = row_start[block * layout.rows + row + 1];
                for (int64_t k = row_start[block * layout.rows + row]; k < end; ++k) {
                    const Slot& slot = slot_of<Simd>(slots, entries[k]);
                    const int32_t to = rows[slot.transposed_row]++;
                    transposed[to] = {static_cast<int32_t>(slot.tap_offset + place.offset), entries[k].value};
                    if (source != nullptr) {
                        source[to] = static_cast<int32_t>(k);
                    }
                }
            }
        }
    }
}

template <class Simd>
void refresh_transposed(int64_t count, const Entry* entries, const int32_t* source, int64_t threads, Entry* transposed) {
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
    for (int64_t k = 0; k < count; ++k) {
        transposed[k].value = entries[source[k]].value;
    }
}
