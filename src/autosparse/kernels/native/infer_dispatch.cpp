// Which engine this processor can run. Compiled for the baseline: it runs before anything is known.
#include <cstring>

#include "infer_interface.h"

#if defined(__x86_64__)
extern const InferenceTable kAvx512Inference;
extern const InferenceTable kAvx2Inference;
#endif
extern const InferenceTable kPortableInference;

extern "C" int32_t autosparse_inference_version() { return kInferenceVersion; }

extern "C" const InferenceTable* autosparse_inference_table(const char* name) {
#if defined(__x86_64__)
    if (std::strcmp(name, "avx512") == 0) {
        const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
        return runs ? &kAvx512Inference : nullptr;
    }
    if (std::strcmp(name, "avx2") == 0) {
        const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
        return runs ? &kAvx2Inference : nullptr;
    }
#endif
    return std::strcmp(name, "portable") == 0 ? &kPortableInference : nullptr;
}
