// The eight-bit engine on AVX-512, with and without dot products in one instruction (VNNI).
#pragma once

#include "../simd_avx512.h"
#include "registers_avx512.h"
#include "x86.h"

template <Dot kDot>
struct BytesAvx512 {
    using Floats = InferAvx512;
    using Wide = X86Bytes<Register512, kDot>;
    using Rest = X86Bytes<Register256, kDot>;
    using Split = Rest;
    // of a tile, for blocks of 1, 2 and 4 rows: 24 sums, four inputs and a weight in 32 registers
    static constexpr int chunks[3] = {12, 5, 3};
};
