// Fixed-width integers and function qualifiers for headers shared by device and host code. NVRTC has no <cstdint>.
#pragma once

#ifdef __CUDACC_RTC__
using int32_t = int;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint64_t = unsigned long long;
#define SM70_HOST_DEVICE __device__ __forceinline__
#else
#include <cstdint>
#define SM70_HOST_DEVICE inline
#endif
