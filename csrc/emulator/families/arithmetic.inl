// Everything that profits from being compiled once per instruction set. Included by arithmetic_*.cpp, which define the
// namespace and include the standard headers before switching the target.

#include "lanes.inl"
#include "integer.inl"
#include "float.inl"
#include "half.inl"
#include "double.inl"
#include "convert.inl"

static constexpr OpcodeFamily kFamilies[] = {
    {kIntegerOpcodes, std::size(kIntegerOpcodes)}, {kFloatOpcodes, std::size(kFloatOpcodes)},
    {kHalfOpcodes, std::size(kHalfOpcodes)},       {kDoubleOpcodes, std::size(kDoubleOpcodes)},
    {kConvertOpcodes, std::size(kConvertOpcodes)},
};
