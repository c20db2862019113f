// C functions that every operator DSO exports, for Python (ctypes) and for tools that look at the file alone.
#include <cstddef>
#include <string>

#include "runtime/embedded.h"
#include "runtime/launch.h"
#include "runtime/operator.h"

// JSON text: operator, package version, architecture, compiler versions.
SM70_EXPORT const char* sm70_kernels_build_facts() {
    return sm70::runtime::embedded_facts().data();
}

SM70_EXPORT const char* sm70_kernels_cubin(size_t* bytes) {
    *bytes = sm70::runtime::embedded_cubin().size();
    return sm70::runtime::embedded_cubin().data();
}

SM70_EXPORT const char* sm70_kernels_ptx(size_t* bytes) {
    *bytes = sm70::runtime::embedded_ptx().size();
    return sm70::runtime::embedded_ptx().data();
}

// JSON text {"kernel": {"cubin": launches, "ptx": ..., "emulated": ...}, ...} of this process, valid until the next
// call on the same thread.
SM70_EXPORT const char* sm70_kernels_launch_counts() {
    thread_local std::string text;
    text = sm70::runtime::launch_counts_json();
    return text.c_str();
}
