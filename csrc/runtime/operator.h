// What an operator's op.cpp says once for its DSO.
#pragma once

#include <torch/csrc/stable/library.h>

// A C function that Python finds in the DSO.
#define SM70_EXPORT extern "C" __attribute__((visibility("default")))

// Revision of the operator's numerical contract and workspace layout. It is raised when either changes, together with
// CAPABILITY_REVISION in the Python module of the same name; Python refuses a DSO with another one. It is kept as text
// so that Python can read it from the file: loading the DSO would already have registered its operators.
#define SM70_CAPABILITY_REVISION(revision)                                                                       \
    extern "C" __attribute__((visibility("default"), used)) const char sm70_kernels_capability_revision_text[] = \
        "sm70_kernels capability revision " #revision;                                                           \
    SM70_EXPORT int sm70_kernels_capability_revision() {                                                         \
        return revision;                                                                                         \
    }

// Registers a function as an operator's implementation, for CPU tensors too: the emulator runs them, and where it is
// off they get the sentence that says what to do.
#define SM70_IMPLEMENT(library, name, function)   \
    STABLE_TORCH_LIBRARY_IMPL(library, CUDA, m) { \
        m.impl(name, TORCH_BOX(&function));       \
    }                                             \
    STABLE_TORCH_LIBRARY_IMPL(library, CPU, m) {  \
        m.impl(name, TORCH_BOX(&function));       \
    }
