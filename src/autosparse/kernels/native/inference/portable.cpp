// The inference engine for one instruction set; this file alone is compiled with its compiler flags.
#include "bytes/simd_portable.h"
#include "bytes/table.h"
#include "simd_portable.h"
#include "table.h"

extern const InferenceTable kPortableInference;
const InferenceTable kPortableInference = make_inference_table<InferPortable>();

extern const ByteTable kPortableBytes;
const ByteTable kPortableBytes = make_byte_table<BytesPortable>();
