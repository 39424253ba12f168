// The kernels for one instruction set; this file alone is compiled with its compiler flags.
#include "kernel_table.h"
#include "simd_portable.h"

extern const KernelTable kPortableKernels;
const KernelTable kPortableKernels = make_kernel_table<Portable>();
