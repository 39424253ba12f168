// Compressed weights: the non-zeros of a dense weight row by row, one group of rows for every block of input channels.
//
// row_start[block * rows + row] is the first entry of a row within a block. An entry's offset says where its input lies in
// a packed tile, and by that where it came from (Slot), so that values can be taken anew and gradients put back.
#pragma once

#include <omp.h>

#include <cstring>

#include "common/arithmetic.h"
#include "interface.h"

constexpr int64_t kWordBits = 64;

static inline int64_t count_blocks(const WeightLayout& layout) { return divide_up(layout.channels, layout.block_channels); }

// A stretch of a dense row that belongs to one block.
struct Stretch {
    int64_t begin, length;
};

static inline int64_t stretches_per_block(const WeightLayout& layout) { return layout.channels_last ? layout.taps : 1; }

static inline Stretch find_stretch(const WeightLayout& layout, int64_t block, int64_t index) {
    const int64_t first = block * layout.block_channels;
    const int64_t channels = smaller(layout.block_channels, layout.channels - first);
    if (layout.channels_last) {
        return {index * layout.channels + first, channels};
    }
    return {first * layout.taps, channels * layout.taps};
}

// The slot that an entry of the first block reads; those of later blocks are as far behind as their channels.
template <class Simd>
const Slot& slot_of(const Slot* slots, const Entry& entry) {
    return slots[static_cast<uint32_t>(entry.offset) / Simd::lanes];
}

// How far behind the first block's columns those of another block lie.
static inline int64_t first_column(const WeightLayout& layout, int64_t block) { return find_stretch(layout, block, 0).begin; }

// Bit i is set where from[i] is not zero, i < count <= 64.
template <class Simd>
uint64_t nonzero_word(const float* from, int64_t count) {
    uint64_t word = 0;
    int64_t i = 0;
    for (; i + Simd::lanes <= count; i += Simd::lanes) {
        word |= static_cast<uint64_t>(Simd::nonzero_bits(from + i)) << i;
    }
    for (; i < count; ++i) {
        word |= static_cast<uint64_t>(from[i] != 0.0f) << i;
    }
    return word;
}

template <class Simd>
uint64_t nonzero_word(const uint8_t* from, int64_t count) {
    uint64_t word = 0;
    for (int64_t i = 0; i < count; ++i) {
        word |= static_cast<uint64_t>(from[i] != 0) << i;
    }
    return word;
}

// Calls visit(column) for every non-zero of a row within a block, in memory order.
template <class Simd, class Value, class Visit>
void for_each_nonzero(const WeightLayout& layout, const Value* row, int64_t block, const Visit& visit) {
    for (int64_t index = 0; index < stretches_per_block(layout); ++index) {
        const Stretch stretch = find_stretch(layout, block, index);
        for (int64_t done = 0; done < stretch.length; done += kWordBits) {
            const int64_t first = stretch.begin + done;
            uint64_t word = nonzero_word<Simd>(row + first, smaller(kWordBits, stretch.length - done));
            for (; word != 0; word &= word - 1) {
                visit(first + __builtin_ctzll(word));
            }
        }
    }
}

template <class Simd, class Value>
int64_t count_row(const WeightLayout& layout, const Value* row, int64_t block) {
    int64_t count = 0;
    for (int64_t index = 0; index < stretches_per_block(layout); ++index) {
        const Stretch stretch = find_stretch(layout, block, index);
        for (int64_t done = 0; done < stretch.length; done += kWordBits) {
            const int64_t first = stretch.begin + done;
            count += __builtin_popcountll(nonzero_word<Simd>(row + first, smaller(kWordBits, stretch.length - done)));
        }
    }
    return count;
}

template <class Simd, class Value>
int64_t count_nonzeros(const WeightLayout* given, const Value* weight, int64_t threads, int32_t* row_start) {
    const WeightLayout layout = *given;
    const int64_t blocks = count_blocks(layout), size = layout.channels * layout.taps;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
    for (int64_t row = 0; row < layout.rows; ++row) {
        for (int64_t block = 0; block < blocks; ++block) {
            row_start[block * layout.rows + row + 1] = static_cast<int32_t>(count_row<Simd>(layout, weight + row * size, block));
        }
    }
    int64_t total = 0;
    row_start[0] = 0;
    for (int64_t index = 1; index <= blocks * layout.rows; ++index) {
        total += row_start[index];
        if (total > INT32_MAX) {
            return -1;
        }
        row_start[index] = static_cast<int32_t>(total);
    }
    return total;
}

static inline float value_of(float weight) { return weight; }
static inline float value_of(uint8_t) { return 0.0f; }  // a mask has a pattern only

template <class Simd, class Value>
void compress(const WeightLayout* given, const Value* weight, const int32_t* column_offsets, int64_t threads,
              const int32_t* row_start, Entry* entries) {
    const WeightLayout layout = *given;
    const int64_t blocks = count_blocks(layout), size = layout.channels * layout.taps;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
    for (int64_t row = 0; row < layout.rows; ++row) {
        const Value* values = weight + row * size;
        for (int64_t block = 0; block < blocks; ++block) {
            int64_t next = row_start[block * layout.rows + row];
            for_each_nonzero<Simd>(layout, values, block, [&](int64_t column) {
                entries[next++] = {column_offsets[column], value_of(values[column])};
            });
        }
    }
}

template <class Simd>
int64_t refresh(const WeightLayout* given, const Slot* slots, const float* weight, int64_t threads,
                const int32_t* row_start, Entry* entries) {
    const WeightLayout layout = *given;
    const int64_t blocks = count_blocks(layout), size = layout.channels * layout.taps;
    int64_t changed = 0;
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads)) reduction(+ : changed)
    for (int64_t row = 0; row < layout.rows; ++row) {
        const float* values = weight + row * size;
        for (int64_t block = 0; block < blocks && changed == 0; ++block) {
            const int64_t begin = row_start[block * layout.rows + row], end = row_start[block * layout.rows + row + 1];
            // As many non-zeros as before, and all in the old places: the same pattern.
            changed += count_row<Simd>(layout, values, block) != end - begin;
            const float* first = values + first_column(layout, block);
            for (int64_t k = begin; k < end; ++k) {
                entries[k].value = first[slot_of<Simd>(slots, entries[k]).column];
                changed += entries[k].value == 0.0f;
            }
        }
    }
    return changed == 0;
}

template <class Simd>
void scatter(const WeightLayout* given, const Slot* slots, const int32_t* row_start, const Entry* entries, const float* sums,
             int64_t slices, int64_t adds, int64_t threads, float* gradient) {
    const WeightLayout layout = *given;
    const int64_t blocks = count_blocks(layout), size = layout.channels * layout.taps;
    const int64_t count = row_start[blocks * layout.rows];
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
    for (int64_t row = 0; row < layout.rows; ++row) {
        float* values = gradient + row * size;
        if (!adds) {
            std::memset(values, 0, size * sizeof(float));
        }
        for (int64_t block = 0; block < blocks; ++block) {
            float* first = values + first_column(layout, block);
            const int64_t end = row_start[block * layout.rows + row + 1];
            for (int64_t k = row_start[block * layout.rows + row]; k < end; ++k) {
                float sum = sums[k];
                for (int64_t slice = 1; slice < slices; ++slice) {
                    sum += sums[slice * count + k];
                }
                first[slot_of<Simd>(slots, entries[k]).column] += sum;
            }
        }
    }
}
