// Which kernels this processor can run. Compiled for the baseline: it runs before anything is known.
#include <cstring>

#include "library.h"

#if defined(__x86_64__)
extern const TrainingTable kAvx512Training, kAvx2Training;
extern const InferenceTable kAvx512Inference, kAvx2Inference;
static const Tables kAvx512 = {&kAvx512Training, &kAvx512Inference};
static const Tables kAvx2 = {&kAvx2Training, &kAvx2Inference};
#endif
extern const TrainingTable kPortableTraining;
extern const InferenceTable kPortableInference;
static const Tables kPortable = {&kPortableTraining, &kPortableInference};

extern "C" int32_t autosparse_interface_version() { return kInterfaceVersion; }

extern "C" const Tables* autosparse_tables(const char* name) {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (std::strcmp(name, "avx512") == 0) {
        const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        return avx512 ? &kAvx512 : nullptr;
    }
    if (std::strcmp(name, "avx2") == 0) {
        return avx2 ? &kAvx2 : nullptr;
    }
#endif
    return std::strcmp(name, "portable") == 0 ? &kPortable : nullptr;
}
