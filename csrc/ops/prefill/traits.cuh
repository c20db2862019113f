// Sizes of the prefill kernels, and the numbers of their softmax.
#pragma once

#include "ops/prefill/params.h"

namespace sm70::prefill {

// 8192 keys: 2048 additions of the tensor core, which lose up to 1.6e-4 of a sum of one sign.
constexpr int kFoldTiles = 64;
// Weights are rounded as P x 2^15: sums and numerators have that factor, which cancels in their quotient.
constexpr float kWeightLog2 = 15.0f;
constexpr float kWeightShift = 112.0f - kWeightLog2;
constexpr float kNoScore = -1e30f;  // finite, so that differences of two are not NaN

// A K slice has its vectors by dimension, then by key. Two vectors of padding move the next dimensions to other banks.
constexpr int kKeyVectorStride = kTileKeys + 2;
constexpr int kStageVectors = 4 * kKeyVectorStride;
static_assert(kStageVectors * 16 == kStageBytes);

template <int kHeadDim_, bool kWide_>
struct Traits {
    static constexpr bool kWide = kWide_;  // K and V in loads of 16 bytes, else of 8
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kVectors = kHeadDim / 8;  // of 16 bytes, in a row
    static constexpr int kKeySlices = kHeadDim / 32;
    static constexpr int kValueKeys = 4096 / kHeadDim;  // keys of a slice of V: 8 KB
    static constexpr int kValueSlices = kTileKeys / kValueKeys;
    static constexpr int kSlices = kKeySlices + kValueSlices;
    static constexpr int kValueVectors = kHeadDim / 64;  // that a lane takes of each key of V
    static constexpr int kHalfSliceValueKeys = half_slice_value_keys(kHeadDim);
    static_assert(kSlices % 2 == 0, "a slice has the same stage in every tile");
};

}  // namespace sm70::prefill
