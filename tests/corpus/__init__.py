"""The conformance corpus: own kernels for every opcode form of the shipped cubins, and what they compute."""
