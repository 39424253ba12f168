// Who does what: the threads of a team share the items of an operation, a thread alone does them all.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "interface.h"

// With at least this many tiles for every thread, whole tiles are dealt out; else the output channels are shared too.
constexpr int64_t kManyTiles = 4;

// Into how many parts the output channels are split.
static inline int64_t parts_of(int64_t tiles, int64_t workers) {
    return tiles % workers == 0 || tiles >= kManyTiles * workers ? 1 : workers;
}

struct Worker {
    int64_t index, count;                      // within the team
    int64_t shift;                             // floats from the planes of worker 0 to the ones used here
    float* scratch;
    int64_t first_image, images;               // of the outside tensors that this group holds

    template <class Number = float>
    Number* planes(const Planes& of) const {
        return reinterpret_cast<Number*>(static_cast<float*>(of.first) + shift);
    }

    // Calls visit(item) for this worker's contiguous share.
    template <class Visit>
    void share(int64_t items, const Visit& visit) const {
        const int64_t end = share_begin(items, count, index + 1);
        for (int64_t item = share_begin(items, count, index); item < end; ++item) {
            visit(item);
        }
    }

    // Nobody starts the next operation before all have finished this one.
    void wait() const {
        if (count > 1) {
#pragma omp barrier
        }
    }
};
