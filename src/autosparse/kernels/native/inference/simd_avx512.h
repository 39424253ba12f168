// What the inference engine needs of AVX-512 beyond the training kernels.
#pragma once

#include "common/simd_avx512.h"

struct InferAvx512 : Avx512 {
    static constexpr int dense_rows = 6, dense_vectors = 4;  // 24 sums, 4 inputs and a weight in 32 registers

    static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
    static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
    static Vec keep(Vec value, const uint32_t* valid) {
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), _mm512_loadu_si512(valid)));
    }
    // The even lanes of a, then those of b.
    static Vec even(Vec a, Vec b) {
        const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        return _mm512_permutex2var_ps(a, index, b);
    }
    // The next packed values spread to the set bits, zero elsewhere. (A load that expands is slow on some processors.)
    static Vec expand(const float* from, uint32_t bits) {
        return _mm512_maskz_expand_ps(static_cast<__mmask16>(bits), _mm512_loadu_ps(from));
    }
    static Vec from_bytes(const int8_t* from) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    }
    static float sum(Vec value) { return _mm512_reduce_add_ps(value); }
};
