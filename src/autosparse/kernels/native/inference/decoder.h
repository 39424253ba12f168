// One token of every sentence through a decoder: layer norms, linear layers and attention over what came before, in one call.
#pragma once

#include <math.h>
#include <omp.h>

#include "common/arithmetic.h"
#include "interface.h"
#include "linear.h"
#include "tokens.h"
#include "worker.h"

// Calls visit(column, count, load) for a row of floats, a vector at a time; load(from) reads at from + column, zeros past the
// row's end.
template <class Simd, class Visit>
void each_vector(int64_t columns, const Visit& visit) {
    int64_t column = 0;
    for (; column + Simd::lanes <= columns; column += Simd::lanes) {
        visit(column, static_cast<int>(Simd::lanes), [column](const float* from) { return Simd::load_unaligned(from + column); });
    }
    if (column < columns) {
        const int rest = static_cast<int>(columns - column);
        visit(column, rest, [column, rest](const float* from) { return Simd::load_first(from + column, rest); });
    }
}

template <class Simd>
void normalise_token(const DecoderOp& op, const float* input, float* output) {
    typename Simd::Vec total = Simd::zero();
    each_vector<Simd>(op.columns, [&](int64_t, int, const auto& load) { total = Simd::add(total, load(input)); });
    const float mean = Simd::sum(total) / static_cast<float>(op.columns);
    float squares = 0.0f;
    typename Simd::Vec sum_of_squares = Simd::zero();
    const auto middle = Simd::broadcast(mean);
    each_vector<Simd>(op.columns, [&](int64_t column, int count, const auto& load) {
        if (count == Simd::lanes) {
            const auto away = Simd::subtract(load(input), middle);
            sum_of_squares = Simd::multiply_add(away, away, sum_of_squares);
            return;
        }
        for (int64_t i = column; i < op.columns; ++i) {
            squares += (input[i] - mean) * (input[i] - mean);
        }
    });
    const float variance = (squares + Simd::sum(sum_of_squares)) / static_cast<float>(op.columns);
    const auto rate = Simd::broadcast(1.0f / sqrtf(variance + op.epsilon));
    each_vector<Simd>(op.columns, [&](int64_t column, int count, const auto& load) {
        const auto normal = Simd::multiply(Simd::subtract(load(input), middle), rate);
        Simd::store_first(output + column, Simd::multiply_add(normal, load(op.scale), load(op.shift)), count);
    });
}

// One head of one sentence: the values of the positions that may be seen, weighted by softmax(query * keys).
template <class Simd>
void attend_head(const DecoderOp& op, int64_t batch, int64_t sentence, int64_t head, int64_t positions, float* weights) {
    const int64_t size = op.heads * op.width, stride = batch * size, at = sentence * size + head * op.width;
    const uint8_t* seen = op.seen + sentence * op.seen_stride;
    const float* query = op.input + at;
    const float scale = 1.0f / sqrtf(static_cast<float>(op.width));
    float largest = -INFINITY;
    for (int64_t position = 0; position < positions; ++position) {
        if (!seen[position]) {
            continue;
        }
        const float* key = op.keys + position * stride + at;
        typename Simd::Vec total = Simd::zero();
        each_vector<Simd>(op.width, [&](int64_t, int, const auto& load) {
            total = Simd::multiply_add(load(query), load(key), total);
        });
        weights[position] = Simd::sum(total) * scale;
        largest = weights[position] > largest ? weights[position] : largest;
    }
    float total = 0.0f;
    for (int64_t position = 0; position < positions; ++position) {
        if (seen[position]) {
            weights[position] = expf(weights[position] - largest);
            total += weights[position];
        }
    }
    const auto share = Simd::broadcast(total == 0.0f ? 0.0f : 1.0f / total);
    float* output = op.output + at;
    each_vector<Simd>(op.width, [&](int64_t column, int count, const auto& load) {
        typename Simd::Vec sum = Simd::zero();
        for (int64_t position = 0; position < positions; ++position) {
            if (seen[position]) {
                sum = Simd::multiply_add(Simd::broadcast(weights[position]), load(op.values + position * stride + at), sum);
            }
        }
        Simd::store_first(output + column, Simd::multiply(sum, share), count);
    });
}

template <class Simd>
void run_linear(const DecoderOp& op, const Worker& worker, const DecoderCall& call, float* output) {
    if (op.terms) {
        return linear_share<Simd>(*op.terms, call.batch, worker.count, worker.index, op.input, op.other, worker.scratch, output);
    }
    const int64_t rows = op.indexed ? op.indexed->rows : op.bitmask ? op.bitmask->rows : op.dense->rows;
    const int64_t begin = share_begin(rows, worker.count, worker.index);
    const int64_t end = share_begin(rows, worker.count, worker.index + 1);
    if (op.indexed) {
        indexed_rows(*op.indexed, begin, end, op.input, op.other, output);
    } else if (op.bitmask) {
        bitmask_rows<Simd>(*op.bitmask, begin, end, op.input, op.other, output);
    } else {
        dense_rows<Simd>(*op.dense, call.batch, begin, end, op.input, op.other, output);
    }
}

template <class Simd>
void run_decoder_op(const DecoderOp& op, const Worker& worker, const DecoderCall& call) {
    switch (op.kind) {
        case kNormalise:
            return worker.share(call.batch, [&](int64_t token) {
                normalise_token<Simd>(op, op.input + token * op.columns, op.output + token * op.columns);
            });
        case kLinear: return run_linear<Simd>(op, worker, call, op.output + call.position * op.output_step);
        case kAttend:
            return worker.share(call.batch * op.heads, [&](int64_t item) {
                attend_head<Simd>(op, call.batch, item / op.heads, item % op.heads,
                                  op.positions ? op.positions : call.position + 1, worker.scratch);
            });
    }
}

template <class Simd>
void decode(const DecoderOp* ops, int64_t count, const DecoderCall* given) {
    const DecoderCall call = *given;
#pragma omp parallel num_threads(static_cast<int>(call.threads)) if (call.threads > 1)
    {
        Worker worker = {};
        worker.index = omp_get_thread_num();
        worker.count = omp_get_num_threads();
        worker.scratch = call.scratch + worker.index * call.scratch_floats;
        for (int64_t i = 0; i < count; ++i) {
            run_decoder_op<Simd>(ops[i], worker, call);
            if (ops[i].wait) {
                worker.wait();
            }
        }
    }
}
