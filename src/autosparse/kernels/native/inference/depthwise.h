// A few taps a channel: depthwise convolutions and the pools.
#pragma once

#include "finish.h"
#include "interface.h"

constexpr int kTapsOfThreeByThree = 9;

// Weighted sums of the taps.
template <class Simd>
struct WeightedTaps {
    using Vec = typename Simd::Vec;
    const float* weights;
    const int32_t* offsets;
    int64_t taps;
    float bias;

    Vec operator()(const float* input) const {
        Vec sum = Simd::broadcast(bias);
        for (int64_t tap = 0; tap < taps; ++tap) {
            sum = Simd::multiply_add(Simd::broadcast(weights[tap]), Simd::load_unaligned(input + offsets[tap]), sum);
        }
        return sum;
    }
};

// The same for 3x3 with the weights in registers and three chains of sums.
template <class Simd>
struct NineTaps {
    using Vec = typename Simd::Vec;
    Vec weights[kTapsOfThreeByThree], bias;
    const int32_t* offsets;

    NineTaps(const float* given, const int32_t* places, float first) : bias(Simd::broadcast(first)), offsets(places) {
        for (int tap = 0; tap < kTapsOfThreeByThree; ++tap) {
            weights[tap] = Simd::broadcast(given[tap]);
        }
    }
    Vec operator()(const float* input) const {
        Vec a = bias, b = Simd::zero(), c = Simd::zero();
        for (int tap = 0; tap < kTapsOfThreeByThree; tap += 3) {
            a = Simd::multiply_add(weights[tap], Simd::load_unaligned(input + offsets[tap]), a);
            b = Simd::multiply_add(weights[tap + 1], Simd::load_unaligned(input + offsets[tap + 1]), b);
            c = Simd::multiply_add(weights[tap + 2], Simd::load_unaligned(input + offsets[tap + 2]), c);
        }
        return Simd::add(a, Simd::add(b, c));
    }
};

template <class Simd>
struct LargestTap {
    using Vec = typename Simd::Vec;
    const int32_t* offsets;
    int64_t taps;

    Vec operator()(const float* input) const {
        Vec largest = Simd::load_unaligned(input + offsets[0]);
        for (int64_t tap = 1; tap < taps; ++tap) {
            largest = Simd::max(largest, Simd::load_unaligned(input + offsets[tap]));
        }
        return largest;
    }
};

template <class Simd>
struct MeanTap {
    using Vec = typename Simd::Vec;
    const int32_t* offsets;
    int64_t taps;
    float scale;

    Vec operator()(const float* input) const {
        Vec sum = Simd::zero();
        for (int64_t tap = 0; tap < taps; ++tap) {
            sum = Simd::add(sum, Simd::load_unaligned(input + offsets[tap]));
        }
        return Simd::multiply(sum, Simd::broadcast(scale));
    }
};

// Some vectors of one channel; zeros where no pixel is if `valid` is given.
template <class Simd, class Taps>
void apply_taps(const Taps& taps, const Activation<Simd>& activate, const float* input, int64_t vectors,
                const uint32_t* valid, float* output) {
    for (int64_t v = 0; v < vectors; ++v) {
        const typename Simd::Vec value = activate(taps(input + v * Simd::lanes));
        Simd::store(output + v * Simd::lanes, valid ? Simd::keep(value, valid + v * Simd::lanes) : value);
    }
}

template <class Simd>
void depthwise_channel(const Op& op, int64_t channel, const float* input, int64_t vectors, const uint32_t* valid,
                       float* output) {
    const Activation<Simd> activate(op.tap_finish);
    const float* weights = op.tap_weights + channel * op.taps;
    const float bias = bias_of(op.tap_finish, channel);
    if (op.taps == kTapsOfThreeByThree) {
        apply_taps<Simd>(NineTaps<Simd>(weights, op.tap_offsets, bias), activate, input, vectors, valid, output);
    } else {
        apply_taps<Simd>(WeightedTaps<Simd>{weights, op.tap_offsets, op.taps, bias}, activate, input, vectors, valid, output);
    }
}
