// What the shared library exports: for one instruction set, the kernels for training and those for inference.
#pragma once

#include <cstdint>

#include "inference/bytes/interface.h"
#include "inference/interface.h"
#include "training/interface.h"

// Raised whenever a struct or a function of either interface changes; the Python side refuses a library with another number.
constexpr int32_t kInterfaceVersion = 17;

struct Tables {
    const TrainingTable* training;
    const InferenceTable* inference;
};

extern "C" {
[[gnu::visibility("default")]] int32_t autosparse_interface_version();
// The kernels for "avx512", "avx2" or "portable"; null if this processor or this build has none.
[[gnu::visibility("default")]] const Tables* autosparse_tables(const char* name);
// The eight-bit kernels for "avx512_vnni", "avx512", "avx_vnni", "avx2" or "portable", and those that serve in bfloat16 for
// "avx512_bf16"; null as above.
[[gnu::visibility("default")]] const ByteTable* autosparse_byte_table(const char* name);
// The training kernels of the same instruction set for tensors in bfloat16; null if there are none. They multiply in float32,
// or (`pairs`) in bfloat16 where the processor can.
[[gnu::visibility("default")]] const TrainingTable* autosparse_bfloat16_table(const char* name, int32_t pairs);
// Whether vdpbf16ps is worth its unpacking here: measured at one per cycle on AMD's Zen 4, as often as a multiply-add, but at a
// quarter of the multiply-adds' rate on Intel's Emerald Rapids.
[[gnu::visibility("default")]] int32_t autosparse_prefers_pairs();
}
