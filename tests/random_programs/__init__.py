"""Random programs: CUDA C++ written from a seed, with the values that numpy says it must compute."""
