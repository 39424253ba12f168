// Which kernels this processor can run. Compiled for the baseline: it runs before anything is known.
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "library.h"

#if defined(__x86_64__)
extern const TrainingTable kAvx512Training, kAvx2Training;
extern const TrainingTable kAvx512Bfloat16Training, kAvx512PairedTraining, kAvx2Bfloat16Training;
extern const InferenceTable kAvx512Inference, kAvx2Inference;
extern const ByteTable kAvx512Halves, kAvx512VnniBytes, kAvx512Bytes, kAvx2VnniBytes, kAvx2Bytes;
static const Tables kAvx512 = {&kAvx512Training, &kAvx512Inference};
static const Tables kAvx2 = {&kAvx2Training, &kAvx2Inference};
#endif
extern const TrainingTable kPortableTraining;
extern const InferenceTable kPortableInference;
extern const ByteTable kPortableBytes;
static const Tables kPortable = {&kPortableTraining, &kPortableInference};

#if defined(__x86_64__)
static bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// Dot products of bytes in the encoding of AVX: leaf 7, sub-leaf 1, which older compilers have no name for.
static bool has_avx_vnni() {
    unsigned int a = 0, b = 0, c = 0, d = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;
}
#endif

extern "C" int32_t autosparse_interface_version() { return kInterfaceVersion; }

extern "C" const Tables* autosparse_tables(const char* name) {
#if defined(__x86_64__)
    if (std::strcmp(name, "avx512") == 0) {
        return has_avx512() ? &kAvx512 : nullptr;
    }
    if (std::strcmp(name, "avx2") == 0) {
        return has_avx2() ? &kAvx2 : nullptr;
    }
#endif
    return std::strcmp(name, "portable") == 0 ? &kPortable : nullptr;
}

extern "C" const ByteTable* autosparse_byte_table(const char* name) {
#if defined(__x86_64__)
    if (std::strcmp(name, "avx512_bf16") == 0) {
        return has_avx512() && __builtin_cpu_supports("avx512bf16") ? &kAvx512Halves : nullptr;
    }
    if (std::strcmp(name, "avx512_vnni") == 0) {
        return has_avx512() && __builtin_cpu_supports("avx512vnni") ? &kAvx512VnniBytes : nullptr;
    }
    if (std::strcmp(name, "avx512") == 0) {
        return has_avx512() ? &kAvx512Bytes : nullptr;
    }
    if (std::strcmp(name, "avx_vnni") == 0) {
        return has_avx_vnni() ? &kAvx2VnniBytes : nullptr;
    }
    if (std::strcmp(name, "avx2") == 0) {
        return has_avx2() ? &kAvx2Bytes : nullptr;
    }
#endif
    return std::strcmp(name, "portable") == 0 ? &kPortableBytes : nullptr;
}

extern "C" const TrainingTable* autosparse_bfloat16_table(const char* name, int32_t pairs) {
#if defined(__x86_64__)
    const Tables* tables = autosparse_tables(name);
    if (pairs != 0) {
        return tables == &kAvx512 && __builtin_cpu_supports("avx512bf16") ? &kAvx512PairedTraining : nullptr;
    }
    if (tables == &kAvx512) {
        return &kAvx512Bfloat16Training;
    }
    if (tables == &kAvx2) {
        return &kAvx2Bfloat16Training;
    }
#else
    (void)name, (void)pairs;
#endif
    return nullptr;
}

extern "C" int32_t autosparse_prefers_pairs() {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}
