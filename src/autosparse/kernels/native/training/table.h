// All kernels of one instruction set.
#pragma once

#include "compress.h"
#include "depthwise.h"
#include "gather.h"
#include "interface.h"
#include "joint_gradient.h"
#include "masks.h"
#include "normalise.h"
#include "sweep.h"
#include "threshold.h"
#include "transpose.h"
#include "turn.h"
#include "weight_gradient.h"

// Passes read and write tensors as Simd has them; weights, and what belongs to channels, are float in every table.
template <class Simd>
constexpr TrainingTable make_training_table() {
    using Float = typename Simd::Float;
    return {Simd::lanes,
            kMaxVectors,
            kMaxTile<typename Simd::Multiplier>,
            gather_scratch<Simd>,
            weight_gradient_scratch<Simd>,
            gather<Simd>,
            weight_gradient<Simd>,
            joint_gradient_scratch<Simd>,
            joint_gradient<Simd>,
            depthwise_scratch<Simd>,
            depthwise_forward<Simd>,
            depthwise_gradients<Simd>,
            sweep<Simd>,
            turn<Simd>,
            fold_statistics<Float>,
            track_statistics<Float>,
            fold_gradients<Float>,
            scatter<Float>,
            count_nonzeros<Float, float>,
            count_nonzeros<Float, uint8_t>,
            compress<Float, float>,
            compress<Float, uint8_t>,
            refresh<Float>,
            transpose<Float>,
            refresh_transposed<Float>,
            soft_threshold<Float>,
            soft_threshold_gradients<Float>,
            count_above<Float>,
            masked_product<Float>};
}
