// The inference engine for one instruction set.
#pragma once

#include "decoder.h"
#include "interface.h"
#include "linear.h"
#include "program.h"
#include "screen.h"
#include "tokens.h"

template <class Simd>
constexpr InferenceTable make_inference_table() {
    return {Simd::lanes,          kMostVectors,         Simd::dense_rows,  run_program<Simd>, linear_one<Simd>, linear_dense<Simd>,
            linear_indexed<Simd>, linear_scratch<Simd>, linear_many<Simd>, largest_rows<Simd>, decode<Simd>};
}
