// The training kernels for tensors in bfloat16; compiled with the flags of their instruction set.
#include "common/bfloat16.h"
#include "common/simd_avx512.h"
#include "table.h"

extern const TrainingTable kAvx512Bfloat16Training;
const TrainingTable kAvx512Bfloat16Training = make_training_table<Widened<Avx512>>();
