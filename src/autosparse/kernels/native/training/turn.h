// From one order of a tensor to the other: squares of images and channels are transposed, as a source gives them.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "interface.h"
#include "pixels.h"
#include "sinks.h"

// Where the two orders have a pixel.
struct PlacesOfPixel {
    int64_t image_pitch, channels_last;  // of the first image
    int64_t channel_pitch, images_last;  // of the first channel
};

// All channels of all images at one pixel, to images last.
template <class Simd, class From>
void turn_to_images(const Extent& extent, const PlacesOfPixel& at, const From& from, const Target<Simd>& target) {
    for (int64_t channel = 0; channel < extent.channels; channel += Simd::lanes) {
        const int count = static_cast<int>(smaller(Simd::lanes, extent.channels - channel));
        const auto group = from.group(NeighbouringChannels{channel, count});
        for (int64_t image = 0; image < extent.images; image += Simd::lanes) {
            typename Simd::Vec rows[Simd::lanes];
            for (int each = 0; each < Simd::lanes; ++each) {
                rows[each] = from.load(group, at.channels_last + (image + each) * at.image_pitch + channel, count);
            }
            Simd::transpose(rows);
            for (int each = 0; each < count; ++each) {
                target.put(at.images_last + (channel + each) * at.channel_pitch + image, rows[each], Simd::lanes);
            }
        }
    }
}

// And from images last.
template <class Simd, class From>
void turn_to_channels(const Extent& extent, const PlacesOfPixel& at, const From& from, const Target<Simd>& target) {
    for (int64_t channel = 0; channel < extent.channels; channel += Simd::lanes) {
        const int count = static_cast<int>(smaller(Simd::lanes, extent.channels - channel));
        for (int64_t image = 0; image < extent.images; image += Simd::lanes) {
            typename Simd::Vec rows[Simd::lanes];
            for (int each = 0; each < Simd::lanes; ++each) {
                const int64_t place = at.images_last + (channel + each) * at.channel_pitch + image;
                rows[each] = each < count ? from.load(from.group(OneChannel{channel + each}), place, Simd::lanes) : Simd::zero();
            }
            Simd::transpose(rows);
            for (int each = 0; each < Simd::lanes; ++each) {
                target.put(at.channels_last + (image + each) * at.image_pitch + channel, rows[each], count);
            }
        }
    }
}

template <class Simd>
void turn(const Extent* given, int64_t target_images_last, const Source* source, int64_t threads, const Sink* sink) {
    const Extent extent = *given;
    const Target<Simd> target(*sink);
    with_source<Simd>(*source, [&](const auto& from) {
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(threads))
        for (int64_t pixel = 0; pixel < extent.rows * extent.cols; ++pixel) {
            const int64_t row = pixel / extent.cols, col = pixel % extent.cols, pitch = extent.cols * extent.images;
            const PlacesOfPixel at = {extent.rows * extent.cols * extent.channels, pixel * extent.channels, pitch,
                                      row * extent.channels * pitch + col * extent.images};
            if (target_images_last != 0) {
                turn_to_images<Simd>(extent, at, from, target);
            } else {
                turn_to_channels<Simd>(extent, at, from, target);
            }
        }
    });
}
