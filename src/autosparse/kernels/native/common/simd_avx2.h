// Eight floats at a time: AVX2 and FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

struct Avx2 {
    using Element = float;     // of tensors
    using Cell = float;       // of packed tiles
    using Float = Avx2;       // the same instructions for tensors in float
    using Multiplier = Avx2;  // what multiplies packed tiles
    using Images = Avx2;      // what takes one channel of many images
    using Vec = __m256;
    static constexpr int lanes = 8;

    static Vec folded(Vec value) { return value; }  // a vector of Images as one of these
    static Vec zero() { return _mm256_setzero_ps(); }
    static Vec broadcast(float value) { return _mm256_set1_ps(value); }
    static Vec load(const float* from) { return _mm256_load_ps(from); }
    static Vec load_unaligned(const float* from) { return _mm256_loadu_ps(from); }
    static Vec load_first(const float* from, int count) { return _mm256_maskload_ps(from, first(count)); }
    static void store(float* to, Vec value) { _mm256_store_ps(to, value); }
    static void store_unaligned(float* to, Vec value) { _mm256_storeu_ps(to, value); }
    static void store_first(float* to, Vec value, int count) { _mm256_maskstore_ps(to, first(count), value); }
    // To memory without passing through the caches; `to` lies on a vector's boundary.
    static void stream(float* to, Vec value) { _mm256_stream_ps(to, value); }
    static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static Vec subtract(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
    static Vec multiply(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

    static Vec relu(Vec a) { return _mm256_max_ps(_mm256_setzero_ps(), a); }  // in this order NaN stays NaN
    static Vec where_positive(Vec test, Vec value) {
        return _mm256_and_ps(_mm256_cmp_ps(test, _mm256_setzero_ps(), _CMP_GT_OQ), value);
    }
    static Vec choose_positive(Vec test, Vec yes, Vec no) {
        return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(test, _mm256_setzero_ps(), _CMP_GT_OQ));
    }
    // Adds every lane to one of `lanes` doubles.
    static void add_to(double* sums, Vec value) {
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
        const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
        _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), low));
        _mm256_storeu_pd(sums + 4, _mm256_add_pd(_mm256_loadu_pd(sums + 4), high));
    }

    // Bit i is set where from[i] is not zero; NaN is not zero.
    static uint32_t nonzero_bits(const float* from) {
        const Vec differs = _mm256_cmp_ps(_mm256_loadu_ps(from), _mm256_setzero_ps(), _CMP_NEQ_UQ);
        return static_cast<uint32_t>(_mm256_movemask_ps(differs));
    }

    // In place: lane j of row i becomes lane i of row j.
    static void transpose(Vec* rows) {
        Vec a[8];
        for (int i = 0; i < 8; i += 2) {
            a[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
            a[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
        }
        Vec b[8];
        for (int i = 0; i < 8; i += 4) {
            b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
            b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
            b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
            b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
        }
        for (int i = 0; i < 4; ++i) {
            rows[i] = low_halves(b[i], b[i + 4]);
            rows[i + 4] = high_halves(b[i], b[i + 4]);
        }
    }

    // Lane i of the result is the sum of all lanes of rows[i].
    static Vec sums(const Vec* rows) {
        const Vec low = _mm256_hadd_ps(_mm256_hadd_ps(rows[0], rows[1]), _mm256_hadd_ps(rows[2], rows[3]));
        const Vec high = _mm256_hadd_ps(_mm256_hadd_ps(rows[4], rows[5]), _mm256_hadd_ps(rows[6], rows[7]));
        return add(low_halves(low, high), high_halves(low, high));
    }

    // Eight bfloat16 as floats, and back, rounded to nearest even; NaN stays NaN. `stream_narrow`: see `stream`.
    static Vec widen(const uint16_t* from) { return widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
    static Vec widen_first(const uint16_t* from, int count) {
        __m128i halves = _mm_setzero_si128();
        std::memcpy(&halves, from, count * sizeof(uint16_t));
        return widened(halves);
    }
    static void narrow(uint16_t* to, Vec value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrowed(value)); }
    static void narrow_first(uint16_t* to, Vec value, int count) {
        const __m128i halves = narrowed(value);
        std::memcpy(to, &halves, count * sizeof(uint16_t));
    }
    static void stream_narrow(uint16_t* to, Vec value) { _mm_stream_si128(reinterpret_cast<__m128i*>(to), narrowed(value)); }

private:
    static Vec widened(__m128i halves) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)); }
    static __m128i narrowed(Vec value) {
        const __m256i bits = _mm256_castps_si256(value);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
        const __m256i halves = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
        return _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    }
    static __m256i first(int count) {
        const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), index);
    }
    static Vec low_halves(Vec a, Vec b) { return _mm256_permute2f128_ps(a, b, 0x20); }
    static Vec high_halves(Vec a, Vec b) { return _mm256_permute2f128_ps(a, b, 0x31); }
};
