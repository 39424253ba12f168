// What the inference engine needs of AVX2 beyond the training kernels.
#pragma once

#include "common/simd_avx2.h"

struct InferAvx2 : Avx2 {
    static constexpr int dense_rows = 6, dense_vectors = 2;  // 12 sums, 2 inputs and a weight in 16 registers

    static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
    static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
    static Vec keep(Vec value, const uint32_t* valid) {
        return _mm256_and_ps(value, _mm256_loadu_ps(reinterpret_cast<const float*>(valid)));
    }
    // The even lanes of a, then those of b.
    static Vec even(Vec a, Vec b) {
        const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
        return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xd8));
    }
    // The next packed values spread to the set bits, zero elsewhere: lane i takes value number (set bits below i).
    static Vec expand(const float* from, uint32_t bits) {
        constexpr uint64_t kLanes = 0x0706050403020100u, kOnes = 0x0101010101010101u;
        const uint64_t bytes = _pdep_u64(bits, kOnes) * 0xff;
        const __m128i places = _mm_cvtsi64_si128(static_cast<int64_t>(_pdep_u64(kLanes, bytes)));
        const __m128i used = _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
        const Vec spread = _mm256_permutevar8x32_ps(_mm256_loadu_ps(from), _mm256_cvtepu8_epi32(places));
        return _mm256_and_ps(spread, _mm256_castsi256_ps(_mm256_cvtepi8_epi32(used)));
    }
    static Vec from_bytes(const int8_t* from) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    }
    static float sum(Vec value) {
        const __m128 fours = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
        const __m128 pairs = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
        return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
    }
};
