// Programs of the bfloat16 engine. They are those of the eight-bit engine with two bytes per pixel: what its structs count in
// bytes is counted in pixels here, zero points are 0, and scales of tensors 1.
#pragma once

#include <cstring>

#include "../bytes/interface.h"
#include "../bytes/quads.h"
#include "../program.h"
#include "common/arithmetic.h"
#include "pairs.h"

constexpr uint16_t kLeastHalf = 0xff80;  // minus infinity

static inline uint16_t* halves_of(const Worker& worker, const BytePlanes& planes) {
    return reinterpret_cast<uint16_t*>(planes.first + worker.shift * static_cast<int64_t>(sizeof(float)));
}

static inline float half_to_float(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Calls visit(pixels inside, pixels outside) for every row of this worker's share of images and channels.
template <class Visit>
void for_each_half_row(const BytePlanes& planes, const Worker& worker, const Visit& visit) {
    worker.share(worker.images * planes.channels, [&](int64_t item) {
        const int64_t image = item / planes.channels, channel = item % planes.channels;
        uint16_t* inside = halves_of(worker, planes) + channel * planes.plane_bytes + image * planes.image_bytes;
        const int64_t outside = ((worker.first_image + image) * planes.channels + channel) * planes.rows * planes.cols;
        for (int64_t row = 0; row < planes.rows; ++row) {
            visit(inside + row * planes.row_bytes, outside + row * planes.cols);
        }
    });
}

template <class Simd>
void load_halves(const ByteOp& op, const Worker& worker, const float* from) {
    const BytePlanes& out = *op.output;
    for_each_half_row(out, worker, [&](uint16_t* inside, int64_t outside) {
        for (int64_t col = 0; col < out.cols; col += 16) {
            Simd::store_floats(from + outside + col, out.cols - col, inside + col);
        }
    });
}

template <class Simd>
void store_halves(const ByteOp& op, const Worker& worker, float* to) {
    const BytePlanes& in = *op.input;
    for_each_half_row(in, worker, [&](const uint16_t* inside, int64_t outside) {
        for (int64_t col = 0; col < in.cols; ++col) {
            to[outside + col] = half_to_float(inside[col]);
        }
    });
}

template <class Simd>
void mean_halves(const ByteOp& op, const Worker& worker, float* to) {
    const BytePlanes& in = *op.input;
    const float scale = 1.0f / static_cast<float>(in.rows * in.cols);
    worker.share(worker.images * in.channels, [&](int64_t item) {
        const int64_t image = item / in.channels, channel = item % in.channels;
        const uint16_t* from = halves_of(worker, in) + channel * in.plane_bytes + image * in.image_bytes;
        float sum = 0.0f;
        for (int64_t row = 0; row < in.rows; ++row, from += in.row_bytes) {
            for (int64_t col = 0; col < in.cols; ++col) {
                sum += half_to_float(from[col]);
            }
        }
        to[(worker.first_image + image) * in.channels + channel] = sum * scale;
    });
}

// One channel's phases; phase p begins at to + phases[p] * phase_size and lies on the grid of `grid`.
template <class Simd>
void split_channel_halves(const ByteOp& op, const BytePlanes& in, const BytePlanes& grid, const uint16_t* from,
                          int64_t phase_size, uint16_t* to) {
    for (int64_t phase = 0; phase < op.step * op.step; ++phase) {
        if (op.phases[phase] < 0) {
            continue;
        }
        const int64_t top = phase / op.step, left = phase % op.step;
        const int64_t rows = divide_up(in.rows - top, op.step), cols = divide_up(in.cols - left, op.step);
        uint16_t* plane = to + op.phases[phase] * phase_size;
        for (int64_t image = 0; image < in.images; ++image) {
            for (int64_t row = 0; row < rows; ++row) {
                const uint16_t* source = from + image * in.image_bytes + (row * op.step + top) * in.row_bytes + left;
                uint16_t* target = plane + image * grid.image_bytes + row * grid.row_bytes;
                if (op.step == 1) {
                    std::memcpy(target, source, cols * sizeof(uint16_t));
                } else if (op.step == 2) {
                    for (int64_t col = 0; col < cols; col += 16) {
                        Simd::store_even(source + 2 * col, cols - col, target + col);
                    }
                } else {
                    for (int64_t col = 0; col < cols; ++col) {
                        target[col] = source[col * op.step];
                    }
                }
            }
        }
    }
}

template <class Simd>
void split_halves(const ByteOp& op, const Worker& worker) {
    const BytePlanes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        split_channel_halves<Simd>(op, in, out, halves_of(worker, in) + channel * in.plane_bytes,
                                   in.channels * out.plane_bytes, halves_of(worker, out) + channel * out.plane_bytes);
    });
}

// Channel by channel through scratch, where minus infinity lies around the pixels.
template <class Simd>
void largest_halves(const ByteOp& op, const Worker& worker) {
    const BytePlanes &in = *op.input, &out = *op.output;
    uint16_t* scratch = reinterpret_cast<uint16_t*>(worker.scratch);
    for (int64_t i = 0; i < op.phase_planes * out.plane_bytes + 2 * op.lead_bytes; ++i) {
        scratch[i] = kLeastHalf;
    }
    worker.share(in.channels, [&](int64_t channel) {
        split_channel_halves<Simd>(op, in, out, halves_of(worker, in) + channel * in.plane_bytes, out.plane_bytes,
                                   scratch + op.lead_bytes);
        uint16_t* to = halves_of(worker, out) + channel * out.plane_bytes;
        for (int64_t chunk = 0; chunk < out.chunks; ++chunk) {
            const uint16_t* from = scratch + op.lead_bytes + chunk * kChunkPixels;
            __m512i largest = Simd::ordered(_mm512_loadu_si512(from + op.tap_offsets[0]));
            for (int64_t tap = 1; tap < op.taps; ++tap) {
                largest = _mm512_max_epi16(largest, Simd::ordered(_mm512_loadu_si512(from + op.tap_offsets[tap])));
            }
            const auto* valid = reinterpret_cast<const __m256i*>(out.valid + chunk * kChunkPixels);
            const __mmask32 some = _mm256_movepi8_mask(_mm256_loadu_si256(valid));
            _mm512_storeu_si512(to + chunk * kChunkPixels, _mm512_maskz_mov_epi16(some, Simd::ordered(largest)));
        }
    });
}

// Tiles of pixels, for each all rows.
template <class Simd>
void run_pairs(const ByteOp& op, const Worker& worker) {
    constexpr int64_t kManyTilesOfHalves = 4;
    const BytePlanes& out = *op.output;
    const int64_t tiles = divide_up(out.chunks, op.tile_chunks), blocks = blocks_of(op.weights);
    const int64_t parts = tiles % worker.count == 0 || tiles >= kManyTilesOfHalves * worker.count ? 1 : worker.count;
    worker.share(tiles * parts, [&](int64_t item) {
        const int64_t tile = item / parts, part = item % parts, first = tile * op.tile_chunks;
        const int64_t chunks = smaller(op.tile_chunks, out.chunks - first), at = first * kChunkPixels;
        const HalfTarget target = {halves_of(worker, out) + op.first_channel * out.plane_bytes + at,
                                   out.plane_bytes,
                                   op.other ? halves_of(worker, *op.other) + at : nullptr,
                                   op.other ? op.other->plane_bytes : 0,
                                   out.valid + at,
                                   op.low,
                                   op.high};
        PairKernels<Simd>::of(op.weights.block, chunks)(op.weights, share_begin(blocks, parts, part),
                                                        share_begin(blocks, parts, part + 1),
                                                        halves_of(worker, *op.input) + at, target);
    });
}

template <class Simd>
void run_half_op(const ByteOp& op, const Worker& worker, const Call& call) {
    switch (op.kind) {
        case kLoadBytes: return load_halves<Simd>(op, worker, call.inputs[op.outside]);
        case kStoreBytes: return store_halves<Simd>(op, worker, call.outputs[op.outside]);
        case kSplitBytes: return split_halves<Simd>(op, worker);
        case kQuadRows: return run_pairs<Simd>(op, worker);
        case kLargestByte: return largest_halves<Simd>(op, worker);
        case kMeanByte: return mean_halves<Simd>(op, worker, call.outputs[op.outside]);
    }
}

template <class Simd>
void run_half_program(const ByteOp* ops, int64_t count, const Call* call) {
    run_ops<Simd>(ops, count, *call, run_half_op<Simd>);
}

template <class Simd>
constexpr ByteTable make_half_table() {
    return {{Simd::vectors[0], Simd::vectors[1], Simd::vectors[2]}, run_half_program<Simd>, nullptr, nullptr, nullptr};
}
