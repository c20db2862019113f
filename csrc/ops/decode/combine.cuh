// The combine kernel: merges the partial states of rows that have several work units, in the tree that the units
// themselves are part of, and stores their outputs. It also stores zeros for rows without keys. Rows of one unit are
// finished already.
//
// A slice is 32 numerators of a query head: a cache line of a partial state, four for each lane of an octet. The octets
// of a slice, in one warp or several, take aligned parts of the row's units, eight at a time so that their loads are in
// flight together. Then the octets of a warp merge their results by exchanges, and the warps of a slice through shared
// memory. How many octets a slice has follows from the number of rows (schedule.h): few rows are spread over all SMs.
// Bound: latency, of three loads one after the other and of the launch itself.
#pragma once

#include "device/partial_state.cuh"
#include "ops/decode/outputs.cuh"
#include "ops/decode/work_units.cuh"

namespace sm70::decode {

constexpr int kOctetLanes = 8;
constexpr int kOctets = 32 / kOctetLanes;  // of a warp
static_assert(kCombineSlice == 4 * kOctetLanes);

// A level of a warp's stack.
using CombineLevel = PartialStateStacks<1, 1>;
static_assert(sizeof(CombineLevel) == kCombineLevelBytes);

class Combine {
 public:
    __device__ __forceinline__ Combine(const CombineParams& p, CombineLevel* levels)
        : p_(p),
          levels_(levels + threadIdx.x / 32 * p.stack_levels),
          lane_(threadIdx.x % 32),
          warps_(1u << p.warps_log2),
          warp_(threadIdx.x / 32 & (warps_ - 1)),
          octet_(warp_ * kOctets + lane_ / kOctetLanes),
          head_in_group_(static_cast<int32_t>(blockIdx.y >> p.parts_log2)) {
        const uint32_t part = blockIdx.y & ((1u << p.parts_log2) - 1);
        const uint32_t slice = (part * (blockDim.x / 32) + threadIdx.x / 32) >> p.warps_log2;
        dimension_ = static_cast<int32_t>(slice * kCombineSlice + 4 * (lane_ % kOctetLanes));
    }

    __device__ __forceinline__ void run() {
        const RowSchedule& schedule = p_.decode.schedule;
        const uint32_t row_and_head = blockIdx.x;
        const auto row = static_cast<int32_t>(p_.kv_heads.divide(row_and_head));
        const auto head = static_cast<int32_t>(p_.kv_heads.remainder(row_and_head, static_cast<uint32_t>(row)));
        const int32_t length = row_length(schedule, row);
        if (length == 0) {
            if (octet_ == 0) store_zeros(row, head);
            return;
        }
        __shared__ int32_t totals[kMaxUnitLevels];
        __shared__ int32_t before;
        const int32_t level = level_of_launch(schedule, totals);
        const auto units = static_cast<uint32_t>(units_of(length, level));
        if (units == 1) return;

        const int64_t first = units_before(schedule, level, row, before) + head * static_cast<int64_t>(units);
        first_partial_state_ = partial_state_of(p_.decode, first, p_.head_dim);
        uint32_t batches = 1;  // of an octet: a power of two, so that octets have aligned parts
        while (batches * kCombineBatch * kOctets * warps_ < units) batches *= 2;
        reduce_octet(units, batches);
        merge_octets(units, batches * kCombineBatch);
        if (warps_ > 1) merge_warps(units, batches * kCombineBatch * kOctets);
        if (octet_ == 0) store_outputs(row, head);
    }

 private:
    // The octet's units, from number octet * batches * kCombineBatch on. Past the row's last unit the state has no
    // meaning, and nobody merges it.
    __device__ __forceinline__ void reduce_octet(uint32_t units, uint32_t batches) {
        const uint32_t first = octet_ * batches * kCombineBatch;
        uint32_t node = 0;  // first unit that state_ covers
        // All octets go through the same number of iterations, so that warps stay together. Past the row's end they
        // load nothing.
        reduce_tree(
            batches,
            [&](uint32_t batch) {
                node = first + batch * kCombineBatch;
                load_batch(node, units);
            },
            [&](uint32_t to) { levels_[to].store(0, 0, lane_, state_); },
            [&](uint32_t from) {
                PartialState left = levels_[from].load(0, 0, lane_);
                if (node < units) merge_partial_states(left, state_);
                state_ = left;
                node -= kCombineBatch << from;
            });
    }

    __device__ __forceinline__ void load_batch(uint32_t unit, uint32_t units) {
        const int64_t floats = partial_state_floats(p_.decode.group, p_.head_dim);
        const float* values = first_partial_state_ + unit * floats + head_in_group_ * p_.head_dim + dimension_;
        const float* denominators =
            first_partial_state_ + unit * floats + p_.decode.group * p_.head_dim + 2 * head_in_group_;
        PartialState states[kCombineBatch];
#pragma unroll
        for (uint32_t i = 0; i < kCombineBatch; ++i) {
            if (unit + i < units) {
                states[i] = load_partial_state(values, denominators);
            } else {
                states[i] = no_partial_state();
            }
            values += floats;
            denominators += floats;
        }
        state_ = merge_batch(states, unit, units);
    }

    // The states of the warp's octets, each of `each` units, into the first octet.
    __device__ __forceinline__ void merge_octets(uint32_t units, uint32_t each) {
#pragma unroll
        for (uint32_t step = 1; step < kOctets; step *= 2) {
            const PartialState right = shuffle_down(state_, step * kOctetLanes);
            if ((octet_ + step) * each < units) merge_partial_states(state_, right);
        }
    }

    // The states of the slice's warps, each of `each` units, into the first octet of the first warp: octet i merges the
    // i-th part of them. The first level of the stacks is free, now that the octets are merged.
    __device__ __forceinline__ void merge_warps(uint32_t units, uint32_t each) {
        __syncwarp();
        if (lane_ < kOctetLanes) {
            levels_->store(0, 0, lane_, state_);
        }
        __syncthreads();
        if (warp_ > 0) return;
        const uint32_t together = warps_ > kOctets ? warps_ / kOctets : 1, lane = lane_ % kOctetLanes;
        const uint32_t part = lane_ / kOctetLanes * together;
        const CombineLevel* source = levels_ + part * p_.stack_levels;
        if (part < warps_) state_ = source->load(0, 0, lane);
        for (uint32_t i = 1; i < together; ++i) {  // one other, at most
            source += p_.stack_levels;
            if ((part + i) * each < units) merge_partial_states(state_, source->load(0, 0, lane));
        }
        merge_octets(units, each * together);
    }

    __device__ __forceinline__ void store_outputs(int32_t row, int32_t head) {
        const DecodeParams& d = p_.decode;
        const float scale = resolve_scale(d.kv.v_scale, d.kv.v_device_scale) * p_.operand_scale_inverse;
        const float factor = output_factor(state_.denominator.sum, scale);
        uint16_t* out = out_of(d, row, head, head_in_group_) + dimension_;
        out[0] = output_bits(state_.numerators.x, factor);
        out[1] = output_bits(state_.numerators.y, factor);
        out[2] = output_bits(state_.numerators.z, factor);
        out[3] = output_bits(state_.numerators.w, factor);
        if (dimension_ == 0) store_lse(d, row, head, head_in_group_, log_sum_exp(state_.denominator));
    }

    __device__ __forceinline__ void store_zeros(int32_t row, int32_t head) {
        uint16_t* out = out_of(p_.decode, row, head, head_in_group_) + dimension_;
#pragma unroll
        for (int i = 0; i < 4; ++i) out[i] = 0;
        if (dimension_ == 0) store_lse(p_.decode, row, head, head_in_group_, negative_infinity());
    }

    const CombineParams& p_;
    CombineLevel* levels_;  // of the warp
    const uint32_t lane_;
    const uint32_t warps_, warp_;  // of the slice
    const uint32_t octet_;         // of the slice
    const int32_t head_in_group_;
    int32_t dimension_;
    const float* first_partial_state_ = nullptr;
    PartialState state_{};
};

__device__ __forceinline__ void combine(const CombineParams& p) {
    extern __shared__ uint4 dynamic_shared[];
    Combine(p, reinterpret_cast<CombineLevel*>(dynamic_shared)).run();
}

}  // namespace sm70::decode
