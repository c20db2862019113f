"""Memory checks: compute-sanitizer where a GPU is present, the emulator's checkers elsewhere."""
