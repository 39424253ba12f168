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
        typename Simd::Float sums = _mm512_setzero_ps();
        for (int64_t row = 0; row < in.rows; ++row, from += in.row_bytes) {
            for (int64_t col = 0; col < in.cols; col += 16) {
                sums = Simd::add_first(sums, from + col, Simd::first_of(in.cols - col));
            }
        }
        to[(worker.first_image + image) * in.channels + channel] = _mm512_reduce_add_ps(sums) * scale;
    });
}

// The even or the odd numbers of rows. A vector reaches into the next row, which is written after it, but not beyond `room`.
template <class Simd, bool kOdd>
void take_alternate_halves(const uint16_t* from, int64_t from_stride, int64_t rows, int64_t cols, int64_t to_stride, int64_t room,
                           uint16_t outside, uint16_t* to) {
    const int64_t last = (cols - 1) / 16 * 16;
    const __mmask16 inside = Simd::first_of(cols - last);
    const __m256i around = _mm256_set1_epi16(static_cast<int16_t>(outside));
    for (int64_t row = 0; row < rows; ++row) {
        const uint16_t* source = from + row * from_stride;
        uint16_t* target = to + row * to_stride;
        for (int64_t col = 0; col < last; col += 16) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + col), Simd::template alternate<kOdd>(source + 2 * col));
        }
        const __m256i numbers = Simd::template alternate<kOdd>(source + 2 * last);
        if (row * to_stride + last + 16 <= room) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + last), _mm256_mask_blend_epi16(inside, around, numbers));
        } else {
            _mm256_mask_storeu_epi16(target + last, inside, numbers);
        }
    }
}

// One channel's phases, `outside` between their pixels; phase p begins at to + phases[p] * phase_size, on the grid of `grid`.
// A known step spares divisions.
template <class Simd, int64_t kStep>
void split_halves_by(const ByteOp& op, const BytePlanes& in, const BytePlanes& grid, uint16_t outside, const uint16_t* from,
                     int64_t phase_size, uint16_t* to) {
    const int64_t step = kStep ? kStep : op.step, stride = step * in.row_bytes;
    for (int64_t phase = 0; phase < step * step; ++phase) {
        const int64_t top = phase / step, left = phase % step;
        const int64_t rows = divide_up(in.rows - top, step), cols = divide_up(in.cols - left, step);
        if (op.phases[phase] < 0 || cols < 1) {
            continue;
        }
        for (int64_t image = 0; image < in.images; ++image) {
            const uint16_t* source = from + image * in.image_bytes + top * in.row_bytes;
            uint16_t* target = to + op.phases[phase] * phase_size + image * grid.image_bytes;
            if (step == 2) {
                (left ? take_alternate_halves<Simd, true> : take_alternate_halves<Simd, false>)(
                    source, stride, rows, cols, grid.row_bytes, grid.image_bytes, outside, target);
                continue;
            }
            for (int64_t row = 0; row < rows; ++row, source += stride, target += grid.row_bytes) {
                if (step == 1) {
                    std::memcpy(target, source, cols * sizeof(uint16_t));
                    continue;
                }
                for (int64_t col = 0; col < cols; ++col) {
                    target[col] = source[col * step + left];
                }
            }
        }
    }
}

template <class Simd>
void split_channel_halves(const ByteOp& op, const BytePlanes& in, const BytePlanes& grid, uint16_t outside, const uint16_t* from,
                          int64_t phase_size, uint16_t* to) {
    const auto split = op.step == 2 ? split_halves_by<Simd, 2> : split_halves_by<Simd, 0>;
    split(op, in, grid, outside, from, phase_size, to);
}

template <class Simd>
void split_halves(const ByteOp& op, const Worker& worker) {
    const BytePlanes &in = *op.input, &out = *op.output;
    worker.share(in.channels, [&](int64_t channel) {
        split_channel_halves<Simd>(op, in, out, 0, halves_of(worker, in) + channel * in.plane_bytes,
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
        split_channel_halves<Simd>(op, in, out, kLeastHalf, halves_of(worker, in) + channel * in.plane_bytes, out.plane_bytes,
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
