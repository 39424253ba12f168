// The innermost loops, one instance for every tile size so that a tile's sums stay in registers.
#pragma once

#include <type_traits>
#include <utility>

#include "common/arithmetic.h"
#include "interface.h"

// Most vectors of a tile that are multiplied together. Eight sums, one broadcast and memory operands fit into 16 registers;
// more was not faster.
constexpr int kMaxVectors = 8;

// Largest tile with images last, in vectors: with 32 registers more of a row stays at hand.
template <class Simd>
constexpr int kMaxTile = Simd::lanes < 16 ? kMaxVectors : 16;

// The sums of a tile as `multiply` leaves them: [channel][row][column][lane].
template <class Simd>
struct StagedSums {
    static constexpr int64_t columns(int64_t cols) { return cols; }  // columns that are stored

    static typename Simd::Vec pixel(const float* channel, int64_t row, int64_t col, int64_t cols) {
        return Simd::load(channel + (row * cols + col) * Simd::lanes);
    }
    // As a vector of Simd::Images takes them, from a column on that such a vector may begin at.
    static typename Simd::Vec run(const float* channel, int64_t row, int64_t col, int64_t cols) {
        return pixel(channel, row, col, cols);
    }
};

// sums[row] = start[row] (or bias[row], or 0) + entries of the row * the tile. All are [row][pixel][lane].
template <class Simd, int kRows, int kCols>
void multiply_rows(int64_t rows, const int32_t* row_start, const Entry* entries, const float* tile, int64_t row_pitch,
                   const float* start, const float* bias, float* sums) {
    using Vec = typename Simd::Vec;
    constexpr int kPixels = kRows * kCols;
    for (int64_t row = 0; row < rows; ++row) {
        Vec sum[kPixels];
        if (start != nullptr) {
            for (int pixel = 0; pixel < kPixels; ++pixel) {
                sum[pixel] = Simd::load(start + (row * kPixels + pixel) * Simd::lanes);
            }
        } else {
            const Vec first = bias != nullptr ? Simd::broadcast(bias[row]) : Simd::zero();
            for (int pixel = 0; pixel < kPixels; ++pixel) {
                sum[pixel] = first;
            }
        }
        const Entry* end = entries + row_start[row + 1];
        for (const Entry* entry = entries + row_start[row]; entry != end; ++entry) {
            const Vec value = Simd::broadcast(entry->value);
            const float* input = tile + entry->offset;
            for (int i = 0; i < kRows; ++i) {
                for (int j = 0; j < kCols; ++j) {
                    const Vec pixel = Simd::load(input + i * row_pitch + j * Simd::lanes);
                    sum[i * kCols + j] = Simd::multiply_add(value, pixel, sum[i * kCols + j]);
                }
            }
        }
        for (int pixel = 0; pixel < kPixels; ++pixel) {
            Simd::store(sums + (row * kPixels + pixel) * Simd::lanes, sum[pixel]);
        }
    }
}

// Adds the sums over the lanes of the first `count` products to gradient[0 .. count).
template <class Simd>
void add_sums(const typename Simd::Vec* products, int count, float* gradient) {
    const typename Simd::Vec sums = Simd::sums(products);
    if (count == Simd::lanes) {
        Simd::store_unaligned(gradient, Simd::add(Simd::load_unaligned(gradient), sums));
    } else {
        Simd::store_first(gradient, Simd::add(Simd::load_first(gradient, count), sums), count);
    }
}

// gradient[k] += the product of entry k's input in the tile with its row of grad_output, summed over pixels and lanes.
// The sums over lanes are made for as many entries as there are lanes at a time, across the ends of rows.
template <class Simd, int kRows, int kCols>
void multiply_gradients(int64_t rows, const int32_t* row_start, const Entry* entries, const float* tile, int64_t row_pitch,
                        const float* grad_output, float* gradient) {
    using Vec = typename Simd::Vec;
    constexpr int kPixels = kRows * kCols;
    Vec products[Simd::lanes];
    for (int lane = 0; lane < Simd::lanes; ++lane) {
        products[lane] = Simd::zero();
    }
    int waiting = 0;
    int64_t entry = row_start[0];
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t end = row_start[row + 1];
        if (entry == end) {
            continue;
        }
        Vec grad[kPixels];
        for (int pixel = 0; pixel < kPixels; ++pixel) {
            grad[pixel] = Simd::load(grad_output + (row * kPixels + pixel) * Simd::lanes);
        }
        while (entry < end) {
            const int64_t stop = smaller(end, entry + Simd::lanes - waiting);
            for (; entry < stop; ++entry) {
                const float* input = tile + entries[entry].offset;
                Vec even = Simd::multiply(grad[0], Simd::load(input));
                Vec odd = Simd::zero();
                for (int pixel = 1; pixel < kPixels; ++pixel) {
                    const Vec value = Simd::load(input + pixel / kCols * row_pitch + pixel % kCols * Simd::lanes);
                    Vec& sum = pixel % 2 == 0 ? even : odd;
                    sum = Simd::multiply_add(grad[pixel], value, sum);
                }
                products[waiting++] = Simd::add(even, odd);
            }
            if (waiting == Simd::lanes) {
                add_sums<Simd>(products, waiting, gradient + entry - waiting);
                waiting = 0;
            }
        }
    }
    if (waiting > 0) {
        add_sums<Simd>(products, waiting, gradient + entry - waiting);
    }
}

// Both loops for one tile size, and the weights as they take them.
template <class Simd, int kRows, int kCols>
struct TileLoops {
    static constexpr auto multiply = &multiply_rows<Simd, kRows, kCols>;
    static constexpr auto gradients = &multiply_gradients<Simd, kRows, kCols>;
};

// The compressed rows of a gather pass as its inner loop takes them: as they are.
template <class Simd>
struct Rows {
    const int32_t* start;
    const Entry* entries;

    Rows(int64_t, const int32_t* row_start, const Entry* entries, int64_t) : start(row_start), entries(entries) {}
};

// The instances by tile size.
template <class Simd>
class TileKernels {
public:
    using Multiply = std::decay_t<decltype(TileLoops<Simd, 1, 1>::multiply)>;
    using Gradients = std::decay_t<decltype(TileLoops<Simd, 1, 1>::gradients)>;

    static Multiply multiply(int64_t rows, int64_t cols) { return kTable.multiply[index(rows, cols)]; }
    static Gradients gradients(int64_t rows, int64_t cols) { return kTable.gradients[index(rows, cols)]; }

private:
    static constexpr int kMost = kMaxTile<Simd>, kSizes = kMost * kMost;

    struct Table {
        Multiply multiply[kSizes];
        Gradients gradients[kSizes];
    };

    static constexpr int64_t index(int64_t rows, int64_t cols) { return (rows - 1) * kMost + cols - 1; }

    template <int kIndex>
    static constexpr Multiply multiply_at() {
        constexpr int rows = kIndex / kMost + 1, cols = kIndex % kMost + 1;
        if constexpr (rows * StagedSums<Simd>::columns(cols) <= kMost) {
            return TileLoops<Simd, rows, cols>::multiply;
        } else {
            return nullptr;
        }
    }

    template <int kIndex>
    static constexpr Gradients gradients_at() {
        constexpr int rows = kIndex / kMost + 1, cols = kIndex % kMost + 1;
        if constexpr (rows * cols <= kMost) {
            return TileLoops<Simd, rows, cols>::gradients;
        } else {
            return nullptr;
        }
    }

    template <int... kIndices>
    static constexpr Table make_table(std::integer_sequence<int, kIndices...>) {
        return {{multiply_at<kIndices>()...}, {gradients_at<kIndices>()...}};
    }

    static constexpr Table kTable = make_table(std::make_integer_sequence<int, kSizes>());
};
