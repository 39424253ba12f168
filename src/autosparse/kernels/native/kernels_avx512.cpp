// The kernels for one instruction set; this file alone is compiled with its compiler flags.
#include "kernel_table.h"
#include "simd_avx512.h"

extern const KernelTable kAvx512Kernels;
const KernelTable kAvx512Kernels = make_kernel_table<Avx512>();
