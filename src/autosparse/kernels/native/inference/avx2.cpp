// The inference engine for one instruction set; this file alone is compiled with its compiler flags.
#include "simd_avx2.h"
#include "table.h"

extern const InferenceTable kAvx2Inference;
const InferenceTable kAvx2Inference = make_inference_table<InferAvx2>();
