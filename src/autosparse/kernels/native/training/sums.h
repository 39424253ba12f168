// The sums over pixels that a sink makes, for each channel. Every slice of a pass has its own, in double, so that the result
// does not depend on which thread was faster.
#pragma once

#include <cstring>

#include "common/arithmetic.h"
#include "interface.h"

// [kSums][padded], padded being the channels in whole vectors.
struct Sums {
    double* memory;  // null for a sink that makes none
    int64_t padded;

    // A vector of neighbouring channels.
    template <class Simd>
    void add(int64_t kind, int64_t channel, typename Simd::Vec value) const {
        Simd::add_to(memory + kind * padded + channel, value);
    }
};

struct SliceSums {
    double* memory;
    int64_t padded;

    Sums of(int64_t slice) const { return {memory == nullptr ? nullptr : memory + slice * kSums * padded, padded}; }
};

// With images last a vector holds one channel of many images: the sums of as many channels as there are lanes wait here,
// and are added up over their lanes together.
template <class Simd, int kKinds>
class TotalsOfImages {
public:
    using Vec = typename Simd::Vec;

    TotalsOfImages() {
        for (Vec& row : rows_) {
            row = Simd::zero();
        }
    }
    void add(int64_t kind, int64_t index, Vec value) {
        Vec& row = rows_[kind * Simd::lanes + index];
        row = Simd::add(row, value);
    }
    void move_to(const Sums& sums, int64_t channel) const {
        for (int64_t kind = 0; kind < kKinds; ++kind) {
            sums.add<Simd>(kind, channel, Simd::sums(rows_ + kind * Simd::lanes));
        }
    }

private:
    Vec rows_[(kKinds > 0 ? kKinds : 1) * Simd::lanes];
};

// Zeroes the slices' sums before `call` and adds them up after it, in their order.
template <class Simd, class Call>
void with_sums(const Sink& to, int64_t slices, int64_t channels, const Call& call) {
    const int64_t padded = round_up(channels, Simd::lanes);
    if (to.kind == kStoreSink) {
        call(SliceSums{nullptr, padded});
        return;
    }
    std::memset(to.slice_sums, 0, slices * kSums * padded * sizeof(double));
    call(SliceSums{to.slice_sums, padded});
    for (int64_t slice = 0; slice < slices; ++slice) {
        for (int64_t kind = 0; kind < kSums; ++kind) {
            const double* from = to.slice_sums + (slice * kSums + kind) * padded;
            for (int64_t channel = 0; channel < channels; ++channel) {
                to.sums[kind * channels + channel] += from[channel];
            }
        }
    }
}
