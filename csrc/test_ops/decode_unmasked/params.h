// Kernel parameters: those of decode, whose code this is.
#pragma once

#include "ops/decode/params.h"
