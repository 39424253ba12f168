// What is read at a pixel: the steps before a convolution that need no pass of their own. A source gives a vector, a sink
// (sinks.h) takes one: neighbouring channels of a pixel, or one channel of neighbouring images and pixels. `group` holds what
// belongs to the channels: coefficients, and the sums over pixels that a sink makes.
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

// The channels of a vector's lanes.
struct NeighbouringChannels {
    int64_t first;
    int count;
    template <class Simd>
    typename Simd::Vec load(const float* numbers) const { return load_count<Simd>(numbers + first, count); }
};

struct OneChannel {
    int64_t channel;
    template <class Simd>
    typename Simd::Vec load(const float* numbers) const { return Simd::broadcast(numbers[channel]); }
};

// Brings what a vector will read, or write, near. It may begin within a line.
template <class Simd>
inline void fetch_to_read(const typename Simd::Element* from) {
    __builtin_prefetch(from, 0);
    __builtin_prefetch(from + Simd::lanes - 1, 0);
}

template <class Simd>
inline void fetch_to_write(const typename Simd::Element* to) {
    __builtin_prefetch(to, 1);
    __builtin_prefetch(to + Simd::lanes - 1, 1);
}

// ---- sources ---------------------------------------------------------------------------------------------------------
// `on` gives the same for vectors of another size.

// A tensor as it is.
template <class Simd>
struct PlainSource {
    using Vec = typename Simd::Vec;
    struct Group {};
    const typename Simd::Element* tensor;

    template <class Other>
    PlainSource<Other> on() const { return {tensor}; }
    template <class Channels>
    Group group(const Channels&) const { return {}; }
    Vec load(const Group&, int64_t place, int count) const { return load_count<Simd>(tensor + place, count); }
    void fetch(int64_t place) const { fetch_to_read<Simd>(tensor + place); }
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

    template <class Other>
    NormalisedSource<Other, kRelu> on() const { return {tensor, scale, offset}; }
    template <class Channels>
    Group group(const Channels& channels) const {
        return {channels.template load<Simd>(scale), channels.template load<Simd>(offset)};
    }
    Vec load(const Group& group, int64_t place, int count) const {
        const Vec value = Simd::multiply_add(group.scale, load_count<Simd>(tensor + place, count), group.offset);
        return kRelu ? Simd::relu(value) : value;
    }
    void fetch(int64_t place) const { fetch_to_read<Simd>(tensor + place); }
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

    template <class Other>
    GradientSource<Other> on() const { return {tensor, scale, offset, other, other_scale}; }
    template <class Channels>
    Group group(const Channels& channels) const {
        return {channels.template load<Simd>(scale), channels.template load<Simd>(other_scale), channels.template load<Simd>(offset)};
    }
    Vec load(const Group& group, int64_t place, int count) const {
        const Vec shifted = Simd::multiply_add(group.other_scale, load_count<Simd>(other + place, count), group.offset);
        return Simd::multiply_add(group.scale, load_count<Simd>(tensor + place, count), shifted);
    }
    void fetch(int64_t place) const {
        fetch_to_read<Simd>(tensor + place);
        fetch_to_read<Simd>(other + place);
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

    template <class Other>
    JoinedSource<Other, kRelu, kOtherNormalised> on() const { return {tensor, scale, offset, other, other_scale, other_offset}; }
    template <class Channels>
    Group group(const Channels& channels) const {
        Group found = {channels.template load<Simd>(scale), channels.template load<Simd>(offset), Simd::zero(), Simd::zero()};
        if (kOtherNormalised) {
            found.other_scale = channels.template load<Simd>(other_scale);
            found.other_offset = channels.template load<Simd>(other_offset);
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
    void fetch(int64_t place) const {
        fetch_to_read<Simd>(tensor + place);
        fetch_to_read<Simd>(other + place);
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

// Whatever a source may be.
template <class Simd, class Call>
void with_source(const Source& from, const Call& call) {
    switch (from.kind) {
        case kGradientSource: return call(gradient_source<Simd>(from));
        case kJoinedSource: return with_joined_source<Simd, false>(from, call);
        case kJoinedActivatedSource: return with_joined_source<Simd, true>(from, call);
        default: return with_input<Simd>(from, call);
    }
}
