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
#include "weight_gradient.h"

template <class Simd>
constexpr TrainingTable make_training_table() {
    return {Simd::lanes,
            kMaxVectors,
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
            fold_statistics<Simd>,
            track_statistics<Simd>,
            fold_gradients<Simd>,
            scatter<Simd>,
            count_nonzeros<Simd, float>,
            count_nonzeros<Simd, uint8_t>,
            compress<Simd, float>,
            compress<Simd, uint8_t>,
            refresh<Simd>,
            transpose<Simd>,
            refresh_transposed<Simd>,
            soft_threshold<Simd>,
            soft_threshold_gradients<Simd>,
            count_above<Simd>,
            masked_product<Simd>};
}
