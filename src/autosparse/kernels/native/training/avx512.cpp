// The training kernels for one instruction set; this file alone is compiled with its compiler flags.
#include "common/simd_avx512.h"
#include "table.h"

extern const TrainingTable kAvx512Training;
const TrainingTable kAvx512Training = make_training_table<Avx512>();
