// What embedded.S puts into the DSO. The byte after each end symbol's content is 0, so text ends like a C string.
#pragma once

#include <cstddef>
#include <string_view>

namespace sm70::runtime {

extern "C" {
extern const char sm70_embedded_cubin[], sm70_embedded_cubin_end[];
extern const char sm70_embedded_ptx[], sm70_embedded_ptx_end[];
extern const char sm70_embedded_facts[], sm70_embedded_facts_end[];
}

inline std::string_view embedded_cubin() {
    return {sm70_embedded_cubin, static_cast<size_t>(sm70_embedded_cubin_end - sm70_embedded_cubin)};
}
inline std::string_view embedded_ptx() {
    return {sm70_embedded_ptx, static_cast<size_t>(sm70_embedded_ptx_end - sm70_embedded_ptx)};
}
inline std::string_view embedded_facts() {
    return {sm70_embedded_facts, static_cast<size_t>(sm70_embedded_facts_end - sm70_embedded_facts)};
}

}  // namespace sm70::runtime
