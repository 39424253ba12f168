// Sums of quads in plain C++: what every 64-bit processor has.
#pragma once

#include <cstdint>

struct PortableBytes {
    static constexpr int pixels = 32, lanes = 32;

    struct Int {
        int32_t at[pixels];
    };
    struct Four {
        Int part[1];
    };
    struct Inputs {
        const uint8_t* from[4];
    };
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
    static Inputs gather(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) { return {{a, b, c, d}}; }
    static void dot(Four& sums, const Inputs& x, const Weight& w) {
        const uint8_t *a = x.from[0], *b = x.from[1], *c = x.from[2], *d = x.from[3];
        for (int i = 0; i < pixels; ++i) {
            sums.part[0].at[i] += a[i] * w.of[0] + b[i] * w.of[1] + c[i] * w.of[2] + d[i] * w.of[3];
        }
    }
    static void add_to(Four& sums, const Four& more) {
        for (int i = 0; i < pixels; ++i) {
            sums.part[0].at[i] += more.part[0].at[i];
        }
    }
    static void finish(const Four& sums, float scale, float bias, const uint8_t* other, float other_scale, const uint8_t* valid,
                       uint8_t outside, uint8_t* to) {
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
        Int bytes;
        for (int i = 0; i < pixels; ++i) {
            bytes.at[i] = from[2 * i + kOdd];
        }
        return bytes;
    }
    static void store_first(uint8_t* to, const Int& bytes, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
            to[i] = static_cast<uint8_t>(bytes.at[i]);
        }
    }
    static Int load(const uint8_t* from) {
        Int bytes;
        for (int i = 0; i < pixels; ++i) {
            bytes.at[i] = from[i];
        }
        return bytes;
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
    static void store(uint8_t* to, const Int& bytes) {
        for (int i = 0; i < pixels; ++i) {
            to[i] = static_cast<uint8_t>(bytes.at[i]);
        }
    }
    static Int splat_byte(uint8_t value) {
        Int bytes;
        for (int i = 0; i < pixels; ++i) {
            bytes.at[i] = value;
        }
        return bytes;
    }
    static Int both(const Int& a, const Int& b) {
        Int bytes;
        for (int i = 0; i < pixels; ++i) {
            bytes.at[i] = a.at[i] & b.at[i];
        }
        return bytes;
    }
    static Int largest(const Int& a, const Int& b) {
        Int bytes;
        for (int i = 0; i < pixels; ++i) {
            bytes.at[i] = a.at[i] > b.at[i] ? a.at[i] : b.at[i];
        }
        return bytes;
    }
    static Int select(const Int& mask, const Int& yes, const Int& no) {
        Int bytes;
        for (int i = 0; i < pixels; ++i) {
            bytes.at[i] = mask.at[i] ? yes.at[i] : no.at[i];
        }
        return bytes;
    }
    static int64_t pixel_of(int64_t place) { return place; }
};
