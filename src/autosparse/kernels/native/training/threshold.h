// The soft threshold and its gradients, one pass over the weights each.
#pragma once

#include "common/arithmetic.h"
#include "interface.h"
#include "pixels.h"

// Weights of a slice: the gradient of the threshold is summed slice by slice, whatever the number of threads.
constexpr int64_t kThresholdSlice = 16384;
// Vectors whose products are added up in float before they go to the doubles.
constexpr int64_t kFloatVectors = 64;

// The sum of work(first, last), a number of weights, over all slices of `count` weights.
template <class Work>
int64_t add_threshold_slices(int64_t count, int64_t threads, const Work& work) {
    const int64_t slices = divide_up(count, kThresholdSlice);
    int64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total) num_threads(static_cast<int>(smaller(threads, slices)))
    for (int64_t slice = 0; slice < slices; ++slice) {
        total += work(slice * kThresholdSlice, smaller((slice + 1) * kThresholdSlice, count));
    }
    return total;
}

// Counts in the lanes of a vector, which are whole numbers up to the size of a slice, and so exact.
template <class Simd>
int64_t add_lanes(typename Simd::Vec counts) {
    double by_lane[Simd::lanes] = {};
    Simd::add_to(by_lane, counts);
    int64_t total = 0;
    for (const double each : by_lane) {
        total += static_cast<int64_t>(each);
    }
    return total;
}

// work(first, count) for the vectors from `first` to `last`: whole ones without a test, then what is left.
template <class Simd, class Work>
inline void over_vectors(int64_t first, int64_t last, const Work& work) {
    for (; first + Simd::lanes <= last; first += Simd::lanes) {
        work(first, Simd::lanes);
    }
    if (first < last) {
        work(first, static_cast<int>(last - first));
    }
}

template <class Simd>
inline typename Simd::Vec magnitude(typename Simd::Vec value) {
    return Simd::choose_positive(value, value, Simd::subtract(Simd::zero(), value));
}

template <class Simd>
int64_t soft_threshold(int64_t count, const float* weight, float threshold, int64_t threads, float* effective) {
    using Vec = typename Simd::Vec;
    return add_threshold_slices(count, threads, [=](int64_t first, int64_t last) {
        const Vec bound = Simd::broadcast(threshold), one = Simd::broadcast(1.0f);
        Vec found = Simd::zero();
        over_vectors<Simd>(first, last, [&](int64_t place, int here) {
            const Vec value = load_count<Simd>(weight + place, here);
            const Vec above = Simd::relu(Simd::subtract(value, bound));
            const Vec below = Simd::relu(Simd::subtract(Simd::subtract(Simd::zero(), value), bound));
            store_count<Simd>(effective + place, Simd::subtract(above, below), here);
            found = Simd::add(found, Simd::where_positive(Simd::add(above, below), one));
        });
        return add_lanes<Simd>(found);
    });
}

template <class Simd>
double soft_threshold_gradients(int64_t count, const float* weight, const float* grad, float threshold, float gate,
                                float reach, int64_t threads, float* scaled, double* sums) {
    using Vec = typename Simd::Vec;
    add_threshold_slices(count, threads, [=](int64_t first, int64_t last) {
        const Vec bound = Simd::broadcast(threshold), opening = Simd::broadcast(gate), from = Simd::broadcast(reach);
        const Vec one = Simd::broadcast(1.0f);
        double totals[Simd::lanes] = {};
        for (int64_t begin = first; begin < last; begin += kFloatVectors * Simd::lanes) {
            Vec sum = Simd::zero();
            over_vectors<Simd>(begin, smaller(begin + kFloatVectors * Simd::lanes, last), [&](int64_t place, int here) {
                const Vec value = load_count<Simd>(weight + place, here), size = magnitude<Simd>(value);
                const Vec pruned_share = Simd::choose_positive(Simd::subtract(from, size), Simd::zero(), opening);
                const Vec share = Simd::choose_positive(Simd::subtract(size, bound), one, pruned_share);
                const Vec product = Simd::multiply(share, load_count<Simd>(grad + place, here));
                store_count<Simd>(scaled + place, product, here);
                const Vec of_negative = Simd::where_positive(Simd::subtract(Simd::zero(), value), product);
                sum = Simd::add(sum, Simd::subtract(Simd::where_positive(value, product), of_negative));
            });
            Simd::add_to(totals, sum);
        }
        double total = 0;
        for (const double each : totals) {
            total += each;
        }
        sums[first / kThresholdSlice] = total;
        return last - first;
    });
    double total = 0;
    for (int64_t slice = 0; slice < divide_up(count, kThresholdSlice); ++slice) {
        total += sums[slice];
    }
    return total;
}

template <class Simd>
int64_t count_above(int64_t count, const float* weight, float threshold, int64_t threads) {
    using Vec = typename Simd::Vec;
    return add_threshold_slices(count, threads, [=](int64_t first, int64_t last) {
        const Vec bound = Simd::broadcast(threshold), one = Simd::broadcast(1.0f);
        Vec found = Simd::zero();
        over_vectors<Simd>(first, last, [&](int64_t place, int here) {
            const Vec size = magnitude<Simd>(load_count<Simd>(weight + place, here));
            found = Simd::add(found, Simd::where_positive(Simd::subtract(size, bound), one));
        });
        return add_lanes<Simd>(found);
    });
}
