// What the inference engine needs beyond the training kernels, in the compiler's own vector type.
#pragma once

#include "common/simd_portable.h"

struct InferPortable : Portable {
    static constexpr int dense_rows = 6, dense_vectors = 2;

    static Vec max(Vec a, Vec b) { return each(a, b, [](float x, float y) { return x > y ? x : y; }); }
    static Vec min(Vec a, Vec b) { return each(a, b, [](float x, float y) { return x < y ? x : y; }); }
    static Vec keep(Vec value, const uint32_t* valid) {
        Vec kept = zero();
        for (int i = 0; i < lanes; ++i) {
            kept[i] = valid[i] ? value[i] : 0.0f;
        }
        return kept;
    }
    // The even lanes of a, then those of b.
    static Vec even(Vec a, Vec b) { return Vec{a[0], a[2], b[0], b[2]}; }
    // The next packed values spread to the set bits, zero elsewhere.
    static Vec expand(const float* from, uint32_t bits) {
        Vec spread = zero();
        for (int i = 0; i < lanes; ++i) {
            if (bits >> i & 1) {
                spread[i] = *from++;
            }
        }
        return spread;
    }
    static Vec from_bytes(const int8_t* from) {
        return Vec{float(from[0]), float(from[1]), float(from[2]), float(from[3])};
    }
    static float sum(Vec value) { return (value[0] + value[1]) + (value[2] + value[3]); }

private:
    template <class Function>
    static Vec each(Vec a, Vec b, Function function) {
        Vec result = zero();
        for (int i = 0; i < lanes; ++i) {
            result[i] = function(a[i], b[i]);
        }
        return result;
    }
};
