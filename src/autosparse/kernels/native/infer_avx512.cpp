// The inference engine for one instruction set; this file alone is compiled with its compiler flags.
#include "infer_simd_avx512.h"
#include "infer_table.h"

extern const InferenceTable kAvx512Inference;
const InferenceTable kAvx512Inference = make_inference_table<InferAvx512>();
