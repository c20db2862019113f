// The CUDA driver as a table of functions, opened on first use. A machine without a driver can load every DSO; only
// a launch on a GPU needs the table.
#pragma once

#include <cuda.h>

#include <string>

namespace sm70::runtime {

struct Driver {
    decltype(&cuGetErrorName) get_error_name;
    decltype(&cuGetErrorString) get_error_string;
    decltype(&cuDeviceGet) device_get;
    decltype(&cuDeviceGetName) device_get_name;
    decltype(&cuDeviceGetAttribute) device_get_attribute;
    decltype(&cuDevicePrimaryCtxRetain) device_primary_context_retain;
    decltype(&cuCtxPushCurrent) context_push_current;
    decltype(&cuCtxPopCurrent) context_pop_current;
    decltype(&cuLibraryLoadData) library_load_data;
    decltype(&cuLibraryGetKernel) library_get_kernel;
    decltype(&cuKernelGetAttribute) kernel_get_attribute;
    decltype(&cuKernelSetAttribute) kernel_set_attribute;
    decltype(&cuLaunchKernel) launch_kernel;
    decltype(&cuThreadExchangeStreamCaptureMode) thread_exchange_stream_capture_mode;
};

// Throws std::runtime_error when libcuda.so.1 can't be opened or lacks a function.
const Driver& driver();

// "700 (CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered)"
std::string describe(CUresult result);

}  // namespace sm70::runtime
