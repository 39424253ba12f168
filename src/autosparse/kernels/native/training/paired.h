// Packed tiles in bfloat16 and vdpbf16ps: any two non-zeros of a row make a pair, whose inputs are interleaved in registers.
//
// For 32 pixels a pair costs two loads, two unpacks and two dot products, half the instructions and half the bytes of the
// multiplications in float32. That gains where vdpbf16ps runs as often as a multiply-add (AMD from Zen 4 on) and loses where
// it runs a quarter as often (Intel up to now): see dispatch.cpp. Sums are float32, weights are rounded to bfloat16.
#pragma once

#include <cstdlib>

#include "common/arithmetic.h"
#include "common/bfloat16.h"
#include "common/simd_avx512.h"
#include "interface.h"
#include "tile_kernels.h"

struct Paired : Widened<Avx512> {
    using Cell = Bfloat16;
    using Multiplier = Paired;

    using Avx512::store;
    static void store(Bfloat16* to, Vec value) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), halves(value)); }
    static void store_unaligned(Bfloat16* to, Vec value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves(value)); }
    static void store_unaligned(float* to, Vec value) { Avx512::store_unaligned(to, value); }

private:
    static __m256i halves(Vec value) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)); }
};

// Two non-zeros of a row; the second weight of the last pair may be 0.
struct Pair {
    int32_t offset[2];
    Bfloat16 weight[2];
};

// Made anew in every pass, from entries that serve all precisions, in memory that the calling thread keeps.
template <>
struct Rows<Paired> {
    const int32_t* start;
    const Pair* entries;

    Rows(int64_t rows, const int32_t* row_start, const Entry* given, int64_t threads) {
        const int64_t most = (row_start[rows] - row_start[0]) / 2 + rows + 1;
        int32_t* starts = static_cast<int32_t*>(memory().at_least((rows + 1) * sizeof(int32_t) + most * sizeof(Pair)));
        Pair* pairs = reinterpret_cast<Pair*>(starts + rows + 1);
        starts[0] = 0;
        for (int64_t row = 0; row < rows; ++row) {
            starts[row + 1] = starts[row] + (row_start[row + 1] - row_start[row] + 1) / 2;
        }
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
        for (int64_t row = 0; row < rows; ++row) {
            Pair* to = pairs + starts[row];
            for (int64_t k = row_start[row]; k < row_start[row + 1]; k += 2, ++to) {
                const bool both = k + 1 < row_start[row + 1];
                const Entry &first = given[k], &second = given[both ? k + 1 : k];
                *to = {{first.offset, second.offset}, {rounded(first.value), both ? rounded(second.value) : Bfloat16{0}}};
            }
        }
        start = starts;
        entries = pairs;
    }

private:
    struct Memory {
        void* pages = nullptr;
        size_t size = 0;
        void* at_least(size_t wanted) {
            if (wanted > size) {
                std::free(pages);
                size = wanted + wanted / 8;
                pages = std::malloc(size);
            }
            return pages;
        }
        ~Memory() { std::free(pages); }
    };
    static Memory& memory() {
        static thread_local Memory kept;
        return kept;
    }
    static Bfloat16 rounded(float value) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return {static_cast<uint16_t>(value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    }
};

static inline void add_dot(__m512& sum, __m512i a, __m512i b) { asm("vdpbf16ps %2,%1,%0" : "+v"(sum) : "v"(a), "v"(b)); }

static inline __m512i interleave(__m256i even, __m256i odd) {
    const __m512i order = _mm512_set_epi16(31 + 16, 15, 30 + 16, 14, 29 + 16, 13, 28 + 16, 12, 27 + 16, 11, 26 + 16, 10, 25 + 16, 9,
                                           24 + 16, 8, 23 + 16, 7, 22 + 16, 6, 21 + 16, 5, 20 + 16, 4, 19 + 16, 3, 18 + 16, 2,
                                           17 + 16, 1, 16 + 16, 0);
    return _mm512_permutex2var_epi16(_mm512_castsi256_si512(even), order, _mm512_castsi256_si512(odd));
}

template <int kRows, int kCols>
struct TileLoops<Paired, kRows, kCols> {
    static constexpr int kPixels = kRows * kCols, kDoubles = kCols / 2;
    static constexpr bool kSingle = kCols % 2 == 1;
    static constexpr int kLanes = Paired::lanes;

    // As multiply_rows. Two neighbouring vectors of a tile are one register; unpacking orders their sums by quarters, which
    // is undone at the end.
    static void multiply(int64_t rows, const int32_t* row_start, const Pair* pairs, const Bfloat16* tile, int64_t row_pitch,
                         const float* start, const float* bias, float* sums) {
        const __m512i first_half = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second_half = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        for (int64_t row = 0; row < rows; ++row) {
            __m512 low[kRows][kDoubles + 1], high[kRows][kDoubles + 1];  // in `low`, the last one is a single vector
            const float* from = start == nullptr ? nullptr : start + row * kPixels * kLanes;
            const __m512 first = _mm512_set1_ps(bias != nullptr && start == nullptr ? bias[row] : 0.0f);
#pragma GCC unroll 8
            for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
                for (int j = 0; j < kDoubles; ++j) {
                    low[i][j] = high[i][j] = first;
                    if (from != nullptr) {
                        const __m512 a = _mm512_load_ps(from + (i * kCols + 2 * j) * kLanes);
                        const __m512 b = _mm512_load_ps(from + (i * kCols + 2 * j + 1) * kLanes);
                        low[i][j] = _mm512_shuffle_f32x4(a, b, 0x88);
                        high[i][j] = _mm512_shuffle_f32x4(a, b, 0xdd);
                    }
                }
                low[i][kDoubles] = from != nullptr && kSingle ? _mm512_load_ps(from + (i * kCols + kCols - 1) * kLanes) : first;
            }
            const Pair* end = pairs + row_start[row + 1];
            for (const Pair* pair = pairs + row_start[row]; pair != end; ++pair) {
                int32_t both;
                std::memcpy(&both, pair->weight, sizeof both);
                const __m512i weight = _mm512_set1_epi32(both);
                const Bfloat16 *x = tile + pair->offset[0], *y = tile + pair->offset[1];
#pragma GCC unroll 8
                for (int i = 0; i < kRows; ++i, x += row_pitch, y += row_pitch) {
#pragma GCC unroll 4
                    for (int j = 0; j < kDoubles; ++j) {
                        __m512i one = _mm512_loadu_si512(x + 2 * j * kLanes), other = _mm512_loadu_si512(y + 2 * j * kLanes);
                        asm("" : "+v"(one));
                        asm("" : "+v"(other));
                        add_dot(low[i][j], _mm512_unpacklo_epi16(one, other), weight);
                        add_dot(high[i][j], _mm512_unpackhi_epi16(one, other), weight);
                    }
                    if (kSingle) {
                        const __m256i one = _mm256_load_si256(reinterpret_cast<const __m256i*>(x + (kCols - 1) * kLanes));
                        const __m256i other = _mm256_load_si256(reinterpret_cast<const __m256i*>(y + (kCols - 1) * kLanes));
                        add_dot(low[i][kDoubles], interleave(one, other), weight);
                    }
                }
            }
            float* to = sums + row * kPixels * kLanes;
#pragma GCC unroll 8
            for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
                for (int j = 0; j < kDoubles; ++j) {
                    _mm512_store_ps(to + (i * kCols + 2 * j) * kLanes, _mm512_permutex2var_ps(low[i][j], first_half, high[i][j]));
                    _mm512_store_ps(to + (i * kCols + 2 * j + 1) * kLanes, _mm512_permutex2var_ps(low[i][j], second_half, high[i][j]));
                }
                if (kSingle) {
                    _mm512_store_ps(to + (i * kCols + kCols - 1) * kLanes, low[i][kDoubles]);
                }
            }
        }
    }

    // As multiply_gradients: pixels are in lanes on both sides, so two of them are multiplied and added at once.
    static void gradients(int64_t rows, const int32_t* row_start, const Entry* entries, const Bfloat16* tile, int64_t row_pitch,
                          const Bfloat16* grad_output, float* gradient) {
        __m512 products[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
            products[lane] = _mm512_setzero_ps();
        }
        int waiting = 0;
        int64_t entry = row_start[0];
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t end = row_start[row + 1];
            __m512i grad[kRows][kDoubles + 1];
            if (entry < end) {
                read(grad_output + row * kPixels * kLanes, kCols * kLanes, grad);
            }
            for (; entry < end; ++entry) {
                __m512i input[kRows][kDoubles + 1];
                read(tile + entries[entry].offset, row_pitch, input);
                __m512 even = _mm512_setzero_ps(), odd = even;
#pragma GCC unroll 8
                for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 5
                    for (int j = 0; j < kDoubles + kSingle; ++j) {
                        add_dot((i + j) % 2 == 0 ? even : odd, grad[i][j], input[i][j]);
                    }
                }
                products[waiting++] = _mm512_add_ps(even, odd);
                if (waiting == kLanes) {
                    add_sums<Avx512>(products, waiting, gradient + entry + 1 - waiting);
                    waiting = 0;
                }
            }
        }
        if (waiting > 0) {
            add_sums<Avx512>(products, waiting, gradient + entry - waiting);
        }
    }

private:
    static void read(const Bfloat16* from, int64_t pitch, __m512i (*to)[kDoubles + 1]) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i, from += pitch) {
#pragma GCC unroll 4
            for (int j = 0; j < kDoubles; ++j) {
                to[i][j] = _mm512_loadu_si512(from + 2 * j * kLanes);
            }
            if (kSingle) {
                to[i][kDoubles] = _mm512_zextsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(from + (kCols - 1) * kLanes)));
            }
        }
    }
};
