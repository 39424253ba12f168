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

// Two neighbouring pixels of sixteen images each. `low` and `high` have the quarters of their lanes as unpacking orders them,
// which is the order of the sums of pairs: nothing is moved between registers but what is stored in bfloat16.
struct TwoPixels {
    using Element = Bfloat16;
    struct Vec {
        __m512 low, high;
    };
    static constexpr int lanes = 32;

    static Vec zero() { return {_mm512_setzero_ps(), _mm512_setzero_ps()}; }
    static Vec broadcast(float value) { return {_mm512_set1_ps(value), _mm512_set1_ps(value)}; }
    static Vec load_unaligned(const Bfloat16* from) { return widened(_mm512_loadu_si512(from)); }
    static Vec load_first(const Bfloat16* from, int count) { return widened(_mm512_maskz_loadu_epi16(first(count), from)); }
    static void store_unaligned(Bfloat16* to, Vec value) { _mm512_storeu_si512(to, narrowed(value)); }
    static void store_first(Bfloat16* to, Vec value, int count) { _mm512_mask_storeu_epi16(to, first(count), narrowed(value)); }
    static void stream(Bfloat16* to, Vec value) {
        if (reinterpret_cast<uintptr_t>(to) % sizeof(__m512i) == 0) {
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to), narrowed(value));
        } else {
            store_unaligned(to, value);
        }
    }
    static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.low, b.low), _mm512_add_ps(a.high, b.high)}; }
    static Vec subtract(Vec a, Vec b) { return {_mm512_sub_ps(a.low, b.low), _mm512_sub_ps(a.high, b.high)}; }
    static Vec multiply_add(Vec a, Vec b, Vec c) {
        return {_mm512_fmadd_ps(a.low, b.low, c.low), _mm512_fmadd_ps(a.high, b.high, c.high)};
    }
    static Vec relu(Vec a) { return {Avx512::relu(a.low), Avx512::relu(a.high)}; }
    static Vec where_positive(Vec test, Vec value) {
        return {Avx512::where_positive(test.low, value.low), Avx512::where_positive(test.high, value.high)};
    }
    static __m512 folded(Vec value) { return _mm512_add_ps(value.low, value.high); }

private:
    // Bfloat16 are the upper halves of floats.
    static Vec widened(__m512i both) {
        const __m512i zero = _mm512_setzero_si512();
        return {_mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, both)), _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, both))};
    }
    static __m512i narrowed(Vec value) {
        const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(value.high, value.low));
        return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), halves);
    }
    static __mmask32 first(int count) { return static_cast<__mmask32>((uint64_t{1} << count) - 1); }
};

struct Paired : Widened<Avx512> {
    using Cell = Bfloat16;
    using Multiplier = Paired;
    using Images = TwoPixels;

    using Avx512::store;
    static void store(Bfloat16* to, Vec value) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), halves(value)); }
    static void store_unaligned(Bfloat16* to, Vec value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves(value)); }
    static void store_unaligned(float* to, Vec value) { Avx512::store_unaligned(to, value); }
    static void stream(Bfloat16* to, Vec value) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), halves(value)); }

private:
    static __m256i halves(Vec value) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)); }
};

// In the order of TwoPixels; the last column of an odd number has a neighbour that means nothing.
template <>
struct StagedSums<Paired> {
    static constexpr int64_t columns(int64_t cols) { return (cols + 1) / 2 * 2; }

    static __m512 pixel(const float* channel, int64_t row, int64_t col, int64_t cols) {
        const TwoPixels::Vec both = run(channel, row, col / 2 * 2, cols);
        const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        return _mm512_permutex2var_ps(both.low, col % 2 == 0 ? first : second, both.high);
    }
    static TwoPixels::Vec run(const float* channel, int64_t row, int64_t col, int64_t cols) {
        const float* from = channel + (row * columns(cols) + col) * Paired::lanes;
        return {_mm512_load_ps(from), _mm512_load_ps(from + Paired::lanes)};
    }
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

template <int kRows, int kCols>
struct TileLoops<Paired, kRows, kCols> {
    static constexpr int kLanes = Paired::lanes, kDoubles = (kCols + 1) / 2;
    static constexpr bool kSingle = kCols % 2 == 1;

    // As multiply_rows, for two neighbouring columns at a time. The last of an odd number is multiplied with the cells behind
    // it, whatever they hold: that is faster than half a register.
    static void multiply(int64_t rows, const int32_t* row_start, const Pair* pairs, const Bfloat16* tile, int64_t row_pitch,
                         const float* start, const float* bias, float* sums) {
        constexpr int64_t kChannel = kRows * kDoubles * 2 * kLanes;
        for (int64_t row = 0; row < rows; ++row) {
            TwoPixels::Vec sum[kRows][kDoubles];
            const TwoPixels::Vec first = TwoPixels::broadcast(bias != nullptr && start == nullptr ? bias[row] : 0.0f);
#pragma GCC unroll 16
            for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < kDoubles; ++j) {
                    sum[i][j] = start == nullptr ? first : StagedSums<Paired>::run(start + row * kChannel, i, 2 * j, kCols);
                }
            }
            const Pair* end = pairs + row_start[row + 1];
            for (const Pair* pair = pairs + row_start[row]; pair != end; ++pair) {
                int32_t both;
                std::memcpy(&both, pair->weight, sizeof both);
                const __m512i weight = _mm512_set1_epi32(both);
                const Bfloat16 *x = tile + pair->offset[0], *y = tile + pair->offset[1];
#pragma GCC unroll 16
                for (int i = 0; i < kRows; ++i, x += row_pitch, y += row_pitch) {
#pragma GCC unroll 8
                    for (int j = 0; j < kDoubles; ++j) {
                        __m512i one = _mm512_loadu_si512(x + 2 * j * kLanes), other = _mm512_loadu_si512(y + 2 * j * kLanes);
                        asm("" : "+v"(one));
                        asm("" : "+v"(other));
                        add_dot(sum[i][j].low, _mm512_unpacklo_epi16(one, other), weight);
                        add_dot(sum[i][j].high, _mm512_unpackhi_epi16(one, other), weight);
                    }
                }
            }
            float* to = sums + row * kChannel;
#pragma GCC unroll 16
            for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < kDoubles; ++j, to += 2 * kLanes) {
                    _mm512_store_ps(to, sum[i][j].low);
                    _mm512_store_ps(to + kLanes, sum[i][j].high);
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
            __m512i grad[kRows][kDoubles];
            if (entry < end) {
                read(grad_output + row * kRows * kCols * kLanes, kCols * kLanes, grad);
            }
            for (; entry < end; ++entry) {
                __m512i input[kRows][kDoubles];
                read(tile + entries[entry].offset, row_pitch, input);
                __m512 even = _mm512_setzero_ps(), odd = even;
#pragma GCC unroll 8
                for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
                    for (int j = 0; j < kDoubles; ++j) {
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
    static void read(const Bfloat16* from, int64_t pitch, __m512i (*to)[kDoubles]) {
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i, from += pitch) {
#pragma GCC unroll 8
            for (int j = 0; j < kCols / 2; ++j) {
                to[i][j] = _mm512_loadu_si512(from + 2 * j * kLanes);
            }
            if (kSingle) {
                to[i][kDoubles - 1] = _mm512_zextsi256_si512(_mm256_load_si256(reinterpret_cast<const __m256i*>(from + (kCols - 1) * kLanes)));
            }
        }
    }
};
