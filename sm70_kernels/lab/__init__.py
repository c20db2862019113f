"""The laboratory: an emulated V100 that runs real sm_70 machine code, with checkers, statistics and a cycle model."""
