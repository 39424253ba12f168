// Registers of 64 bytes: AVX-512 F and BW.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "registers_avx2.h"

template <Dot kDot>
struct Register512 {
    using Int = __m512i;
    using Float = __m512;
    static constexpr int pixels = 64;

    static Int zero() { return _mm512_setzero_si512(); }
    static Int splat(int32_t value) { return _mm512_set1_epi32(value); }
    static Int filled(uint8_t value) { return _mm512_set1_epi8(static_cast<char>(value)); }
    static Float splat(float value) { return _mm512_set1_ps(value); }
    static Int load(const uint8_t* from) { return _mm512_loadu_si512(from); }
    static void store(uint8_t* to, Int value) { _mm512_storeu_si512(to, value); }
    static Float load_floats(const float* from) { return _mm512_loadu_ps(from); }
    static void store_floats(float* to, Float value) { _mm512_storeu_ps(to, value); }
    static Int low_bytes(Int a, Int b) { return _mm512_unpacklo_epi8(a, b); }
    static Int high_bytes(Int a, Int b) { return _mm512_unpackhi_epi8(a, b); }
    static Int low_words(Int a, Int b) { return _mm512_unpacklo_epi16(a, b); }
    static Int high_words(Int a, Int b) { return _mm512_unpackhi_epi16(a, b); }
    static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
    static Int both(Int a, Int b) { return _mm512_and_si512(a, b); }
    static Int largest(Int a, Int b) { return _mm512_max_epu8(a, b); }
    // The even or the odd ones of 64 bytes.
    template <bool kOdd>
    static __m256i alternate(const uint8_t* from) {
        const Int bytes = load(from);
        return _mm512_cvtepi16_epi8(kOdd ? odd_bytes(bytes) : bytes);
    }
    static Int odd_bytes(Int a) { return _mm512_srli_epi16(a, 8); }
    static Int negative_bytes(Int a) { return _mm512_movm_epi8(_mm512_movepi8_mask(a)); }
    static Int multiply_words(Int a, Int b) { return _mm512_madd_epi16(a, b); }
    static Int select(Int mask, Int yes, Int no) { return _mm512_ternarylogic_epi32(mask, yes, no, 0xca); }
    static Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
    static Int to_int(Float a) { return _mm512_cvtps_epi32(a); }
    static constexpr int quantized = 16;
    static void quantize(const float* from, float inverse_scale, float zero_point, uint8_t* to) {
        const Float scaled = multiply_add(_mm512_loadu_ps(from), splat(inverse_scale), splat(zero_point));
        // in this order what is not a number becomes 0
        const Float bounded = _mm512_min_ps(_mm512_max_ps(scaled, _mm512_setzero_ps()), splat(255.0f));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(to_int(bounded)));
    }
    static Float multiply_add(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static Int pack_words(Int a, Int b) { return _mm512_packs_epi32(a, b); }
    static Int pack_bytes(Int a, Int b) { return _mm512_packus_epi16(a, b); }
    static int32_t sum(Int a) { return _mm512_reduce_add_epi32(a); }
    // As assembly: GCC 12 adds moves around the intrinsic.
    static void dot(Int& sums, Int x, Int w) { asm("vpdpbusd %2,%1,%0" : "+v"(sums) : "v"(x), "v"(w)); }
};
