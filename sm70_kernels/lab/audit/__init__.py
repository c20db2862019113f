"""What a kernel's machine code costs, without running it: resources, occupancy, pipes, loops and their bounds.

``facts`` reads a cubin, ``budget`` compares with what was agreed on. ``sm70-kernels audit`` prints both;
``docs/audit.md`` says how to read them.
"""
