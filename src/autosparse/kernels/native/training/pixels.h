// What is read at a pixel, and what is done with a pixel's result: the steps around a convolution that need no pass of
// their own. A source gives a vector, a sink takes one: neighbouring channels of a pixel, or one channel of neighbouring
// images and pixels. `group` holds what belongs to the channels: coefficients, and the sums over pixels that a sink makes.
#pragma once

#include <type_traits>

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

// ---- sinks -----------------------------------------------------------------------------------------------------------
// `finish` gives a group's sums, add(kind, vector).

// Where results go. What is larger than the caches is written past them: nothing is read before it is overwritten. The
// barrier at the end of a parallel loop orders these stores before whatever reads them.
template <class Simd>
struct Target {
    typename Simd::Element* memory;
    bool streams;

    Target(typename Simd::Element* memory, bool streams) : memory(memory), streams(streams) {}
    explicit Target(const Sink& to) : Target(static_cast<typename Simd::Element*>(to.target), to.streams != 0) {}
    template <class Other>
    Target<Other> on() const { return {memory, streams}; }
    void put(int64_t place, typename Simd::Vec value, int count) const {
        if (streams && count == Simd::lanes) {
            Simd::stream(memory + place, value);
        } else {
            store_count<Simd>(memory + place, value, count);
        }
    }
    void fetch(int64_t place) const {
        if (!streams) {
            fetch_to_write<Simd>(memory + place);
        }
    }
};

template <class Simd>
struct StoreSink {
    using Vec = typename Simd::Vec;
    static constexpr int kKinds = 0;  // of sums
    struct Group {};
    Target<Simd> target;

    template <class Other>
    StoreSink<Other> on() const { return {target.template on<Other>()}; }
    template <class Channels>
    Group group(const Channels&) const { return {}; }
    void put(Group&, int64_t place, Vec value, int count) const { target.put(place, value, count); }
    void fetch(int64_t place) const { target.fetch(place); }
    template <class Add>
    void finish(const Group&, const Add&) const {}
};

// Stores, unless there is no target, and sums value - shift and its square: the statistics of a batch norm.
template <class Simd>
struct StatisticsSink {
    using Vec = typename Simd::Vec;
    static constexpr int kKinds = 2;
    struct Group {
        Vec shift, sum, squares;
    };
    Target<Simd> target;
    const float* shift;

    template <class Other>
    StatisticsSink<Other> on() const { return {target.template on<Other>(), shift}; }
    template <class Channels>
    Group group(const Channels& channels) const { return {channels.template load<Simd>(shift), Simd::zero(), Simd::zero()}; }
    void put(Group& group, int64_t place, Vec value, int count) const {
        if (target.memory != nullptr) {
            target.put(place, value, count);
        }
        const Vec shifted = Simd::subtract(value, group.shift);
        group.sum = Simd::add(group.sum, shifted);
        group.squares = Simd::multiply_add(shifted, shifted, group.squares);
    }
    void fetch(int64_t place) const {
        if (target.memory != nullptr) {
            target.fetch(place);
        }
    }
    template <class Add>
    void finish(const Group& group, const Add& add) const {
        add(0, group.sum);
        add(1, group.squares);
    }
};

// A gradient that has reached scale * raw + offset: zero where its ReLU was, stored, and summed alone and times
// raw - shift. With a shift near the mean nothing cancels, and a channel that is constant gives exactly zero.
template <class Simd, bool kRelu>
struct NormalisedSink {
    using Vec = typename Simd::Vec;
    static constexpr int kKinds = 2;
    struct Group {
        Vec scale, offset, shift, sum, products;
    };
    Target<Simd> target;
    const typename Simd::Element* raw;
    const float *shift, *scale, *offset;

    template <class Other>
    NormalisedSink<Other, kRelu> on() const { return {target.template on<Other>(), raw, shift, scale, offset}; }
    template <class Channels>
    Group group(const Channels& channels) const {
        Group found = {Simd::zero(), Simd::zero(), channels.template load<Simd>(shift), Simd::zero(), Simd::zero()};
        if (kRelu) {
            found.scale = channels.template load<Simd>(scale);
            found.offset = channels.template load<Simd>(offset);
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
    void fetch(int64_t place) const {
        fetch_to_read<Simd>(raw + place);
        target.fetch(place);
    }
    template <class Add>
    void finish(const Group& group, const Add& add) const {
        add(0, group.sum);
        add(1, group.products);
    }
};

// A gradient that has reached the end of a residual block: another gradient is added, it is zero where the block's ReLU
// was, stored, and summed alone, times raw - shift and times the other branch's if that was normalised too.
template <class Simd, bool kRelu, bool kOther>
struct JoinedSink {
    using Vec = typename Simd::Vec;
    static constexpr int kKinds = kOther ? 3 : 2;
    struct Group {
        Vec shift, other_shift, sum, products, other_products;
    };
    Target<Simd> target;
    const typename Simd::Element *added, *result;  // `added` may be null; `result` is what the block gave
    const typename Simd::Element* raw;
    const float* shift;
    const typename Simd::Element* other;
    const float* other_shift;

    template <class Other>
    JoinedSink<Other, kRelu, kOther> on() const { return {target.template on<Other>(), added, result, raw, shift, other, other_shift}; }
    template <class Channels>
    Group group(const Channels& channels) const {
        return {channels.template load<Simd>(shift), kOther ? channels.template load<Simd>(other_shift) : Simd::zero(),
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
    void fetch(int64_t place) const {
        if (added != nullptr) {
            fetch_to_read<Simd>(added + place);
        }
        if (kRelu) {
            fetch_to_read<Simd>(result + place);
        }
        fetch_to_read<Simd>(raw + place);
        if (kOther) {
            fetch_to_read<Simd>(other + place);
        }
        target.fetch(place);
    }
    template <class Add>
    void finish(const Group& group, const Add& add) const {
        add(0, group.sum);
        add(1, group.products);
        if (kOther) {
            add(2, group.other_products);
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

template <class Simd>
StatisticsSink<Simd> statistics_sink(const Sink& to) {
    return {Target<Simd>(to), to.shift};
}

template <class Simd, bool kRelu, class Call>
void with_joined_sink(const Sink& to, const Call& call) {
    if (to.other != nullptr) {
        call(JoinedSink<Simd, kRelu, true>{Target<Simd>(to), elements<Simd>(to.added), elements<Simd>(to.result), elements<Simd>(to.raw), to.shift, elements<Simd>(to.other), to.other_shift});
    } else {
        call(JoinedSink<Simd, kRelu, false>{Target<Simd>(to), elements<Simd>(to.added), elements<Simd>(to.result), elements<Simd>(to.raw), to.shift, nullptr, nullptr});
    }
}

template <class Simd, bool kRelu>
NormalisedSink<Simd, kRelu> normalised_sink(const Sink& to) {
    return {Target<Simd>(to), elements<Simd>(to.raw), to.shift, to.scale, to.offset};
}

// What becomes of the gradient of a tensor that is the input of a layer as it is.
template <class Simd, class Call>
void with_sink_of_tensor(const Sink& to, const Call& call) {
    switch (to.kind) {
        case kStoreSink: return call(StoreSink<Simd>{Target<Simd>(to)});
        case kJoinedSink: return with_joined_sink<Simd, false>(to, call);
        case kJoinedActivatedSink: return with_joined_sink<Simd, true>(to, call);
        default: return;
    }
}

// What becomes of the gradient of a layer's input.
template <class Simd, class Call>
void with_gradient_sink(const Sink& to, const Call& call) {
    switch (to.kind) {
        case kNormalisedSink: return call(normalised_sink<Simd, false>(to));
        case kActivatedSink: return call(normalised_sink<Simd, true>(to));
        default: return with_sink_of_tensor<Simd>(to, call);
    }
}

// The input of a layer together with what becomes of its gradient: a normalised input has a sink of its own kind.
template <class Simd, class Call>
void with_input_and_sink(const Source& from, const Sink& to, const Call& call) {
    const auto normalised = [&](auto relu) {
        constexpr bool kRelu = decltype(relu)::value;
        call(NormalisedSource<Simd, kRelu>{elements<Simd>(from.tensor), from.scale, from.offset}, normalised_sink<Simd, kRelu>(to));
    };
    if (from.kind == kNormalisedSource) {
        normalised(std::false_type());
    } else if (from.kind == kActivatedSource) {
        normalised(std::true_type());
    } else {
        with_sink_of_tensor<Simd>(to, [&](const auto& sink) { call(PlainSource<Simd>{elements<Simd>(from.tensor)}, sink); });
    }
}
