// Sums of pairs in the registers of AVX-512 with bfloat16.
#pragma once

#include <immintrin.h>

#include <cstdint>

// Two vectors of floats for 32 pixels: those of the low and of the high half of every 128 bits, as unpacks leave them.
struct Halves {
    using Float = __m512;
    using Int = __m512i;
    static constexpr int pixels = 32;
    // of a tile in vectors, for blocks of 1, 2 and 4 rows: at most 24 sums in 32 registers
    static constexpr int vectors[3] = {10, 5, 2};

    // vectors of sums that are fewer than what a dot product's latency takes
    static constexpr int waiting = 3;

    struct Two {
        Float low, high;
    };
    struct Inputs {
        Int low, high;
    };

    static Two zeros() { return {_mm512_setzero_ps(), _mm512_setzero_ps()}; }
    static Int weight(const uint16_t* two) {
        int32_t packed;
        __builtin_memcpy(&packed, two, sizeof packed);
        return _mm512_set1_epi32(packed);
    }
    static inline __attribute__((always_inline)) Inputs gather(const uint16_t* a, const uint16_t* b) {
        Int x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
        asm("" : "+v"(x), "+v"(y));  // in registers: as operands in memory they would be loaded twice
        return {_mm512_unpacklo_epi16(x, y), _mm512_unpackhi_epi16(x, y)};
    }
    static inline __attribute__((always_inline)) void dot(Two& sums, const Inputs& x, Int w) {
        asm("vdpbf16ps %2,%1,%0" : "+v"(sums.low) : "v"(x.low), "v"(w));
        asm("vdpbf16ps %2,%1,%0" : "+v"(sums.high) : "v"(x.high), "v"(w));
    }
    static inline __attribute__((always_inline)) void add_to(Two& sums, const Two& more) {
        sums = {_mm512_add_ps(sums.low, more.low), _mm512_add_ps(sums.high, more.high)};
    }
    static Two load(const uint16_t* from) {
        const Int x = _mm512_loadu_si512(from), zero = _mm512_setzero_si512();
        return {_mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, x)), _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, x))};
    }
    // Rounded to the nearest, halves to even; zero where no pixel is.
    static void store(const Two& value, const uint8_t* valid, uint16_t* to) {
        Int packed;
        asm("vcvtne2ps2bf16 %1,%2,%0" : "=v"(packed) : "v"(value.low), "v"(value.high));
        const Int ordered = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), packed);
        const __mmask32 some = _mm256_movepi8_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(valid)));
        _mm512_storeu_si512(to, _mm512_maskz_mov_epi16(some, ordered));
    }
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
        const Int numbers = _mm512_loadu_si512(from);
        return _mm512_cvtepi32_epi16(kOdd ? _mm512_srli_epi32(numbers, 16) : numbers);
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
};
