// The inference engine for one instruction set; this file alone is compiled with its compiler flags.
#include "bytes/simd_avx2.h"
#include "bytes/table.h"
#include "simd_avx2.h"
#include "table.h"

extern const InferenceTable kAvx2Inference;
const InferenceTable kAvx2Inference = make_inference_table<InferAvx2>();

extern const ByteTable kAvx2Bytes, kAvx2VnniBytes;
const ByteTable kAvx2Bytes = make_byte_table<BytesAvx2<Dot::kWords>>();
const ByteTable kAvx2VnniBytes = make_byte_table<BytesAvx2<Dot::kVex>>();
