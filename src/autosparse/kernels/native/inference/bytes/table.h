// The eight-bit engine for one instruction set.
#pragma once

#include "interface.h"
#include "linear.h"
#include "program.h"

template <class Simd>
constexpr ByteTable make_byte_table() {
    return {{Simd::chunks[0], Simd::chunks[1], Simd::chunks[2]},
            run_narrow_program<Simd, ByteEnds<Simd>>,
            byte_linear_scratch<Simd>,
            byte_linear_quads<Simd>,
            byte_linear_dots<Simd>};
}
