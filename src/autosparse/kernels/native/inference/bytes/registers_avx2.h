// Registers of 32 bytes: AVX2, and half a vector beside AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

// How four products of bytes are summed: by words, or by one instruction; on AVX2 and on AVX-512. Each has types of its own, so that
// no function compiled for AVX-512 can take the place of one for AVX2.
enum class Dot { kWords, kVex, kEvexWords, kEvex };

template <Dot kDot>
struct Register256 {
    using Int = __m256i;
    using Float = __m256;
    static constexpr int pixels = 32;

    static Int zero() { return _mm256_setzero_si256(); }
    static Int splat(int32_t value) { return _mm256_set1_epi32(value); }
    static Int filled(uint8_t value) { return _mm256_set1_epi8(static_cast<char>(value)); }
    static Float splat(float value) { return _mm256_set1_ps(value); }
    static Int load(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
    static void store(uint8_t* to, Int value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
    static Float load_floats(const float* from) { return _mm256_loadu_ps(from); }
    static void store_floats(float* to, Float value) { _mm256_storeu_ps(to, value); }
    static Int low_bytes(Int a, Int b) { return _mm256_unpacklo_epi8(a, b); }
    static Int high_bytes(Int a, Int b) { return _mm256_unpackhi_epi8(a, b); }
    static Int low_words(Int a, Int b) { return _mm256_unpacklo_epi16(a, b); }
    static Int high_words(Int a, Int b) { return _mm256_unpackhi_epi16(a, b); }
    static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
    static Int both(Int a, Int b) { return _mm256_and_si256(a, b); }
    static constexpr uint8_t least = 0;
    static Int ordered(Int a) { return a; }  // as `largest` compares, and back
    static Int largest(Int a, Int b) { return _mm256_max_epu8(a, b); }
    // The even or the odd ones of 64 bytes.
    template <bool kOdd>
    static Int alternate(const uint8_t* from) {
        const Int low = _mm256_set1_epi16(0xff), a = load(from), b = load(from + 32);
        const Int words = kOdd ? _mm256_packus_epi16(odd_bytes(a), odd_bytes(b)) : _mm256_packus_epi16(both(a, low), both(b, low));
        return _mm256_permute4x64_epi64(words, 0xd8);
    }
    static void store_first(uint8_t* to, Int value, int64_t count) {
        if constexpr (kDot == Dot::kEvexWords || kDot == Dot::kEvex) {
            _mm256_mask_storeu_epi8(to, static_cast<__mmask32>((uint64_t{1} << count) - 1), value);
        } else {
            uint8_t bytes[pixels];
            store(bytes, value);
            __builtin_memcpy(to, bytes, count);
        }
    }
    static Int odd_bytes(Int a) { return _mm256_srli_epi16(a, 8); }
    static Int negative_bytes(Int a) { return _mm256_cmpgt_epi8(_mm256_setzero_si256(), a); }
    static Int multiply_words(Int a, Int b) { return _mm256_madd_epi16(a, b); }
    // From 255 where a pixel is, for `select`.
    static Int mask(const uint8_t* valid) { return load(valid); }
    static Int select(Int mask, Int yes, Int no) { return _mm256_blendv_epi8(no, yes, mask); }
    static Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
    static Int to_int(Float a) { return _mm256_cvtps_epi32(a); }
    static constexpr int quantized = 8;
    static void quantize(const float* from, float inverse_scale, float zero_point, uint8_t* to) {
        const Float scaled = multiply_add(_mm256_loadu_ps(from), splat(inverse_scale), splat(zero_point));
        // in this order what is not a number becomes 0
        const Int levels = to_int(_mm256_min_ps(_mm256_max_ps(scaled, _mm256_setzero_ps()), splat(255.0f)));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(levels), _mm256_extracti128_si256(levels, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
    }
    static Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static Int pack_words(Int a, Int b) { return _mm256_packs_epi32(a, b); }
    static Int pack_bytes(Int a, Int b) { return _mm256_packus_epi16(a, b); }
    static int32_t sum(Int a) {
        const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        const __m128i pair = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
        return _mm_cvtsi128_si32(pair) + _mm_extract_epi32(pair, 1);
    }
    static void dot(Int& sums, Int x, Int w) {
        if constexpr (kDot == Dot::kVex) {
            asm("%{vex%} vpdpbusd %2,%1,%0" : "+x"(sums) : "x"(x), "x"(w));
        } else {
            asm("vpdpbusd %2,%1,%0" : "+v"(sums) : "v"(x), "v"(w));
        }
    }
};
