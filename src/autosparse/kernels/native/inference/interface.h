// The C interface of the inference engine: plain structs, filled in Python and read through ctypes.
//
// Activations live in *planes*: channel by channel, the pixels of all images of a group in one flat row-major stretch with
// zero columns after every row and zero rows after every image. A tap of a convolution is then a constant distance, for any
// kernel, padding and number of images, and a vector is simply the next pixels.
#pragma once

#include <cstdint>

// Columns that one word of a bitmask describes.
constexpr int64_t kBitmaskColumns = 16;

// One non-zero weight: the distance from an output pixel to the input it weighs (in floats), and its value.
struct Term {
    int32_t offset;
    float value;
};

// A tensor of an engine. Pixel (image, row, col) of a channel lies at image * image_pixels + row * row_pixels + col.
struct Planes {
    void* first;                               // channel 0, pixel 0, of worker 0
    int64_t channels, plane_pixels;            // pixels from a channel to the next
    int64_t lead_pixels;                       // before a plane's pixel 0, or the first plane's: as many as taps reach back
    int64_t images, rows, cols;                // what is valid; everything else in a plane is zero, or the zero point
    int64_t image_pixels, row_pixels;
    int64_t vectors;                           // vectors that cover the pixels of all tensors of this size
    const void* valid;                         // a number for every pixel of these: all bits set where it is valid, else none
    int64_t zero_point;                        // of bytes, for which value = scale * (byte - zero_point); else 0 and 1
    float scale;
};

// What an operation does with a sum before it is stored.
struct Finish {
    const float* bias;                         // by output channel; may be null
    float low, high;                           // ReLU is 0 .. infinity, no activation is -infinity .. infinity
};

enum OpKind : int64_t {
    kLoad = 0,                                 // outside tensor [images][channels][rows][cols] -> planes
    kStore = 1,                                // planes -> outside tensor
    kSplit = 2,                                // every step-th pixel: planes by (row phase, column phase)
    kSparse = 3,                               // rows of terms, or of quads
    kDense = 4,                                // blocks of rows over the same inputs
    kDepthwise = 5,                            // a few taps a channel
    kMaxPool = 6,
    kMeanPool = 7,                             // sum of the taps times `scale`
    kAdd = 8,
    kCopy = 9,                                 // into some of the output's channels
    kMean = 10,                                // mean of all pixels -> outside tensor [images][channels]
};

// How a sparse or dense operation reads its input.
enum InputKind : int64_t {
    kDirect = 0,                               // from the planes themselves
    kDepthwiseTile = 1,                        // a depthwise convolution is computed into a tile first
    kAlignedTile = 2,                          // copied into a tile, once for every misalignment, so that all loads are aligned
};

// A copy of the input in an aligned tile: `vectors` vectors more than the tile has, beginning `first` floats from its start.
struct Shift {
    int64_t first, vectors;
};

struct Op {
    int64_t kind;
    const Planes* input;
    const Planes* other;                       // added before the activation; may be null
    const Planes* output;                      // null where the result goes outside
    int64_t outside;                           // which outside tensor
    Finish finish;
    int64_t first_channel;                     // of the output, for a copy
    // sparse and dense
    int64_t rows, source, tile_vectors;
    const int32_t* row_start;                  // sparse: [rows + 1]
    const Term* terms;
    const float* blocks;                       // dense: [blocks of rows][columns][rows of a block]
    const int32_t* offsets;                    // dense: [columns]
    int64_t columns;
    const Shift* shifts;
    int64_t shift_count, shift_floats;         // floats of all copies of one channel
    // depthwise, alone or before a sparse or dense operation; pools use the offsets
    const float* tap_weights;                  // [channels][taps]
    const int32_t* tap_offsets;                // [taps], within the planes of one channel's phases
    int64_t taps;
    Finish tap_finish;
    float scale;
    // split, pools and strided depthwise: phase (i / step, i % step) is used where phases[i] >= 0, as plane phases[i]
    int64_t step, phase_planes;
    const int32_t* phases;                     // [step * step]
};

// One call of a program. With `together` all threads share the work of a group of images; else each takes groups of its own.
struct Call {
    int64_t images, images_per_group, threads, together;
    int64_t arena_floats;                      // from a worker's planes to the next worker's
    float* scratch;
    int64_t scratch_floats;                    // a worker's
    const float* const* inputs;
    float* const* outputs;
    double* seconds;                           // by operation, added to; may be null
};

// A linear layer with a bitmask: bit c of word w of a row is set where column 16 * w + c is not zero.
struct BitmaskLinear {
    int64_t rows, words;
    const int32_t* row_start;                  // [rows]: a row's first value
    const uint16_t* bits;                      // [rows][words]
    const float* values;                       // a vector longer than there are values
    Finish finish;
};

// A dense linear layer, [rows][columns].
struct DenseLinear {
    int64_t rows, columns;
    const float* values;
    Finish finish;
};

// A sparse one for one token: rows of values and their columns, filled up with zeros (at column 0) to whole blocks.
constexpr int64_t kIndexedBlock = 8;
struct IndexedLinear {
    int64_t rows;
    const int32_t* row_start;                  // [rows + 1], in blocks
    const uint16_t* columns;
    const float* values;
    Finish finish;
};

// A sparse one as rows of terms, for several tokens; offsets are columns times the tile's width.
struct TermLinear {
    int64_t rows, columns, tile_vectors;
    const int32_t* row_start;
    const Term* terms;
    Finish finish;
};

// A dense layer without bias and activation, with rough copies of its rows: row = scale * coarse, but for a difference whose length is at most `errors`.
struct ScreenedLinear {
    DenseLinear exact;
    int64_t columns;                           // of the coarse rows: a multiple of 16, zeros at the end
    const int8_t* coarse;                      // [rows][columns]
    const float* scales;
    const float* errors;                       // with what rounding can add
};

enum DecoderOpKind : int64_t {
    kNormalise = 0,                            // layer norm of every token
    kLinear = 1,
    kAttend = 2,
};

// One operation on a token of every sentence. States are [batch][columns]; keys and values [position][batch][heads * width].
struct DecoderOp {
    int64_t kind;
    int64_t wait;                              // whether the next operation needs this one finished
    const float* input;
    const float* other;                        // linear: added before the activation; may be null, or the output
    float* output;
    int64_t output_step;                       // floats that the output moves on with every position
    // linear: one of them. For a batch of one a bitmask, the input then ends with zeros up to the next whole word, or an
    // indexed weight; terms for more; dense for any.
    const BitmaskLinear* bitmask;
    const IndexedLinear* indexed;
    const DenseLinear* dense;
    const TermLinear* terms;
    // layer norm
    const float *scale, *shift;                // [columns]
    int64_t columns;
    float epsilon;
    // attention
    const float *keys, *values;
    const uint8_t* seen;                       // [batch][seen_stride]: not 0 where a position may be looked at
    int64_t seen_stride, heads, width;
    int64_t positions;                         // 0: all up to the call's
};

struct DecoderCall {
    int64_t batch, position, threads;
    float* scratch;                            // aligned to vectors
    int64_t scratch_floats;                    // a thread's: a float for every position, and what linear_scratch asks for
};

struct InferenceTable {
    int64_t lanes;
    int64_t max_vectors;                       // largest tile_vectors
    int64_t dense_rows;                        // rows of a dense block
    void (*run)(const Op* ops, int64_t count, const Call*);
    // output[rows] = weight * input + bias + other, activated; input holds words * 16 floats; other may be null.
    void (*linear_one)(const BitmaskLinear*, int64_t threads, const float* input, const float* other, float* output);
    // The same for input[tokens][columns].
    void (*linear_dense)(const DenseLinear*, int64_t tokens, int64_t threads, const float* input, const float* other,
                         float* output);
    void (*linear_indexed)(const IndexedLinear*, int64_t threads, const float* input, const float* other, float* output);
    int64_t (*linear_scratch)(const TermLinear*);  // floats for one thread
    void (*linear_many)(const TermLinear*, int64_t tokens, int64_t threads, const float* input, const float* other,
                        float* scratch, float* output);
    // For every token the row with the largest output, the first of equals; all -1 if an input is not finite. Memory after
    // input[tokens][columns] holds zeros up to a multiple of 16. estimates: [tokens][rows], to work in.
    void (*largest_rows)(const ScreenedLinear*, int64_t tokens, int64_t threads, const float* input, float* estimates,
                         int64_t* found);
    void (*decode)(const DecoderOp* ops, int64_t count, const DecoderCall*);
};
