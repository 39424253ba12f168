// The eight-bit engine for any processor.
#pragma once

#include "../simd_portable.h"
#include "portable.h"

struct BytesPortable {
    using Floats = InferPortable;
    using Wide = PortableBytes;
    using Rest = Wide;
    using Split = Rest;
    static constexpr int chunks[3] = {2, 1, 1};
};
