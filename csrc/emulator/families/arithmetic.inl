// Everything that profits from being compiled once per instruction set. Included by arithmetic_*.cpp, which define the
// namespace and include the standard headers before switching the target.

// Later files use what earlier ones define.
// clang-format off
#include "emulator/families/lanes.inl"
#include "emulator/families/integer.inl"
#include "emulator/families/bits.inl"
#include "emulator/families/float.inl"
#include "emulator/families/special.inl"
#include "emulator/families/half.inl"
#include "emulator/families/double.inl"
#include "emulator/families/convert.inl"
// clang-format on

static constexpr OpcodeFamily kFamilies[] = {
    {kIntegerOpcodes, std::size(kIntegerOpcodes)}, {kBitOpcodes, std::size(kBitOpcodes)},
    {kFloatOpcodes, std::size(kFloatOpcodes)},     {kSpecialOpcodes, std::size(kSpecialOpcodes)},
    {kHalfOpcodes, std::size(kHalfOpcodes)},       {kDoubleOpcodes, std::size(kDoubleOpcodes)},
    {kConvertOpcodes, std::size(kConvertOpcodes)},
};
