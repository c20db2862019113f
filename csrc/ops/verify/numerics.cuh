// Where the arithmetic of verify has a choice: one policy type. What ships is `Shipped`; the others are built for
// tests, which measure them (docs/lab/verify.md), and for controls that must fail.
//
// A score over D dimensions is D / 16 products of 16 dimensions, K16 products, each one chain of four m8n8k4 from zero:
// what the tensor core's truncation takes off a chain of four is below 2^-23 of its largest term. How they are summed:
//
//   kNone    no sums: one chain through all the K16 products of a quad-pair, truncated at every step
//   kPlain   every K16 product fresh, added in FP32, rounded to nearest
//   kKahan   the same with Kahan's compensation, which costs three more additions a product
#pragma once

#include "device/mma.cuh"

namespace sm70::verify {

enum class Compensation { kNone, kPlain, kKahan };

// Accumulators of the values: fresh ones for every 32 keys, folded into the FP32 state; or the state itself, carried
// through the tensor core from key to key, over a row that is one chunk.
enum class ValueSums { kFresh, kCarried };

// What a chunk leaves in the workspace: numerators as they are; or normalised, rounded to FP16.
enum class Partials { kNumerators, kNormalisedHalves };

template <Compensation kCompensation_, bool kResidual_, ValueSums kValueSums_, Partials kPartials_>
struct Numerics {
    static constexpr Compensation kCompensation = kCompensation_;
    static constexpr bool kResidual = kResidual_;  // weights are a high half and a residual half, else a half
    static constexpr ValueSums kValueSums = kValueSums_;
    static constexpr Partials kPartials = kPartials_;
};

using Shipped = Numerics<Compensation::kPlain, true, ValueSums::kFresh, Partials::kNumerators>;

// The sums of an accumulator's eight scores over K16 products.
template <Compensation kCompensation>
struct ScoreSums {
    float values[8];
    float excess[8];  // what the values are too large by; Kahan's only

    // The first product may be computed in place.
    template <typename Product>
    __device__ __forceinline__ void start(Product product) {
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = excess[i] = 0.0f;
        product(values);
    }

    // product(accumulator) adds a K16 product.
    template <typename Product>
    __device__ __forceinline__ void add(Product product) {
        if constexpr (kCompensation == Compensation::kNone) {
            product(values);
        } else {
            float fresh[8] = {};
            product(fresh);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if constexpr (kCompensation == Compensation::kPlain) {
                    values[i] = __fadd_rn(values[i], fresh[i]);
                } else {
                    const float compensated = __fsub_rn(fresh[i], excess[i]);
                    const float sum = __fadd_rn(values[i], compensated);
                    excess[i] = __fsub_rn(__fsub_rn(sum, values[i]), compensated);
                    values[i] = sum;
                }
            }
        }
    }
};

// Sum of two sums of different dimensions, each with its excess; exact to the excess with Kahan's.
template <Compensation kCompensation>
__device__ __forceinline__ void join(float& value, float& excess, float other, float other_excess) {
    const float sum = __fadd_rn(value, other);
    if constexpr (kCompensation == Compensation::kKahan) {  // Knuth's TwoSum
        const float part = __fsub_rn(sum, value);
        const float lost = __fadd_rn(__fsub_rn(value, __fsub_rn(sum, part)), __fsub_rn(other, part));
        excess = __fsub_rn(__fadd_rn(excess, other_excess), lost);
    }
    value = sum;
}

}  // namespace sm70::verify
