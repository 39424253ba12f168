// The end of every operation: bias, activation, and zeros where no pixel is.
#pragma once

#include "interface.h"

// The activation of one operation, in registers.
template <class Simd>
struct Activation {
    typename Simd::Vec low, high;

    explicit Activation(const Finish& finish) : low(Simd::broadcast(finish.low)), high(Simd::broadcast(finish.high)) {}

    // The value stands last in both: then NaN passes through, as it does in torch.
    typename Simd::Vec operator()(typename Simd::Vec value) const { return Simd::min(high, Simd::max(low, value)); }
};

static inline float bounded(float value, float low, float high) {
    value = value < low ? low : value;  // in this order NaN passes through
    return value > high ? high : value;
}

static inline float bias_of(const Finish& finish, int64_t channel) { return finish.bias ? finish.bias[channel] : 0.0f; }
