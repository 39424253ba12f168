// Runs a program of a narrow engine: bytes or bfloat16.
#pragma once

#include "../program.h"
#include "interface.h"
#include "phases.h"
#include "planes.h"

template <class Simd, class Ends>
void run_narrow_op(const ByteOp& op, const Worker& worker, const Call& call) {
    switch (op.kind) {
        case kLoad: return Ends::load(op, worker, call.inputs[op.outside]);
        case kStore: return Ends::store(op, worker, call.outputs[op.outside]);
        case kSplit:
            return run_split<NarrowRows<Simd>>(op, worker, static_cast<typename Simd::Wide::Number>(op.output->zero_point));
        case kSparse: return run_quads<Simd>(op, worker);
        case kMaxPool: return run_largest<Simd>(op, worker);
        case kMean: return Ends::mean(op, worker, call.outputs[op.outside]);
    }
}

template <class Simd, class Ends>
void run_narrow_program(const ByteOp* ops, int64_t count, const Call* call) {
    run_ops<Simd>(ops, count, *call, run_narrow_op<Simd, Ends>);
}
