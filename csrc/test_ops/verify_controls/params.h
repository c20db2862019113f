// Kernel parameters: verify's own.
#pragma once

#include "ops/verify/params.h"
