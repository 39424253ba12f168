// The C interface of the kernels: plain structs and functions, called from Python through ctypes.
//
// Everything is one operation, a *gather pass*: output pixels of a grid, each the weighted sum of some input pixels.
// A linear layer, a convolution, and each phase of a convolution's input gradient are gather passes; only the geometry
// differs. The weights are compressed rows (see compress.h). All tensors of a pass lie in one order: channels last,
// [image][row][column][channel], or images last, [row][channel][column][image], for a number of images that fills vectors.
#pragma once

#include <cstdint>

// One non-zero weight: where in a packed tile its input begins (in floats), and its value.
struct Entry {
    int32_t offset;
    float value;
};

// Geometry of a gather pass. Lane l of a vector belongs to site l: an (image, patch) pair, patches being equal
// rectangles that cover the grid. A tile is tile_rows x tile_cols pixels of every site in a block of sites.
struct Pass {
    int64_t images;
    int64_t images_last;                       // 1: the order of all tensors, with one patch per image
    int64_t in_rows, in_cols, in_channels;
    int64_t out_rows, out_cols, out_channels;
    int64_t grid_rows, grid_cols;              // pixels this pass computes
    int64_t out_first_row, out_first_col;      // where grid pixel (0, 0) lies in the output
    int64_t out_row_step, out_col_step;        // from a grid pixel to the next one, in output pixels
    int64_t in_first_row, in_first_col;        // window corner of grid pixel (0, 0); negative inside the padding
    int64_t in_row_step, in_col_step;          // from a grid pixel to the next one, in input pixels
    int64_t patch_rows, patch_cols;            // pixels of a patch
    int64_t patches_down, patches_across;      // patches of an image
    int64_t site_step, pixel_step;             // columns between neighbouring patches, and between pixels of one patch
    int64_t tile_rows, tile_cols;
    int64_t window_rows, window_cols;          // input pixels that a full tile covers
    int64_t slots_per_row;                     // vectors that one window row takes in a packed tile
    int64_t block_channels;                    // input channels packed at a time
    const uint8_t* used_rows;                  // [window_rows]: 1 where some weight may read that row
    const uint8_t* used_cols;                  // [window_cols]
};

// What a pass reads at a pixel, made while it is read: see pixels.h. scale, offset, other_scale and other_offset are one
// number for every channel.
enum SourceKind : int64_t {
    kPlainSource = 0,            // tensor
    kNormalisedSource = 1,       // scale * tensor + offset
    kActivatedSource = 2,        // relu(scale * tensor + offset)
    kGradientSource = 3,         // scale * tensor + other_scale * other + offset
    kJoinedSource = 4,           // scale * tensor + offset + other_scale * other + other_offset
    kJoinedActivatedSource = 5,  // and its ReLU; without other_scale the other is added as it is
};

struct Source {
    int64_t kind;
    const void* tensor;  // float or bfloat16, as the table's functions read and write all tensors of activations
    const float *scale, *offset;
    const void* other;
    const float *other_scale, *other_offset;
};

// What is done with the result at a pixel: see sinks.h.
enum SinkKind : int64_t {
    kStoreSink = 0,            // target = value
    kStatisticsSink = 1,       // and sums of value - shift, of its square; the target may be null
    kNormalisedSink = 2,       // target = value; sums of value, value * raw
    kActivatedSink = 3,        // the same with value = 0 where scale * raw + offset <= 0
    kJoinedSink = 4,           // target = value + added; sums of it, times raw, times other
    kJoinedActivatedSink = 5,  // the same with 0 where result <= 0
};

constexpr int64_t kSums = 3;  // kinds of sums that a sink makes at most

struct Sink {
    int64_t kind;
    void* target;
    int64_t streams;     // 1: target is larger than the caches, and its pixels lie on vectors' boundaries
    const float* shift;  // taken off a result before it is summed, off `raw` before it is multiplied: near the mean
    const void* raw;
    const float *scale, *offset;
    const void *added, *result, *other;
    const float* other_shift;
    double* slice_sums;  // scratch, [slices][kSums][channels in whole vectors]
    double* sums;        // [kSums][channels], added to; the same whichever thread was faster
};

// The size of a tensor of pixels.
struct Extent {
    int64_t images, rows, cols, channels;
};

// A depthwise 3x3 convolution with padding 1: see depthwise.h.
struct Depthwise {
    int64_t images, in_rows, in_cols, out_rows, out_cols, channels, stride;
};

// Geometry of a dense weight (rows = output channels) in memory, and of its blocks of input channels.
struct WeightLayout {
    int64_t rows, channels, taps;
    int64_t block_channels;
    int64_t channels_last;                     // 1: a row is [taps][channels]; 0: [channels][taps]
};

// What a vector of a packed tile says of the weights that read it: the offset of an entry leads to it, so that nothing
// else is kept of where the entry came from. All for the first block of input channels.
struct Slot {
    int32_t column;                            // position within the dense row
    int32_t transposed_row;                    // row of the transposed weight, for its first block of output channels
    int32_t tap_offset;                        // the tap's part of an offset there
};

struct TransposedLayout {
    int64_t compressed_rows;                   // all phases, all blocks
    int64_t rows_per_block;                    // input channels
    int64_t block_channels;                    // output channels packed at a time
    int64_t channel_stride;                    // floats between neighbouring channels of a packed tile
};

struct TrainingTable {
    int64_t lanes;
    int64_t max_vectors;                       // largest tile_rows * tile_cols with channels last
    int64_t max_tile;                          // and with images last

    // Floats of scratch for one thread.
    int64_t (*gather_scratch)(const Pass*, int64_t row_parts);
    int64_t (*weight_gradient_scratch)(const Pass*, int64_t row_parts);

    // The sink gets gathered source * weight + bias; bias may be null. Work is split over `slices` groups of tiles, which
    // keep the sums of a sink apart, and over row_parts groups of output channels.
    void (*gather)(const Pass*, const Source*, const float* bias, const int32_t* row_start, const Entry* entries,
                   int64_t threads, int64_t slices, int64_t row_parts, float* scratch, const Sink*);

    // Gradient of the listed weights, summed over all pixels, one sum for each of `slices` groups of tiles:
    // sums[slices][entries].
    void (*weight_gradient)(const Pass*, const Source* input, const Source* grad_output, const int32_t* row_start,
                            const Entry* entries, int64_t threads, int64_t slices, int64_t row_parts, float* scratch,
                            float* sums);

    // Both gradients of a convolution with a kernel of one pixel and no stride, the output's gradient packed once for both. `forward` and
    // `backward` are the passes of the output and of the input gradient, which have the same tiles.
    int64_t (*joint_gradient_scratch)(const Pass* forward, const Pass* backward);
    void (*joint_gradient)(const Pass* forward, const Pass* backward, const Source* input, const Source* grad_output,
                           const int32_t* row_start, const Entry* entries, const int32_t* transposed_start,
                           const Entry* transposed, int64_t threads, int64_t slices, float* scratch, const Sink*,
                           float* sums);

    // The same for a depthwise convolution, weight [channels][9]; weight_sums is scratch, [slices][9][channels in whole
    // vectors].
    int64_t (*depthwise_scratch)(const Depthwise*, int64_t threads);
    void (*depthwise_forward)(const Depthwise*, const Source*, const float* weight, int64_t threads, int64_t slices,
                              float* scratch, const Sink*);
    void (*depthwise_gradients)(const Depthwise*, const Source* input, const Source* grad_output, const float* weight,
                                int64_t threads, int64_t slices, float* scratch, const Sink*, double* weight_sums,
                                float* weight_gradient);

    // One pass over all pixels from a source to a sink, in either order of tensors.
    void (*sweep)(const Extent*, int64_t images_last, const Source*, int64_t threads, int64_t slices, const Sink*);

    // What a source gives is stored in the order that its own tensors do not have; target_images_last: the target's.
    void (*turn)(const Extent*, int64_t target_images_last, const Source*, int64_t threads, const Sink*);

    // Batch norm for each channel: from sums of value - shift and of its square to statistics[3][channels] (mean,
    // biased variance, 1 / standard deviation) and folded[3][channels] (scale, offset, mean). gamma and beta may be null.
    // Returns 0 if the shift was too far from the mean for the variance to be exact.
    int64_t (*fold_statistics)(int64_t channels, int64_t pixels, const double* sums, const float* shift, double epsilon,
                               const float* gamma, const float* beta, double* statistics, float* folded);

    // running = (1 - factor) * running + factor * statistics, with the variance without bias; more than one pixel.
    void (*track_statistics)(int64_t channels, int64_t pixels, const double* statistics, double factor, float* running_mean,
                             float* running_variance);

    // Its gradients: from sums of the result's gradient, and of that times the raw value less its mean, to those of gamma
    // and beta and to coefficients[3][channels], the scale, other_scale and offset of a gradient source.
    void (*fold_gradients)(int64_t channels, int64_t pixels, const float* sums, const double* statistics,
                           const float* gamma, float* grad_gamma, float* grad_beta, float* coefficients);

    // Adds the slices and writes them to their places in a dense gradient, zero elsewhere; or adds them to what is there.
    void (*scatter)(const WeightLayout*, const Slot*, const int32_t* row_start, const Entry* entries, const float* sums,
                    int64_t slices, int64_t adds, int64_t threads, float* gradient);

    // Fills row_start[blocks * rows + 1] from the non-zeros of a weight or of a mask; returns their number, or -1 if it
    // does not fit into int32.
    int64_t (*count_weight)(const WeightLayout*, const float* weight, int64_t threads, int32_t* row_start);
    int64_t (*count_mask)(const WeightLayout*, const uint8_t* mask, int64_t threads, int32_t* row_start);

    // Fills the entries for a counted row_start.
    void (*compress_weight)(const WeightLayout*, const float* weight, const int32_t* column_offsets, int64_t threads,
                            const int32_t* row_start, Entry* entries);
    void (*compress_mask)(const WeightLayout*, const uint8_t* mask, const int32_t* column_offsets, int64_t threads,
                          const int32_t* row_start, Entry* entries);

    // Takes new values into an old pattern. Returns 0, with the entries unusable, if the pattern has changed.
    int64_t (*refresh)(const WeightLayout*, const Slot*, const float* weight, int64_t threads, const int32_t* row_start,
                       Entry* entries);

    // The same weights by input channel. counts: scratch, [threads][compressed_rows]. source[k]: the entry that
    // transposed entry k was made from; may be null.
    void (*transpose)(const WeightLayout*, const TransposedLayout*, const Slot*, const int32_t* row_start,
                      const Entry* entries, int64_t threads, int32_t* counts, int32_t* transposed_start, Entry* transposed,
                      int32_t* source);
    void (*refresh_transposed)(int64_t count, const Entry* entries, const int32_t* source, int64_t threads,
                               Entry* transposed);

    // effective = sign(weight) * relu(|weight| - threshold), threshold >= 0. Returns how many weights have |weight| > threshold.
    int64_t (*soft_threshold)(int64_t count, const float* weight, float threshold, int64_t threads, float* effective);

    // scaled = grad where |weight| > threshold, else gate * grad where |weight| >= reach, else 0. Returns the sum of
    // sign(weight) * scaled. sums: scratch, one for each slice of kThresholdSlice weights.
    double (*soft_threshold_gradients)(int64_t count, const float* weight, const float* grad, float threshold, float gate,
                                       float reach, int64_t threads, float* scaled, double* sums);

    // How many weights have |weight| > threshold, threshold >= 0.
    int64_t (*count_above)(int64_t count, const float* weight, float threshold, int64_t threads);

    // product = values inside the mask, gate * values where `receives` (null: everywhere else), 0 * values elsewhere; gate in
    // [0, 1]. Returns how many values outside the mask are not zero. product may be values.
    int64_t (*masked_product)(int64_t count, const uint8_t* mask, const uint8_t* receives, const float* values, float gate,
                              int64_t threads, float* product);
};
