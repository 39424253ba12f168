// Runs a program: its operations in order, for one group of images after the other.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "convolution.h"
#include "interface.h"
#include "phases.h"
#include "planes.h"
#include "worker.h"

template <class Simd>
void run_op(const Op& op, const Worker& worker, const Call& call) {
    switch (op.kind) {
        case kLoad: return run_load<Simd>(op, worker, call.inputs[op.outside]);
        case kStore: return run_store<Simd>(op, worker, call.outputs[op.outside]);
        case kMean: return run_mean<Simd>(op, worker, call.outputs[op.outside]);
        case kSplit: return run_split<FloatRows<Simd>>(op, worker, 0.0f);
        case kSparse:
        case kDense: return run_convolution<Simd>(op, worker);
        case kDepthwise:
        case kMaxPool:
        case kMeanPool: return run_taps<Simd>(op, worker);
        case kAdd: return run_add<Simd>(op, worker);
        case kCopy: return run_copy<Simd>(op, worker);
    }
}

// Runs operations of any engine with run(op, worker, call).
template <class Simd, class Op, class Run>
void run_ops(const Op* ops, int64_t count, const Call& call, const Run& run) {
    const int64_t groups = divide_up(call.images, call.images_per_group);
#pragma omp parallel num_threads(static_cast<int>(call.threads))
    {
        const int64_t me = omp_get_thread_num(), threads = omp_get_num_threads();
        Worker worker = {};
        worker.index = call.together ? me : 0;
        worker.count = call.together ? threads : 1;
        worker.shift = call.together ? 0 : me * call.arena_floats;
        worker.scratch = call.scratch + me * call.scratch_floats;
        const int64_t begin = call.together ? 0 : share_begin(groups, threads, me);
        const int64_t end = call.together ? groups : share_begin(groups, threads, me + 1);
        for (int64_t group = begin; group < end; ++group) {
            worker.first_image = group * call.images_per_group;
            worker.images = smaller(call.images_per_group, call.images - worker.first_image);
            for (int64_t i = 0; i < count; ++i) {
                const double started = call.seconds ? omp_get_wtime() : 0.0;
                run(ops[i], worker, call);
                worker.wait();
                if (call.seconds && me == 0) {
                    call.seconds[i] += omp_get_wtime() - started;
                }
            }
        }
    }
}

template <class Simd>
void run_program(const Op* ops, int64_t count, const Call* call) {
    run_ops<Simd>(ops, count, *call, run_op<Simd>);
}
