// The C interface of the eight-bit engine: plain structs, filled in Python and read through ctypes.
//
// Activations are unsigned bytes in planes, channel by channel, as in the float engine. Between rows and images lies the zero
// point, so that a tap of a convolution is a constant distance. The bytes after a plane's last row are also those before the
// next plane's first. Weights are signed bytes with a scale for every output channel, and sums
// are exact in 32 bits.
#pragma once

#include <cstdint>

#include "../interface.h"

// Pixels that tiles are counted in.
constexpr int64_t kChunkPixels = 32;
// Pixels behind the last plane that may be read and never count.
constexpr int64_t kBytesBehind = 256;
// Columns of dense rows are filled up with zeros to a multiple of this.
constexpr int64_t kDotColumns = 64;

// Any four non-zeros that `kRows` neighbouring output channels have in common: distances in bytes from an output pixel to the
// inputs, and the weights by row.
template <int kRows>
struct Quad {
    int32_t offset[4];
    int8_t weight[kRows][4];
};

// Blocks of output channels as quads. result = sum * scale + bias, by output channel.
struct QuadRows {
    int64_t rows, block;                       // output channels; how many of them share their quads: 1, 2 or 4
    const int32_t* starts;                     // [blocks + 1]
    const void* quads;                         // Quad<block>
    const float *scale, *bias;                 // [rows]
};

struct ByteOp {
    int64_t kind;                              // kLoad, kStore, kSplit, kSparse, kMaxPool or kMean
    const Planes* input;                       // vectors are chunks, `valid` is of bytes; planes are multiples of 64 pixels
    const Planes* other;                       // quads: other_scale times its bytes is added; may be null
    const Planes* output;
    int64_t outside;                           // which outside tensor
    QuadRows weights;
    float other_scale;
    float low, high;                           // bounds of the result in bfloat16; of bytes, their range is the bounds
    int64_t first_channel;                     // of the output, where row 0 of the quads goes
    int64_t tile_vectors;
    // the largest of a window
    const int32_t* tap_offsets;                // [taps], within the planes of one channel's phases
    int64_t taps;
    // split and windows: phase (i / step, i % step) is used where phases[i] >= 0, as plane phases[i]
    int64_t step, phase_planes;
    const int32_t* phases;                     // [step * step]
};

// A linear layer on float tokens, quantized on the way in: byte = token / scale + zero point.
struct ByteLinear {
    int64_t columns;
    float inverse_scale, zero_point;           // of the tokens
    float low, high;                           // bounds of the result
    // for many tokens
    QuadRows weights;                          // offsets are columns times tile_chunks * 32
    int64_t tile_chunks;
    // for a few tokens
    const int8_t* dense;                       // [rows][columns, filled up]
};

struct ByteTable {
    int64_t max_chunks[3];                     // largest tiles for blocks of 1, 2 and 4 rows
    // `call` counts its arena and its scratch in floats, as for the float engine.
    void (*run)(const ByteOp* ops, int64_t count, const Call* call);
    // null in bfloat16
    // output[tokens][rows] = quantized input[tokens][columns] * weight + bias + other, bounded; other may be null.
    int64_t (*linear_scratch)(const ByteLinear*, int64_t tokens);  // bytes for one thread
    void (*linear_quads)(const ByteLinear*, int64_t tokens, int64_t threads, const float* input, const float* other,
                         uint8_t* scratch, float* output);
    void (*linear_dots)(const ByteLinear*, int64_t tokens, int64_t threads, const float* input, const float* other,
                        uint8_t* scratch, float* output);
};
