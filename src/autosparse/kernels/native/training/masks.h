// A product with a mask and a gate, one pass over the values.
#pragma once

#include "interface.h"
#include "threshold.h"

// The product of one slice; arguments instead of a closure, or the compiler would not vectorise the loop.
template <class Simd, bool kRestricted>
int64_t multiply_slice(int64_t count, const uint8_t* mask, const uint8_t* receives, const float* values, float gate,
                       float* product) {
    int32_t strays = 0;
#pragma omp simd reduction(+ : strays)
    for (int64_t each = 0; each < count; ++each) {
        const float share = static_cast<float>(mask[each]), value = values[each];
        const float pruned = kRestricted ? static_cast<float>(receives[each]) * gate : gate;
        strays += (share == 0.0f ? 1 : 0) & (value != 0.0f ? 1 : 0);
        product[each] = (share > pruned ? share : pruned) * value;
    }
    return strays;
}

template <class Simd>
int64_t masked_product(int64_t count, const uint8_t* mask, const uint8_t* receives, const float* values, float gate,
                       int64_t threads, float* product) {
    return add_threshold_slices(count, threads, [=](int64_t first, int64_t last) {
        if (receives == nullptr) {
            return multiply_slice<Simd, false>(last - first, mask + first, nullptr, values + first, gate, product + first);
        }
        return multiply_slice<Simd, true>(last - first, mask + first, receives + first, values + first, gate, product + first);
    });
}
