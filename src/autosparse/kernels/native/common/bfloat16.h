// Tensors in bfloat16 with arithmetic in float32: what is loaded is widened, what is stored is rounded to nearest even, and
// everything between is that of the instruction set underneath.
#pragma once

#include <cstdint>

// A float without its lower 16 bits.
struct Bfloat16 {
    uint16_t bits;
};

template <class Base>
struct Widened : Base {
    using Element = Bfloat16;
    using Multiplier = Base;
    using Images = Widened;
    using Vec = typename Base::Vec;

    using Base::load_first;
    using Base::load_unaligned;
    using Base::store_first;
    using Base::store_unaligned;
    static Vec load_unaligned(const Bfloat16* from) { return Base::widen(&from->bits); }
    static Vec load_first(const Bfloat16* from, int count) { return Base::widen_first(&from->bits, count); }
    static void store_unaligned(Bfloat16* to, Vec value) { Base::narrow(&to->bits, value); }
    static void store_first(Bfloat16* to, Vec value, int count) { Base::narrow_first(&to->bits, value, count); }
    static void stream(Bfloat16* to, Vec value) { Base::stream_narrow(&to->bits, value); }
};
