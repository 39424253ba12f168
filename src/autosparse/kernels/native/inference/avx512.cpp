// The inference engine for one instruction set; this file alone is compiled with its compiler flags.
#include "bytes/simd_avx512.h"
#include "bytes/table.h"
#include "halves/program.h"
#include "simd_avx512.h"
#include "table.h"

extern const InferenceTable kAvx512Inference;
const InferenceTable kAvx512Inference = make_inference_table<InferAvx512>();

extern const ByteTable kAvx512Bytes, kAvx512VnniBytes;
const ByteTable kAvx512Bytes = make_byte_table<BytesAvx512<Dot::kEvexWords>>();
const ByteTable kAvx512VnniBytes = make_byte_table<BytesAvx512<Dot::kEvex>>();

// for processors with bfloat16 alone
extern const ByteTable kAvx512Halves;
const ByteTable kAvx512Halves = make_half_table<Halves>();
