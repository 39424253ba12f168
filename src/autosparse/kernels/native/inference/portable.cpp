// The inference engine for one instruction set; this file alone is compiled with its compiler flags.
#include "simd_portable.h"
#include "table.h"

extern const InferenceTable kPortableInference;
const InferenceTable kPortableInference = make_inference_table<InferPortable>();
