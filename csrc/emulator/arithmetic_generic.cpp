// The arithmetic families for any x86-64 machine.
#include <iterator>
#include <type_traits>
#include <utility>

#include "binder.h"
#include "machine.h"
#include "numeric.h"
#include "opcodes.h"

namespace sm70emu {
namespace generic {
#include "families/arithmetic.inl"
}  // namespace generic

std::vector<OpcodeFamily> arithmetic_families_generic() {
    return {std::begin(generic::kFamilies), std::end(generic::kFamilies)};
}

}  // namespace sm70emu
