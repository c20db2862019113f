// The arithmetic families for machines with AVX2 and FMA. Shared headers come first, so that no inline function of
// theirs is compiled for the wider instruction set and then picked by the linker for everyone.
#include <immintrin.h>

#include <iterator>
#include <type_traits>
#include <utility>

#include "emulator/binder.h"
#include "emulator/machine.h"
#include "emulator/numeric.h"
#include "emulator/opcodes.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt")

namespace sm70emu {
namespace avx2 {
#include "emulator/families/arithmetic.inl"
}  // namespace avx2
}  // namespace sm70emu

#pragma GCC pop_options

namespace sm70emu {

std::vector<OpcodeFamily> arithmetic_families_avx2() {
    return {std::begin(avx2::kFamilies), std::end(avx2::kFamilies)};
}

}  // namespace sm70emu
