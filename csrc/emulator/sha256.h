// SHA-256 (FIPS 180-4), for naming cached listings by their cubin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sm70emu {

std::string sha256_hex(const uint8_t* data, size_t size);

}  // namespace sm70emu
