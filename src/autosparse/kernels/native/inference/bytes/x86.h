// Sums of quads in the registers of x86.
#pragma once

#include <cstdint>
#include <cstring>

#include "interface.h"
#include "registers_avx2.h"

// The sums of one vector of pixels for one output channel, and how they come about. The unpacks that bring four inputs
// together leave the pixels of a vector in another order, in which the packs at the end take them up again.
template <template <Dot> class Register, Dot kDot>
struct X86Bytes : Register<kDot> {
    using Base = Register<kDot>;
    using Number = uint8_t;
    using Int = typename Base::Int;
    using Float = typename Base::Float;
    using Base::pixels;
    static constexpr bool kByWords = kDot == Dot::kWords || kDot == Dot::kEvexWords;
    static constexpr int lanes = pixels / 4, waiting = 1;

    struct Four {
        Int part[4];
    };
    using Sums = Four;
    struct Places {
        const uint8_t *a, *b, *c, *d;
    };
    template <int kRows>
    using Group = Quad<kRows>;
    struct Weight {
        Int even, odd;                         // even: all four weights, or as words the first and third; odd: the others
    };

    static Four zeros() { return {{Base::zero(), Base::zero(), Base::zero(), Base::zero()}}; }

    static Weight weight(const int8_t* four) {
        if constexpr (kByWords) {
            const uint32_t even = static_cast<uint16_t>(four[0]) | static_cast<uint32_t>(static_cast<uint16_t>(four[2])) << 16;
            const uint32_t odd = static_cast<uint16_t>(four[1]) | static_cast<uint32_t>(static_cast<uint16_t>(four[3])) << 16;
            return {Base::splat(static_cast<int32_t>(even)), Base::splat(static_cast<int32_t>(odd))};
        } else {
            int32_t packed;
            std::memcpy(&packed, four, sizeof packed);
            return {Base::splat(packed), Base::zero()};
        }
    }

    // Lanes of four neighbouring bytes, one from each input.
    static inline __attribute__((always_inline)) Four interleave(Int a, Int b, Int c, Int d) {
        const Int ab = Base::low_bytes(a, b), above_ab = Base::high_bytes(a, b);
        const Int cd = Base::low_bytes(c, d), above_cd = Base::high_bytes(c, d);
        return {{Base::low_words(ab, cd), Base::high_words(ab, cd), Base::low_words(above_ab, above_cd),
                 Base::high_words(above_ab, above_cd)}};
    }
    static inline __attribute__((always_inline)) Places places(const uint8_t* input, const int32_t* offset) {
        return {input + offset[0], input + offset[1], input + offset[2], input + offset[3]};
    }
    static inline __attribute__((always_inline)) Four gather(const Places& from, int at) {
        Int w = Base::load(from.a + at), x = Base::load(from.b + at), y = Base::load(from.c + at), z = Base::load(from.d + at);
        // in registers: as operands in memory they would be loaded twice
        asm("" : "+v"(w), "+v"(x), "+v"(y), "+v"(z));
        return interleave(w, x, y, z);
    }

    static inline __attribute__((always_inline)) void dot_one(Int& sum, Int x, const Weight& w) {
        if constexpr (kByWords) {
            const Int even = Base::both(x, Base::splat(0x00ff00ff));
            const Int products = Base::add(Base::multiply_words(even, w.even), Base::multiply_words(Base::odd_bytes(x), w.odd));
            sum = Base::add(sum, products);
        } else {
            Base::dot(sum, x, w.even);
        }
    }
    static inline __attribute__((always_inline)) void dot(Four& sums, const Four& x, const Weight& w) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            dot_one(sums.part[k], x.part[k], w);
        }
    }

    static inline __attribute__((always_inline)) void add_to(Four& sums, const Four& more) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            sums.part[k] = Base::add(sums.part[k], more.part[k]);
        }
    }

    // As bytes: rounded to the nearest, halves to even, and kept within 0 .. 255; the zero point where no pixel is.
    static inline __attribute__((always_inline)) void finish(const Four& sums, float scale, float bias, const uint8_t* other,
                                                             const ByteOp& op, const uint8_t* valid, uint8_t* to) {
        const Float m = Base::splat(scale), b = Base::splat(bias);
        Float value[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            value[k] = Base::multiply_add(Base::to_float(sums.part[k]), m, b);
        }
        if (other != nullptr) {
            const Four added = interleave(Base::load(other), Base::zero(), Base::zero(), Base::zero());
            const Float by = Base::splat(op.other_scale);
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
                value[k] = Base::multiply_add(Base::to_float(added.part[k]), by, value[k]);
            }
        }
        const Int low = Base::pack_words(Base::to_int(value[0]), Base::to_int(value[1]));
        const Int high = Base::pack_words(Base::to_int(value[2]), Base::to_int(value[3]));
        const Int outside = Base::filled(static_cast<uint8_t>(op.output->zero_point));
        Base::store(to, Base::select(Base::load(valid), Base::pack_bytes(low, high), outside));
    }

    // As floats in the order of the parts; `pixel_of` says which pixel each of them is.
    static inline __attribute__((always_inline)) void finish_floats(const Four& sums, float scale, float bias, float* to) {
        const Float m = Base::splat(scale), b = Base::splat(bias);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
            Base::store_floats(to + k * lanes, Base::multiply_add(Base::to_float(sums.part[k]), m, b));
        }
    }
    static int64_t pixel_of(int64_t place) { return place % lanes / 4 * 16 + place / lanes * 4 + place % 4; }

    // The sum of the products of `pixels` neighbouring bytes and weights, for dense rows.
    static inline __attribute__((always_inline)) void dot_row(Int& sum, Int x, Int w) {
        if constexpr (kByWords) {
            const Int sign = Base::negative_bytes(w);
            const Int low = Base::multiply_words(Base::low_bytes(x, Base::zero()), Base::low_bytes(w, sign));
            const Int high = Base::multiply_words(Base::high_bytes(x, Base::zero()), Base::high_bytes(w, sign));
            sum = Base::add(sum, Base::add(low, high));
        } else {
            Base::dot(sum, x, w);
        }
    }
};
