// The training kernels for one instruction set; this file alone is compiled with its compiler flags.
#include "common/simd_avx2.h"
#include "table.h"

extern const TrainingTable kAvx2Training;
const TrainingTable kAvx2Training = make_training_table<Avx2>();
