// Linear layers in eight bits: quads over tiles of tokens, which are the pixels, and dense rows for a few tokens.
#pragma once

#include <omp.h>

#include <cstring>

#include "../finish.h"
#include "../interface.h"
#include "../worker.h"
#include "common/arithmetic.h"
#include "interface.h"
#include "planes.h"
#include "quads.h"

// Rows whose results are turned into tokens together, and tokens whose bytes are.
constexpr int64_t kTurnedRows = 16, kTurnedTokens = 16;
// Rows and tokens of a dense product that are computed at once.
constexpr int kDotRows = 4;

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

static inline Bytes16 low_pairs(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline Bytes16 high_pairs(Bytes16 a, Bytes16 b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// to[i][j] = from[j][i] for 16 x 16 bytes: four times the perfect shuffle of rows 0 to 7 with rows 8 to 15.
static inline void turn_bytes(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride) {
    Bytes16 rows[16], shuffled[16];
    for (int i = 0; i < 16; ++i) {
        std::memcpy(&rows[i], from + i * from_stride, 16);
    }
    for (int round = 0; round < 4; ++round) {
        for (int i = 0; i < 8; ++i) {
            shuffled[2 * i] = low_pairs(rows[i], rows[i + 8]);
            shuffled[2 * i + 1] = high_pairs(rows[i], rows[i + 8]);
        }
        std::memcpy(rows, shuffled, sizeof rows);
    }
    for (int i = 0; i < 16; ++i) {
        std::memcpy(to + i * to_stride, &rows[i], 16);
    }
}

static inline int64_t linear_width(const ByteLinear& layer) { return layer.tile_chunks * kChunkPixels; }
static inline int64_t padded_columns(const ByteLinear& layer) { return round_up(layer.columns, kDotColumns); }

// Bytes of one thread: a tile of tokens by column, 16 tokens as they come, and the results of 16 rows; or all tokens as bytes.
template <class Simd>
int64_t byte_linear_scratch(const ByteLinear* layer, int64_t tokens) {
    if (layer->dense != nullptr) {
        return tokens * padded_columns(*layer);
    }
    const int64_t width = linear_width(*layer), columns = padded_columns(*layer);
    return columns * width + kBytesBehind + kTurnedTokens * columns + kTurnedRows * width * static_cast<int64_t>(sizeof(float));
}

// At most a tile's tokens as bytes, tile[column][token].
template <class Simd>
void turn_tokens(const ByteLinear& layer, int64_t tokens, const float* input, uint8_t* tile, uint8_t* rows) {
    const int64_t columns = padded_columns(layer), width = linear_width(layer);
    for (int64_t token = 0; token < tokens; token += kTurnedTokens) {
        for (int64_t i = 0; i < smaller(kTurnedTokens, tokens - token); ++i) {
            quantize_row<Simd>(input + (token + i) * layer.columns, layer.columns, layer.inverse_scale, layer.zero_point,
                         rows + i * columns);
        }
        for (int64_t column = 0; column < layer.columns; column += 16) {
            turn_bytes(rows + column, columns, tile + column * width + token, width);
        }
    }
}

// The token at a place of a tile's results.
template <class Simd>
int64_t token_at(int64_t place, int64_t chunks) {
    using Wide = typename Simd::Wide;
    const int64_t wide = chunks * kChunkPixels / Wide::pixels * Wide::pixels;
    const int64_t vector = place < wide ? place / Wide::pixels * Wide::pixels : wide;
    return vector + (place < wide ? Wide::pixel_of(place - vector) : Simd::Rest::pixel_of(place - vector));
}

// Results of a few rows, which lie row by row in `ready`, into output[tokens][all rows].
template <class Simd>
void turn_results(const ByteLinear& layer, int64_t tokens, int64_t chunks, const int64_t* token_of, int64_t row, int64_t rows,
                  const float* ready, const float* other, float* output) {
    using Floats = typename Simd::Floats;
    constexpr int kLanes = Floats::lanes;
    const int64_t width = linear_width(layer), all = layer.weights.rows;
    const Activation<Floats> activate(Finish{nullptr, layer.low, layer.high});
    for (int64_t first = 0; first < rows; first += kLanes) {
        const int count = static_cast<int>(smaller(kLanes, rows - first));
        for (int64_t place = 0; place < chunks * kChunkPixels; place += kLanes) {
            typename Floats::Vec square[kLanes];
            for (int i = 0; i < kLanes; ++i) {
                square[i] = Floats::load_unaligned(ready + (first + i) * width + place);
            }
            Floats::transpose(square);
            for (int i = 0; i < kLanes; ++i) {
                const int64_t token = token_of[place + i], at = token * all + row + first;
                if (token < tokens) {
                    const auto sum = other ? Floats::add(square[i], Floats::load_first(other + at, count)) : square[i];
                    Floats::store_first(output + at, activate(sum), count);
                }
            }
        }
    }
}

// Blocks [begin, end) for at most a tile's tokens, which lie in `tile`.
template <class Simd>
void linear_quad_tile(const ByteLinear& layer, int64_t tokens, int64_t begin, int64_t end, const uint8_t* tile, float* ready,
                      const float* other, float* output) {
    const int64_t width = linear_width(layer), all = layer.weights.rows, block = layer.weights.block;
    const int64_t chunks = divide_up(tokens, kChunkPixels);
    const auto kernel = QuadKernels<Simd, FloatSink<Simd>>::of(block, chunks);
    int64_t token_of[Simd::chunks[0] * kChunkPixels];
    for (int64_t place = 0; place < chunks * kChunkPixels; ++place) {
        token_of[place] = token_at<Simd>(place, chunks);
    }
    for (int64_t first = begin; first < end; first += kTurnedRows / block) {
        const int64_t last = smaller(first + kTurnedRows / block, end), row = first * block;
        kernel(layer.weights, first, last, tile, FloatSink<Simd>{ready, width, row});
        turn_results<Simd>(layer, tokens, chunks, token_of, row, smaller(last * block, all) - row, ready, other, output);
    }
}

template <class Simd>
void byte_linear_quads(const ByteLinear* given, int64_t tokens, int64_t threads, const float* input, const float* other,
                       uint8_t* scratch, float* output) {
    const ByteLinear& layer = *given;
    const int64_t width = linear_width(layer), columns = padded_columns(layer), tiles = divide_up(tokens, width);
    const int64_t blocks = blocks_of(layer.weights), turned = kTurnedRows / layer.weights.block;
    const int64_t size = byte_linear_scratch<Simd>(given, tokens);
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
    {
        const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        uint8_t* tile = scratch + me * size;
        uint8_t* rows = tile + columns * width + kBytesBehind;
        float* ready = reinterpret_cast<float*>(rows + kTurnedTokens * columns);
        // With few tiles the output is shared among the threads too; each then turns the tokens for itself.
        const int64_t parts = parts_of(tiles, all), items = tiles * parts;
        int64_t prepared = -1;
        for (int64_t item = share_begin(items, all, me); item < share_begin(items, all, me + 1); ++item) {
            const int64_t first = item / parts * width, part = item % parts, count = smaller(width, tokens - first);
            if (prepared != first) {
                turn_tokens<Simd>(layer, count, input + first * layer.columns, tile, rows);
                prepared = first;
            }
            const int64_t groups = divide_up(blocks, turned);
            linear_quad_tile<Simd>(layer, count, share_begin(groups, parts, part) * turned,
                                   smaller(share_begin(groups, parts, part + 1) * turned, blocks), tile, ready,
                                   other ? other + first * layer.weights.rows : nullptr, output + first * layer.weights.rows);
        }
    }
}

// Sums of kDotRows rows (fewer at the end) for one token.
template <class Simd>
void dot_rows(const int8_t* weights, int64_t columns, int64_t rows, const uint8_t* token, int32_t* sums) {
    using Wide = typename Simd::Wide;
    typename Wide::Int found[kDotRows] = {};
    const int8_t* row[kDotRows];
    for (int r = 0; r < kDotRows; ++r) {
        row[r] = weights + smaller(r, rows - 1) * columns;
    }
    for (int64_t column = 0; column < columns; column += Wide::pixels) {
        const auto x = Wide::load(token + column);
        for (int r = 0; r < kDotRows; ++r) {
            // the next rows: weights come from memory, and every row is a new stream to the processor
            __builtin_prefetch(row[r] + kDotRows * columns + column);
            Wide::dot_row(found[r], x, Wide::load(reinterpret_cast<const uint8_t*>(row[r] + column)));
        }
    }
    for (int r = 0; r < kDotRows; ++r) {
        sums[r] = Wide::sum(found[r]);
    }
}

template <class Simd>
void byte_linear_dots(const ByteLinear* given, int64_t tokens, int64_t threads, const float* input, const float* other,
                      uint8_t* scratch, float* output) {
    const ByteLinear& layer = *given;
    const QuadRows& weights = layer.weights;
    const int64_t columns = padded_columns(layer), groups = divide_up(weights.rows, kDotRows);
    for (int64_t token = 0; token < tokens; ++token) {
        quantize_row<Simd>(input + token * layer.columns, layer.columns, layer.inverse_scale, layer.zero_point, scratch + token * columns);
        std::memset(scratch + token * columns + layer.columns, 0, columns - layer.columns);
    }
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
    {
        const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        for (int64_t group = share_begin(groups, all, me); group < share_begin(groups, all, me + 1); ++group) {
            const int64_t first = group * kDotRows, rows = smaller(kDotRows, weights.rows - first);
            for (int64_t token = 0; token < tokens; ++token) {
                int32_t sums[kDotRows];
                dot_rows<Simd>(layer.dense + first * columns, columns, rows, scratch + token * columns, sums);
                for (int64_t r = 0; r < rows; ++r) {
                    const int64_t row = first + r, at = token * weights.rows + row;
                    const float sum = __builtin_fmaf(static_cast<float>(sums[r]), weights.scale[row], weights.bias[row]);
                    output[at] = bounded(other ? sum + other[at] : sum, layer.low, layer.high);
                }
            }
        }
    }
}
