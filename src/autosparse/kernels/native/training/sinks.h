// What is done with a pixel's result: the steps behind a convolution that need no pass of their own.
#pragma once

#include <type_traits>

#include "common/arithmetic.h"
#include "interface.h"
#include "pixels.h"

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
