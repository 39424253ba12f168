// The inference engine for one instruction set; this file alone is compiled with its compiler flags.
#include "simd_avx512.h"
#include "table.h"

extern const InferenceTable kAvx512Inference;
const InferenceTable kAvx512Inference = make_inference_table<InferAvx512>();
