// Small integer helpers. Internal linkage on purpose: a shared inline function could end up compiled for AVX-512 and be
// called by the portable kernels.
#pragma once

#include <cstdint>

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static inline int64_t divide_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

static inline int64_t round_up(int64_t count, int64_t multiple) { return divide_up(count, multiple) * multiple; }

// A contiguous share of `count` things: the first of part `index` out of `parts`.
static inline int64_t share_begin(int64_t count, int64_t parts, int64_t index) { return count * index / parts; }
