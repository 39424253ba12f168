// Four floats at a time in the compiler's own vector type: what every 64-bit processor has.
#pragma once

#include <cstdint>
#include <cstring>

struct Portable {
    typedef float Vec __attribute__((vector_size(16)));
    using Element = float;
    using Cell = float;
    using Float = Portable;
    using Multiplier = Portable;
    using Images = Portable;
    static constexpr int lanes = 4;

    static Vec folded(Vec value) { return value; }  // a vector of Images as one of these
    static Vec zero() { return Vec{}; }
    static Vec broadcast(float value) { return Vec{value, value, value, value}; }
    static Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
    static Vec load_unaligned(const float* from) { return load_first(from, lanes); }
    static Vec load_first(const float* from, int count) {
        Vec value = zero();
        std::memcpy(&value, from, count * sizeof(float));
        return value;
    }
    static void store(float* to, Vec value) { *reinterpret_cast<Vec*>(to) = value; }
    static void store_unaligned(float* to, Vec value) { store_first(to, value, lanes); }
    static void store_first(float* to, Vec value, int count) { std::memcpy(to, &value, count * sizeof(float)); }
    // To memory without passing through the caches; `to` lies on a vector's boundary.
    static void stream(float* to, Vec value) { store(to, value); }
    static Vec add(Vec a, Vec b) { return a + b; }
    static Vec subtract(Vec a, Vec b) { return a - b; }
    static Vec multiply(Vec a, Vec b) { return a * b; }
    static Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }

    static Vec relu(Vec a) {
        for (int i = 0; i < lanes; ++i) {
            a[i] = a[i] < 0.0f ? 0.0f : a[i];
        }
        return a;
    }
    static Vec where_positive(Vec test, Vec value) {
        for (int i = 0; i < lanes; ++i) {
            value[i] = test[i] > 0.0f ? value[i] : 0.0f;
        }
        return value;
    }
    static Vec choose_positive(Vec test, Vec yes, Vec no) {
        for (int i = 0; i < lanes; ++i) {
            no[i] = test[i] > 0.0f ? yes[i] : no[i];
        }
        return no;
    }
    // Adds every lane to one of `lanes` doubles.
    static void add_to(double* sums, Vec value) {
        for (int i = 0; i < lanes; ++i) {
            sums[i] += static_cast<double>(value[i]);
        }
    }

    // Bit i is set where from[i] is not zero; NaN is not zero.
    static uint32_t nonzero_bits(const float* from) {
        uint32_t bits = 0;
        for (int i = 0; i < lanes; ++i) {
            bits |= static_cast<uint32_t>(from[i] != 0.0f) << i;
        }
        return bits;
    }

    // In place: lane j of row i becomes lane i of row j.
    static void transpose(Vec* rows) {
        const Vec a = rows[0], b = rows[1], c = rows[2], d = rows[3];
        rows[0] = Vec{a[0], b[0], c[0], d[0]};
        rows[1] = Vec{a[1], b[1], c[1], d[1]};
        rows[2] = Vec{a[2], b[2], c[2], d[2]};
        rows[3] = Vec{a[3], b[3], c[3], d[3]};
    }

    // Lane i of the result is the sum of all lanes of rows[i].
    static Vec sums(const Vec* rows) {
        Vec turned[lanes] = {rows[0], rows[1], rows[2], rows[3]};
        transpose(turned);
        return (turned[0] + turned[1]) + (turned[2] + turned[3]);
    }
};
