// sm70_kernels._emulator
#include <pybind11/pybind11.h>
PYBIND11_MODULE(_emulator, m) { m.def("version", [] { return 1; }); }
