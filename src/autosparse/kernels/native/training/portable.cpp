// The training kernels for one instruction set; this file alone is compiled with its compiler flags.
#include "common/simd_portable.h"
#include "table.h"

extern const TrainingTable kPortableTraining;
const TrainingTable kPortableTraining = make_training_table<Portable>();
