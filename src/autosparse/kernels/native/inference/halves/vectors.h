// Sums of pairs in the registers of AVX-512 with bfloat16.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../bytes/interface.h"

// Any two non-zeros that `kRows` neighbouring output channels have in common, as in Quad.
template <int kRows>
struct Pair {
    int32_t offset[2];
    uint16_t weight[kRows][2];
};

// Two vectors of floats for 32 pixels: those of the low and of the high half of every 128 bits, as unpacks leave them.
struct HalfVectors {
    using Number = uint16_t;
    using Float = __m512;
    using Int = __m512i;
    using Weight = Int;
    template <int kRows>
    using Group = Pair<kRows>;
    // and vectors of sums that are fewer than what a dot product's latency takes
    static constexpr int pixels = 32, waiting = 3;
    static constexpr Number least = 0xff80;  // minus infinity

    struct Sums {
        Float low, high;
    };
    struct Inputs {
        Int low, high;
    };
    struct Places {
        const uint16_t *a, *b;
    };

    static Sums zeros() { return {_mm512_setzero_ps(), _mm512_setzero_ps()}; }
    static Int weight(const uint16_t* two) {
        int32_t packed;
        __builtin_memcpy(&packed, two, sizeof packed);
        return _mm512_set1_epi32(packed);
    }
    static inline __attribute__((always_inline)) Places places(const uint16_t* input, const int32_t* offset) {
        return {input + offset[0], input + offset[1]};
    }
    static inline __attribute__((always_inline)) Inputs gather(const Places& from, int at) {
        Int x = load(from.a + at), y = load(from.b + at);
        asm("" : "+v"(x), "+v"(y));  // in registers: as operands in memory they would be loaded twice
        return {_mm512_unpacklo_epi16(x, y), _mm512_unpackhi_epi16(x, y)};
    }
    static inline __attribute__((always_inline)) void dot(Sums& sums, const Inputs& x, Int w) {
        asm("vdpbf16ps %2,%1,%0" : "+v"(sums.low) : "v"(x.low), "v"(w));
        asm("vdpbf16ps %2,%1,%0" : "+v"(sums.high) : "v"(x.high), "v"(w));
    }
    static inline __attribute__((always_inline)) void add_to(Sums& sums, const Sums& more) {
        sums = {_mm512_add_ps(sums.low, more.low), _mm512_add_ps(sums.high, more.high)};
    }
    static Sums widened(const uint16_t* from) {
        const Int x = load(from), zero = _mm512_setzero_si512();
        return {_mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, x)), _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, x))};
    }
    // Rounded to the nearest, halves to even; zero where no pixel is.
    static inline __attribute__((always_inline)) void finish(const Sums& sums, float scale, float bias, const uint16_t* other,
                                                             const ByteOp& op, const uint8_t* valid, uint16_t* to) {
        const Float m = _mm512_set1_ps(scale), b = _mm512_set1_ps(bias);
        const Float least = _mm512_set1_ps(op.low), most = _mm512_set1_ps(op.high);
        Sums value = {_mm512_fmadd_ps(sums.low, m, b), _mm512_fmadd_ps(sums.high, m, b)};
        if (other != nullptr) {
            add_to(value, widened(other));
        }
        // the value stands last in both: then NaN passes through, as it does in torch
        value = {_mm512_min_ps(most, _mm512_max_ps(least, value.low)), _mm512_min_ps(most, _mm512_max_ps(least, value.high))};
        Int packed;
        asm("vcvtne2ps2bf16 %1,%2,%0" : "=v"(packed) : "v"(value.low), "v"(value.high));
        const Int in_order = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), packed);
        store(to, _mm512_maskz_mov_epi16(mask(valid), in_order));
    }
    static Int load(const uint16_t* from) { return _mm512_loadu_si512(from); }
    static void store(uint16_t* to, Int value) { _mm512_storeu_si512(to, value); }
    static Int filled(uint16_t value) { return _mm512_set1_epi16(static_cast<int16_t>(value)); }
    // From 255 where a pixel is, for `select`.
    static __mmask32 mask(const uint8_t* valid) {
        return _mm256_movepi8_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(valid)));
    }
    static Int select(__mmask32 some, Int yes, Int no) { return _mm512_mask_mov_epi16(no, some, yes); }
    // Sixteen floats, or the first of them.
    static void store_floats(const float* from, int64_t count, uint16_t* to) {
        const __mmask16 first = first_of(count);
        __m256i packed;
        asm("vcvtneps2bf16 %1,%0" : "=v"(packed) : "v"(_mm512_maskz_loadu_ps(first, from)));
        _mm256_mask_storeu_epi16(to, first, packed);
    }
    static __mmask16 first_of(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1); }
    // The even or the odd ones of 32 numbers.
    template <bool kOdd>
    static __m256i alternate(const uint16_t* from) {
        return _mm512_cvtepi32_epi16(kOdd ? _mm512_srli_epi32(load(from), 16) : load(from));
    }
    // The sum of sixteen numbers, or of the first of them, by lane.
    static Float add_first(Float sums, const uint16_t* from, __mmask16 first) {
        const Int wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, from));
        return _mm512_add_ps(sums, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
    }
    // Numbers in the order of signed integers, and back: the two are the same.
    static Int ordered(Int x) {
        return _mm512_xor_si512(x, _mm512_srli_epi16(_mm512_srai_epi16(x, 15), 1));
    }
    static Int largest(Int a, Int b) { return _mm512_max_epi16(a, b); }
};

// Sixteen numbers, as rows are taken apart.
struct HalfSplits {
    using Number = uint16_t;
    using Int = __m256i;
    static constexpr int pixels = 16;

    static void store(uint16_t* to, Int value) { _mm256_storeu_si256(reinterpret_cast<Int*>(to), value); }
    static void store_first(uint16_t* to, Int value, int64_t count) {
        _mm256_mask_storeu_epi16(to, HalfVectors::first_of(count), value);
    }
    static Int filled(uint16_t value) { return _mm256_set1_epi16(static_cast<int16_t>(value)); }
    static __mmask16 mask(const uint8_t* valid) {
        return _mm_movepi8_mask(_mm_loadu_si128(reinterpret_cast<const __m128i*>(valid)));
    }
    static Int select(__mmask16 some, Int yes, Int no) { return _mm256_mask_blend_epi16(some, no, yes); }
};

// The bfloat16 engine on AVX-512.
struct Halves {
    using Wide = HalfVectors;
    using Rest = HalfVectors;
    using Split = HalfSplits;
    // of a tile, for blocks of 1, 2 and 4 rows: at most 24 sums in 32 registers
    static constexpr int chunks[3] = {10, 5, 2};
};
