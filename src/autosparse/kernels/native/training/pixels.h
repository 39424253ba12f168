// What is read at a pixel, and what is done with a pixel's result: the steps around a convolution that need no pass of
// their own. A source gives a vector of neighbouring channels, a sink takes one. `group` holds what belongs to the
// channels: coefficients, and the sums over pixels that a sink makes.
#pragma once

#include "common/arithmetic.h"
#include "interface.h"

// From a tensor, or from numbers of the channels, which are always float.
template <class Simd, class Element>
inline typename Simd::Vec load_count(const Element* from, int count) {
    return count == Simd::lanes ? Simd::load_unaligned(from) : Simd::load_first(from, count);
}

template <class Simd>
inline void store_count(typename Simd::Element* to, typename Simd::Vec value, int count) {
    if (count == Simd::lanes) {
        Simd::store_unaligned(to, value);
    } else {
        Simd::store_first(to, value, count);
    }
}

// ---- sources ---------------------------------------------------------------------------------------------------------

// A tensor as it is.
template <class Simd>
struct PlainSource {
    using Vec = typename Simd::Vec;
    struct Group {};
    const typename Simd::Element* tensor;

    Group group(int64_t, int) const { return {}; }
    Vec load(const Group&, int64_t place, int count) const { return load_count<Simd>(tensor + place, count); }
};

// scale * tensor + offset, and its ReLU if wanted: batch norm.
template <class Simd, bool kRelu>
struct NormalisedSource {
    using Vec = typename Simd::Vec;
    struct Group {
        Vec scale, offset;
    };
    const typename Simd::Element* tensor;
    const float *scale, *offset;

    Group group(int64_t channel, int count) const {
        return {load_count<Simd>(scale + channel, count), load_count<Simd>(offset + channel, count)};
    }
    Vec load(const Group& group, int64_t place, int count) const {
        const Vec value = Simd::multiply_add(group.scale, load_count<Simd>(tensor + place, count), group.offset);
        return kRelu ? Simd::relu(value) : value;
    }
};

// scale * tensor + other_scale * other + offset: the gradient of a batch norm's input, with the input as `other`.
template <class Simd>
struct GradientSource {
    using Vec = typename Simd::Vec;
    struct Group {
        Vec scale, other_scale, offset;
    };
    const typename Simd::Element* tensor;
    const float *scale, *offset;
    const typename Simd::Element* other;
    const float* other_scale;

    Group group(int64_t channel, int count) const {
        return {load_count<Simd>(scale + channel, count), load_count<Simd>(other_scale + channel, count),
                load_count<Simd>(offset + channel, count)};
    }
    Vec load(const Group& group, int64_t place, int count) const {
        const Vec shifted = Simd::multiply_add(group.other_scale, load_count<Simd>(other + place, count), group.offset);
        return Simd::multiply_add(group.scale, load_count<Simd>(tensor + place, count), shifted);
    }
};

// (scale * tensor + offset) + (other_scale * other + other_offset), and its ReLU if wanted: the end of a residual block.
template <class Simd, bool kRelu, bool kOtherNormalised>
struct JoinedSource {
    using Vec = typename Simd::Vec;
    struct Group {
        Vec scale, offset, other_scale, other_offset;
    };
    const typename Simd::Element* tensor;
    const float *scale, *offset;
    const typename Simd::Element* other;
    const float *other_scale, *other_offset;

    Group group(int64_t channel, int count) const {
        Group found = {load_count<Simd>(scale + channel, count), load_count<Simd>(offset + channel, count), Simd::zero(), Simd::zero()};
        if (kOtherNormalised) {
            found.other_scale = load_count<Simd>(other_scale + channel, count);
            found.other_offset = load_count<Simd>(other_offset + channel, count);
        }
        return found;
    }
    Vec load(const Group& group, int64_t place, int count) const {
        Vec second = load_count<Simd>(other + place, count);
        if (kOtherNormalised) {
            second = Simd::multiply_add(group.other_scale, second, group.other_offset);
        }
        const Vec first = Simd::multiply_add(group.scale, load_count<Simd>(tensor + place, count), group.offset);
        const Vec value = Simd::add(first, second);
        return kRelu ? Simd::relu(value) : value;
    }
};

// ---- sinks -----------------------------------------------------------------------------------------------------------
// `finish` adds a group's sums to sums[kind * padded channels + channel]; `padded` is the channels in whole vectors.

// Where results go. What is larger than the caches is written past them: nothing is read before it is overwritten. The
// barrier at the end of a parallel loop orders these stores before whatever reads them.
template <class Simd>
struct Target {
    typename Simd::Element* memory;
    bool streams;

    explicit Target(const Sink& to) : memory(static_cast<typename Simd::Element*>(to.target)), streams(to.streams != 0) {}
    void put(int64_t place, typename Simd::Vec value, int count) const {
        if (streams && count == Simd::lanes) {
            Simd::stream(memory + place, value);
        } else {
            store_count<Simd>(memory + place, value, count);
        }
    }
};

template <class Simd>
struct StoreSink {
    using Vec = typename Simd::Vec;
    struct Group {};
    Target<Simd> target;

    Group group(int64_t, int) const { return {}; }
    void put(Group&, int64_t place, Vec value, int count) const { target.put(place, value, count); }
    void finish(const Group&, int64_t, double*) const {}
};

// Stores, unless there is no target, and sums value - shift and its square: the statistics of a batch norm.
template <class Simd>
struct StatisticsSink {
    using Vec = typename Simd::Vec;
    struct Group {
        Vec shift, sum, squares;
    };
    Target<Simd> target;
    const float* shift;
    int64_t padded;

    Group group(int64_t channel, int count) const { return {load_count<Simd>(shift + channel, count), Simd::zero(), Simd::zero()}; }
    void put(Group& group, int64_t place, Vec value, int count) const {
        if (target.memory != nullptr) {
            target.put(place, value, count);
        }
        const Vec shifted = Simd::subtract(value, group.shift);
        group.sum = Simd::add(group.sum, shifted);
        group.squares = Simd::multiply_add(shifted, shifted, group.squares);
    }
    void finish(const Group& group, int64_t channel, double* sums) const {
        Simd::add_to(sums + channel, group.sum);
        Simd::add_to(sums + padded + channel, group.squares);
    }
};

// A gradient that has reached scale * raw + offset: zero where its ReLU was, stored, and summed alone and times
// raw - shift. With a shift near the mean nothing cancels, and a channel that is constant gives exactly zero.
template <class Simd, bool kRelu>
struct NormalisedSink {
    using Vec = typename Simd::Vec;
    struct Group {
        Vec scale, offset, shift, sum, products;
    };
    Target<Simd> target;
    const typename Simd::Element* raw;
    const float *shift, *scale, *offset;
    int64_t padded;

    Group group(int64_t channel, int count) const {
        Group found = {Simd::zero(), Simd::zero(), load_count<Simd>(shift + channel, count), Simd::zero(), Simd::zero()};
        if (kRelu) {
            found.scale = load_count<Simd>(scale + channel, count);
            found.offset = load_count<Simd>(offset + channel, count);
        }
        return found;
    }
    void put(Group& group, int64_t place, Vec value, int count) const {
        const Vec before = load_count<Simd>(raw + place, count);
        if (kRelu) {
            value = Simd::where_positive(Simd::multiply_add(group.scale, before, group.offset), value);
        }
        target.put(place, value, count);
        group.sum = Simd::add(group.sum, value);
        group.products = Simd::multiply_add(value, Simd::subtract(before, group.shift), group.products);
    }
    void finish(const Group& group, int64_t channel, double* sums) const {
        Simd::add_to(sums + channel, group.sum);
        Simd::add_to(sums + padded + channel, group.products);
    }
};

// A gradient that has reached the end of a residual block: another gradient is added, it is zero where the block's ReLU
// was, stored, and summed alone, times raw - shift and times the other branch's if that was normalised too.
template <class Simd, bool kRelu, bool kOther>
struct JoinedSink {
    using Vec = typename Simd::Vec;
    struct Group {
        Vec shift, other_shift, sum, products, other_products;
    };
    Target<Simd> target;
    const typename Simd::Element *added, *result;  // `added` may be null; `result` is what the block gave
    const typename Simd::Element* raw;
    const float* shift;
    const typename Simd::Element* other;
    const float* other_shift;
    int64_t padded;

    Group group(int64_t channel, int count) const {
        return {load_count<Simd>(shift + channel, count), kOther ? load_count<Simd>(other_shift + channel, count) : Simd::zero(),
                Simd::zero(), Simd::zero(), Simd::zero()};
    }
    void put(Group& group, int64_t place, Vec value, int count) const {
        if (added != nullptr) {
            value = Simd::add(value, load_count<Simd>(added + place, count));
        }
        if (kRelu) {
            value = Simd::where_positive(load_count<Simd>(result + place, count), value);
        }
        target.put(place, value, count);
        group.sum = Simd::add(group.sum, value);
        const Vec before = Simd::subtract(load_count<Simd>(raw + place, count), group.shift);
        group.products = Simd::multiply_add(value, before, group.products);
        if (kOther) {
            const Vec beside = Simd::subtract(load_count<Simd>(other + place, count), group.other_shift);
            group.other_products = Simd::multiply_add(value, beside, group.other_products);
        }
    }
    void finish(const Group& group, int64_t channel, double* sums) const {
        Simd::add_to(sums + channel, group.sum);
        Simd::add_to(sums + padded + channel, group.products);
        if (kOther) {
            Simd::add_to(sums + 2 * padded + channel, group.other_products);
        }
    }
};

// ---- from the interface's descriptions to the types above ------------------------------------------------------------

// Only the pairs that occur are made: every one is a copy of the loops around it.

template <class Simd>
const typename Simd::Element* elements(const void* tensor) {
    return static_cast<const typename Simd::Element*>(tensor);
}

// The input of a layer.
template <class Simd, class Call>
void with_input(const Source& from, const Call& call) {
    switch (from.kind) {
        case kPlainSource: return call(PlainSource<Simd>{elements<Simd>(from.tensor)});
        case kNormalisedSource: return call(NormalisedSource<Simd, false>{elements<Simd>(from.tensor), from.scale, from.offset});
        case kActivatedSource: return call(NormalisedSource<Simd, true>{elements<Simd>(from.tensor), from.scale, from.offset});
        default: return;
    }
}

template <class Simd>
GradientSource<Simd> gradient_source(const Source& from) {
    return {elements<Simd>(from.tensor), from.scale, from.offset, elements<Simd>(from.other), from.other_scale};
}

template <class Simd, bool kRelu, class Call>
void with_joined_source(const Source& from, const Call& call) {
    if (from.other_scale != nullptr) {
        call(JoinedSource<Simd, kRelu, true>{elements<Simd>(from.tensor), from.scale, from.offset, elements<Simd>(from.other), from.other_scale, from.other_offset});
    } else {
        call(JoinedSource<Simd, kRelu, false>{elements<Simd>(from.tensor), from.scale, from.offset, elements<Simd>(from.other), nullptr, nullptr});
    }
}

template <class Simd>
StatisticsSink<Simd> statistics_sink(const Sink& to, int64_t channels) {
    return {Target<Simd>(to), to.shift, round_up(channels, Simd::lanes)};
}

template <class Simd, bool kRelu, class Call>
void with_joined_sink(const Sink& to, int64_t padded, const Call& call) {
    if (to.other != nullptr) {
        call(JoinedSink<Simd, kRelu, true>{Target<Simd>(to), elements<Simd>(to.added), elements<Simd>(to.result), elements<Simd>(to.raw), to.shift, elements<Simd>(to.other), to.other_shift, padded});
    } else {
        call(JoinedSink<Simd, kRelu, false>{Target<Simd>(to), elements<Simd>(to.added), elements<Simd>(to.result), elements<Simd>(to.raw), to.shift, nullptr, nullptr, padded});
    }
}

template <class Simd, bool kRelu>
NormalisedSink<Simd, kRelu> normalised_sink(const Sink& to, int64_t padded) {
    return {Target<Simd>(to), elements<Simd>(to.raw), to.shift, to.scale, to.offset, padded};
}

// What becomes of the gradient of a layer's input.
template <class Simd, class Call>
void with_gradient_sink(const Sink& to, int64_t channels, const Call& call) {
    const int64_t padded = round_up(channels, Simd::lanes);
    switch (to.kind) {
        case kStoreSink: return call(StoreSink<Simd>{Target<Simd>(to)});
        case kNormalisedSink: return call(normalised_sink<Simd, false>(to, padded));
        case kActivatedSink: return call(normalised_sink<Simd, true>(to, padded));
        case kJoinedSink: return with_joined_sink<Simd, false>(to, padded, call);
        case kJoinedActivatedSink: return with_joined_sink<Simd, true>(to, padded, call);
        default: return;
    }
}

// The input of a layer together with what becomes of its gradient: a normalised input has a sink of its own kind.
template <class Simd, class Call>
void with_input_and_sink(const Source& from, const Sink& to, int64_t channels, const Call& call) {
    const int64_t padded = round_up(channels, Simd::lanes);
    if (from.kind == kNormalisedSource) {
        call(NormalisedSource<Simd, false>{elements<Simd>(from.tensor), from.scale, from.offset},
             normalised_sink<Simd, false>(to, padded));
    } else if (from.kind == kActivatedSource) {
        call(NormalisedSource<Simd, true>{elements<Simd>(from.tensor), from.scale, from.offset},
             normalised_sink<Simd, true>(to, padded));
    } else if (to.kind == kStoreSink) {
        call(PlainSource<Simd>{elements<Simd>(from.tensor)}, StoreSink<Simd>{Target<Simd>(to)});
    } else if (to.kind == kJoinedSink) {
        with_joined_sink<Simd, false>(to, padded, [&](const auto& sink) { call(PlainSource<Simd>{elements<Simd>(from.tensor)}, sink); });
    } else if (to.kind == kJoinedActivatedSink) {
        with_joined_sink<Simd, true>(to, padded, [&](const auto& sink) { call(PlainSource<Simd>{elements<Simd>(from.tensor)}, sink); });
    }
}

// Adds the sums of all slices, [slices][kSums][padded], to sums[kSums][channels], in their order.
template <class Simd>
void add_slices(const double* slice_sums, int64_t slices, int64_t channels, double* sums) {
    const int64_t padded = round_up(channels, Simd::lanes);
    for (int64_t slice = 0; slice < slices; ++slice) {
        for (int64_t kind = 0; kind < kSums; ++kind) {
            const double* from = slice_sums + (slice * kSums + kind) * padded;
            for (int64_t channel = 0; channel < channels; ++channel) {
                sums[kind * channels + channel] += from[channel];
            }
        }
    }
}
