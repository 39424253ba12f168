// The kernels for one instruction set; this file alone is compiled with its compiler flags.
#include "kernel_table.h"
#include "simd_avx2.h"

extern const KernelTable kAvx2Kernels;
const KernelTable kAvx2Kernels = make_kernel_table<Avx2>();
