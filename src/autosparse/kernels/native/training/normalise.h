// The arithmetic of batch norm for each channel, in double: few numbers, and what they feed is summed over many pixels.
#pragma once

#include <cmath>

#include "interface.h"

// Beyond this ratio of squared distance (shift to mean) and variance the subtraction below has lost too many digits. Epsilon
// counts: a channel without weights has no variance to lose, however far the shift still is.
constexpr double kFarthestShift = 25;

template <class Simd>
int64_t fold_statistics(int64_t channels, int64_t pixels, const double* sums, const float* shift, double epsilon,
                        const float* gamma, const float* beta, double* statistics, float* folded) {
    int64_t exact = 1;
    for (int64_t channel = 0; channel < channels; ++channel) {
        const double distance = sums[channel] / pixels;
        const double difference = sums[channels + channel] / pixels - distance * distance;
        const double variance = difference < 0 ? 0 : difference;
        const double mean = shift[channel] + distance;
        const double inverse = 1 / std::sqrt(variance + epsilon);
        const double scale = (gamma != nullptr ? gamma[channel] : 1.0) * inverse;
        exact &= !(distance * distance > kFarthestShift * (variance + epsilon));
        statistics[channel] = mean;
        statistics[channels + channel] = variance;
        statistics[2 * channels + channel] = inverse;
        folded[channel] = static_cast<float>(scale);
        folded[channels + channel] = static_cast<float>((beta != nullptr ? beta[channel] : 0.0) - mean * scale);
        folded[2 * channels + channel] = static_cast<float>(mean);  // what sinks take off
    }
    return exact;
}

// Running statistics: the variance without bias.
template <class Simd>
void track_statistics(int64_t channels, int64_t pixels, const double* statistics, double factor, float* running_mean,
                      float* running_variance) {
    const double unbiased = static_cast<double>(pixels) / (pixels - 1);
    for (int64_t channel = 0; channel < channels; ++channel) {
        const double variance = statistics[channels + channel] * unbiased;
        running_mean[channel] = static_cast<float>((1 - factor) * running_mean[channel] + factor * statistics[channel]);
        running_variance[channel] = static_cast<float>((1 - factor) * running_variance[channel] + factor * variance);
    }
}

template <class Simd>
void fold_gradients(int64_t channels, int64_t pixels, const float* sums, const double* statistics, const float* gamma,
                    float* grad_gamma, float* grad_beta, float* coefficients) {
    const float *totals = sums, *products = sums + channels;
    for (int64_t channel = 0; channel < channels; ++channel) {
        const double mean = statistics[channel], inverse = statistics[2 * channels + channel];
        const double left = mean - static_cast<float>(mean);  // what the sink did not take off
        const double of_gamma = inverse * (products[channel] - left * totals[channel]);
        const double scale = (gamma != nullptr ? gamma[channel] : 1.0) * inverse;
        grad_gamma[channel] = static_cast<float>(of_gamma);
        grad_beta[channel] = totals[channel];
        coefficients[channel] = static_cast<float>(scale);
        coefficients[channels + channel] = static_cast<float>(-scale * inverse * of_gamma / pixels);
        coefficients[2 * channels + channel] = static_cast<float>(scale * (mean * inverse * of_gamma - totals[channel]) / pixels);
    }
}
