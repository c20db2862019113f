// The arithmetic families for any x86-64 machine.
#include <iterator>
#include <type_traits>
#include <utility>

#include "emulator/binder.h"
#include "emulator/machine.h"
#include "emulator/numeric.h"
#include "emulator/opcodes.h"

namespace sm70emu {
namespace generic {
#include "emulator/families/arithmetic.inl"
}  // namespace generic

std::vector<OpcodeFamily> arithmetic_families_generic() {
    return {std::begin(generic::kFamilies), std::end(generic::kFamilies)};
}

}  // namespace sm70emu
