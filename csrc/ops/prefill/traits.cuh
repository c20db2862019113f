// What follows from the head dimension, and the numbers of the softmax.
#pragma once

#include "ops/prefill/params.h"

namespace sm70::prefill {

constexpr uint32_t kAllLanes = 0xffffffffu;
// 8192 keys: 2048 additions of the tensor core, which lose up to 1.6e-4 of a sum of one sign.
constexpr int kFoldTiles = 64;
// Weights are rounded as P x 2^15: sums and numerators have that factor, which cancels in their quotient.
constexpr float kWeightLog2 = 15.0f;
constexpr float kWeightShift = 112.0f - kWeightLog2;
// A K slice has its 16-byte units by dimension, then key; two units of padding move the next dimensions' banks.
constexpr int kKeyUnitStride = kTileKeys + 2;
constexpr int kSlotUnits = 4 * kKeyUnitStride;
static_assert(kSlotUnits * 16 == kSlotBytes);
constexpr float kNoScore = -1e30f;  // finite, so that differences of two are not NaN

template <int kHeadDim_, bool kWide_>
struct Shape {
    static constexpr bool kWide = kWide_;  // K and V in loads of 16 bytes; else of 8
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kUnits = kHeadDim / 8;  // of 16 bytes, in a row
    static constexpr int kKeySlices = kHeadDim / 32;
    static constexpr int kValueKeys = 4096 / kHeadDim;  // keys of a slice of V: 8 KB
    static constexpr int kValueSlices = kTileKeys / kValueKeys;
    static constexpr int kSlices = kKeySlices + kValueSlices;
    static constexpr int kValueUnits = kHeadDim / 64;              // units of V that a lane takes of a key
    static constexpr int kPieceKeys = value_piece_keys(kHeadDim);  // of V
    static_assert(kSlices % 2 == 0, "a slice has the same slot in every tile");
};

}  // namespace sm70::prefill
