// Everything that profits from being compiled once per instruction set. Included by arithmetic_*.cpp, which define the
// namespace and include the standard headers before switching the target.

// Later files use what earlier ones define.
// clang-format off
#include "lanes.inl"
#include "integer.inl"
#include "bits.inl"
#include "float.inl"
#include "special.inl"
#include "half.inl"
#include "double.inl"
#include "convert.inl"
// clang-format on

static constexpr OpcodeFamily kFamilies[] = {
    {kIntegerOpcodes, std::size(kIntegerOpcodes)}, {kBitOpcodes, std::size(kBitOpcodes)},
    {kFloatOpcodes, std::size(kFloatOpcodes)},     {kSpecialOpcodes, std::size(kSpecialOpcodes)},
    {kHalfOpcodes, std::size(kHalfOpcodes)},       {kDoubleOpcodes, std::size(kDoubleOpcodes)},
    {kConvertOpcodes, std::size(kConvertOpcodes)},
};
