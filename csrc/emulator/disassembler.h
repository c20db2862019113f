// Makes a listing by running nvdisasm, and keeps it by the cubin's SHA-256.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sm70emu {

// `cache_folder` may be empty: then nothing is kept.
std::string listing_from_nvdisasm(const uint8_t* cubin, size_t bytes, const std::string& nvdisasm,
                                  const std::string& cache_folder);

}  // namespace sm70emu
