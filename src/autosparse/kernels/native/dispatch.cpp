// Which kernels this processor can run. Compiled for the baseline: it runs before anything is known.
#include <cstring>

#include "interface.h"

#if defined(__x86_64__)
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx2Kernels;
#endif
extern const KernelTable kPortableKernels;

extern "C" int32_t autosparse_interface_version() { return kInterfaceVersion; }

extern "C" const KernelTable* autosparse_kernel_table(const char* name) {
#if defined(__x86_64__)
    if (std::strcmp(name, "avx512") == 0) {
        const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
        return runs ? &kAvx512Kernels : nullptr;
    }
    if (std::strcmp(name, "avx2") == 0) {
        const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
        return runs ? &kAvx2Kernels : nullptr;
    }
#endif
    return std::strcmp(name, "portable") == 0 ? &kPortableKernels : nullptr;
}
