// Runs a program of the eight-bit engine.
#pragma once

#include "../program.h"
#include "interface.h"
#include "phases.h"
#include "planes.h"

template <class Simd>
void run_byte_op(const ByteOp& op, const Worker& worker, const Call& call) {
    switch (op.kind) {
        case kLoadBytes: return load_bytes<Simd>(op, worker, call.inputs[op.outside]);
        case kStoreBytes: return store_bytes<Simd>(op, worker, call.outputs[op.outside]);
        case kSplitBytes: return split_bytes<Simd>(op, worker);
        case kQuadRows: return run_quads<Simd>(op, worker);
        case kLargestByte: return largest_bytes<Simd>(op, worker);
        case kMeanByte: return mean_bytes<Simd>(op, worker, call.outputs[op.outside]);
    }
}

template <class Simd>
void run_byte_program(const ByteOp* ops, int64_t count, const Call* call) {
    run_ops<Simd>(ops, count, *call, run_byte_op<Simd>);
}
