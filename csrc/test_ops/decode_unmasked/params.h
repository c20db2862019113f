// Kernel parameters: decode's own, for rows of one leaf and the smallest head dimension.
#pragma once

#include "ops/decode/params.h"

namespace sm70::decode_unmasked {

using Params = decode::DecodeParams;

constexpr int kHeadDim = 64;
constexpr int kRowTiles = 1;

}  // namespace sm70::decode_unmasked
