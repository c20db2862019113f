"""The conformance corpus: own kernels for every opcode form of the shipped cubins, with independently computed results."""
