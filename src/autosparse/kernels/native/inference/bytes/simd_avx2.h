// The eight-bit engine on AVX2, with and without dot products in one instruction (AVX-VNNI).
#pragma once

#include "../simd_avx2.h"
#include "x86.h"

template <Dot kDot>
struct BytesAvx2 {
    using Floats = InferAvx2;
    using Wide = X86Bytes<Register256, kDot>;
    using Rest = Wide;
    using Split = Rest;
    static constexpr int chunks[3] = {2, 1, 1};
};
