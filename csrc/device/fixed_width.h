// Fixed-width integers for headers shared by device and host code. NVRTC has no <cstdint>.
#pragma once

#ifdef __CUDACC_RTC__
using int32_t = int;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif
