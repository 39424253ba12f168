// The training kernels for tensors in bfloat16 that multiply in bfloat16 too; compiled with the flags of AVX-512 and its BF16.
#include <cstring>

#include "paired.h"
#include "table.h"

extern const TrainingTable kAvx512PairedTraining;
const TrainingTable kAvx512PairedTraining = make_training_table<Paired>();
