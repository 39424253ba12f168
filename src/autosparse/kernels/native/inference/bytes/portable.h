// Sums of quads in plain C++: what every 64-bit processor has.
#pragma once

#include <cstdint>

#include "interface.h"

struct PortableBytes {
    using Number = uint8_t;
    static constexpr int pixels = 32, lanes = 32, waiting = 1;

    struct Int {
        int32_t at[pixels];
    };
    struct Four {
        Int part[1];
    };
    using Sums = Four;
    struct Places {
        const uint8_t *a, *b, *c, *d;
    };
    template <int kRows>
    using Group = Quad<kRows>;
    struct Weight {
        int32_t of[4];
    };

    static constexpr int quantized = 1;
    static void quantize(const float* from, float inverse_scale, float zero_point, uint8_t* to) {
        const float scaled = __builtin_fmaf(*from, inverse_scale, zero_point);
        const float bounded = scaled > 0.0f ? (scaled < 255.0f ? scaled : 255.0f) : 0.0f;
        *to = static_cast<uint8_t>(__builtin_rintf(bounded));
    }

    static Four zeros() { return {}; }
    static Weight weight(const int8_t* four) { return {{four[0], four[1], four[2], four[3]}}; }
    static Places places(const uint8_t* input, const int32_t* offset) {
        return {input + offset[0], input + offset[1], input + offset[2], input + offset[3]};
    }
    static Places gather(const Places& from, int at) { return {from.a + at, from.b + at, from.c + at, from.d + at}; }
    static void dot(Four& sums, const Places& x, const Weight& w) {
        for (int i = 0; i < pixels; ++i) {
            sums.part[0].at[i] += x.a[i] * w.of[0] + x.b[i] * w.of[1] + x.c[i] * w.of[2] + x.d[i] * w.of[3];
        }
    }
    static void add_to(Four& sums, const Four& more) {
        for (int i = 0; i < pixels; ++i) {
            sums.part[0].at[i] += more.part[0].at[i];
        }
    }
    static void finish(const Four& sums, float scale, float bias, const uint8_t* other, const ByteOp& op, const uint8_t* valid,
                       uint8_t* to) {
        const uint8_t outside = static_cast<uint8_t>(op.output->zero_point);
        const float other_scale = op.other_scale;
        for (int i = 0; i < pixels; ++i) {
            float value = __builtin_fmaf(static_cast<float>(sums.part[0].at[i]), scale, bias);
            if (other != nullptr) {
                value = __builtin_fmaf(static_cast<float>(other[i]), other_scale, value);
            }
            const float rounded = __builtin_rintf(value);
            const uint8_t byte = rounded <= 0.0f ? 0 : rounded >= 255.0f ? 255 : static_cast<uint8_t>(rounded);
            to[i] = valid[i] ? byte : outside;
        }
    }
    static void finish_floats(const Four& sums, float scale, float bias, float* to) {
        for (int i = 0; i < pixels; ++i) {
            to[i] = __builtin_fmaf(static_cast<float>(sums.part[0].at[i]), scale, bias);
        }
    }
    // The even or the odd ones of 64 bytes.
    template <bool kOdd>
    static Int alternate(const uint8_t* from) {
        return each([=](int i) { return from[2 * i + kOdd]; });
    }
    static void store_first(uint8_t* to, const Int& bytes, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            to[i] = static_cast<uint8_t>(bytes.at[i]);
        }
    }
    static void store(uint8_t* to, const Int& bytes) { store_first(to, bytes, pixels); }
    static Int load(const uint8_t* from) {
        return each([=](int i) { return from[i]; });
    }
    static Int filled(uint8_t value) {
        return each([=](int) { return value; });
    }
    static Int both(const Int& a, const Int& b) {
        return each([&](int i) { return a.at[i] & b.at[i]; });
    }
    static constexpr uint8_t least = 0;
    static Int ordered(const Int& a) { return a; }
    static Int largest(const Int& a, const Int& b) {
        return each([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; });
    }
    static Int mask(const uint8_t* valid) { return load(valid); }
    static Int select(const Int& mask, const Int& yes, const Int& no) {
        return each([&](int i) { return mask.at[i] ? yes.at[i] : no.at[i]; });
    }
    static void dot_row(Int& sum, const Int& x, const Int& w) {
        for (int i = 0; i < pixels; ++i) {
            sum.at[i] += x.at[i] * static_cast<int8_t>(w.at[i]);
        }
    }
    static int32_t sum(const Int& of) {
        int32_t total = 0;
        for (int i = 0; i < pixels; ++i) {
            total += of.at[i];
        }
        return total;
    }
    static int64_t pixel_of(int64_t place) { return place; }

private:
    template <class Function>
    static Int each(const Function& function) {
        Int bytes;
        for (int i = 0; i < pixels; ++i) {
            bytes.at[i] = function(i);
        }
        return bytes;
    }
};
