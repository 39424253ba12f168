// Who does what: the threads of a team share the items of an operation, a thread alone does them all.
#pragma once

#include <omp.h>

#include "common/arithmetic.h"
#include "interface.h"

struct Worker {
    int64_t index, count;                      // within the team
    int64_t shift;                             // floats from the planes of worker 0 to the ones used here
    float* scratch;
    int64_t first_image, images;               // of the outside tensors that this group holds

    float* planes(const Planes& of) const { return of.first + shift; }

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
