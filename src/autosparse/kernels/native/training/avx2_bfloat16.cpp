// The training kernels for tensors in bfloat16; compiled with the flags of their instruction set.
#include "common/bfloat16.h"
#include "common/simd_avx2.h"
#include "table.h"

extern const TrainingTable kAvx2Bfloat16Training;
const TrainingTable kAvx2Bfloat16Training = make_training_table<Widened<Avx2>>();
