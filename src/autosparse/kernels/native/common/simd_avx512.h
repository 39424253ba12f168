// Sixteen floats at a time: AVX-512 F and BW.
#pragma once

#include <immintrin.h>

#include <cstdint>

struct Avx512 {
    using Element = float;       // of tensors
    using Cell = float;         // of packed tiles
    using Float = Avx512;       // the same instructions for tensors in float
    using Multiplier = Avx512;  // what multiplies packed tiles
    using Images = Avx512;      // what takes one channel of many images
    using Vec = __m512;
    static constexpr int lanes = 16;

    static Vec folded(Vec value) { return value; }  // a vector of Images as one of these
    static Vec zero() { return _mm512_setzero_ps(); }
    static Vec broadcast(float value) { return _mm512_set1_ps(value); }
    static Vec load(const float* from) { return _mm512_load_ps(from); }
    static Vec load_unaligned(const float* from) { return _mm512_loadu_ps(from); }
    static Vec load_first(const float* from, int count) { return _mm512_maskz_loadu_ps(first(count), from); }
    static void store(float* to, Vec value) { _mm512_store_ps(to, value); }
    static void store_unaligned(float* to, Vec value) { _mm512_storeu_ps(to, value); }
    static void store_first(float* to, Vec value, int count) { _mm512_mask_storeu_ps(to, first(count), value); }
    // To memory without passing through the caches; `to` lies on a vector's boundary.
    static void stream(float* to, Vec value) { _mm512_stream_ps(to, value); }
    static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static Vec subtract(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
    static Vec multiply(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

    static Vec relu(Vec a) { return _mm512_max_ps(_mm512_setzero_ps(), a); }  // in this order NaN stays NaN
    static Vec where_positive(Vec test, Vec value) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, _mm512_setzero_ps(), _CMP_GT_OQ), value);
    }
    static Vec choose_positive(Vec test, Vec yes, Vec no) {
        return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(test, _mm512_setzero_ps(), _CMP_GT_OQ), yes);
    }
    // Adds every lane to one of `lanes` doubles.
    static void add_to(double* sums, Vec value) {
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
        _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), low));
        _mm512_storeu_pd(sums + 8, _mm512_add_pd(_mm512_loadu_pd(sums + 8), high));
    }

    // Bit i is set where from[i] is not zero; NaN is not zero.
    static uint32_t nonzero_bits(const float* from) {
        return _mm512_cmp_ps_mask(_mm512_loadu_ps(from), _mm512_setzero_ps(), _CMP_NEQ_UQ);
    }

    // In place: lane j of row i becomes lane i of row j.
    static void transpose(Vec* rows) {
        Vec a[16];
        for (int i = 0; i < 16; i += 2) {
            a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
            a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
        }
        Vec b[16];
        for (int i = 0; i < 16; i += 4) {
            b[i] = low_pairs(a[i], a[i + 2]);
            b[i + 1] = high_pairs(a[i], a[i + 2]);
            b[i + 2] = low_pairs(a[i + 1], a[i + 3]);
            b[i + 3] = high_pairs(a[i + 1], a[i + 3]);
        }
        for (int i = 0; i < 4; ++i) {
            a[i] = even_quarters(b[i], b[i + 4]);
            a[i + 4] = odd_quarters(b[i], b[i + 4]);
            a[i + 8] = even_quarters(b[i + 8], b[i + 12]);
            a[i + 12] = odd_quarters(b[i + 8], b[i + 12]);
        }
        for (int i = 0; i < 4; ++i) {
            rows[i] = even_quarters(a[i], a[i + 8]);
            rows[i + 8] = odd_quarters(a[i], a[i + 8]);
            rows[i + 4] = even_quarters(a[i + 4], a[i + 12]);
            rows[i + 12] = odd_quarters(a[i + 4], a[i + 12]);
        }
    }

    // Lane i of the result is the sum of all lanes of rows[i].
    static Vec sums(const Vec* rows) {
        Vec pairs[8];
        for (int i = 0; i < 8; ++i) {
            pairs[i] = add(_mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]), _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
        }
        Vec fours[4];
        for (int i = 0; i < 4; ++i) {
            fours[i] = add(low_pairs(pairs[2 * i], pairs[2 * i + 1]), high_pairs(pairs[2 * i], pairs[2 * i + 1]));
        }
        const Vec low = add(even_quarters(fours[0], fours[1]), odd_quarters(fours[0], fours[1]));
        const Vec high = add(even_quarters(fours[2], fours[3]), odd_quarters(fours[2], fours[3]));
        return add(even_quarters(low, high), odd_quarters(low, high));
    }

    // Sixteen bfloat16 as floats, and back, rounded to nearest even; NaN stays NaN. `stream_narrow`: see `stream`.
    static Vec widen(const uint16_t* from) { return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
    static Vec widen_first(const uint16_t* from, int count) { return widened(_mm256_maskz_loadu_epi16(first(count), from)); }
    static void narrow(uint16_t* to, Vec value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed(value)); }
    static void narrow_first(uint16_t* to, Vec value, int count) {
        _mm256_mask_storeu_epi16(to, first(count), narrowed(value));
    }
    static void stream_narrow(uint16_t* to, Vec value) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to), narrowed(value));
    }

private:
    static Vec widened(__m256i halves) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    static __m256i narrowed(Vec value) {
        const __m512i bits = _mm512_castps_si512(value);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000)), 16));
    }
    static __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1); }
    static Vec low_pairs(Vec a, Vec b) {
        return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    }
    static Vec high_pairs(Vec a, Vec b) {
        return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    }
    // Groups of four lanes: 0 and 2 of a, 0 and 2 of b; or 1 and 3 of each.
    static Vec even_quarters(Vec a, Vec b) { return _mm512_shuffle_f32x4(a, b, 0x88); }
    static Vec odd_quarters(Vec a, Vec b) { return _mm512_shuffle_f32x4(a, b, 0xdd); }
};
