"""``python -m sm70_kernels.cli``: the command where it is not installed."""

from sm70_kernels.cli import main

main(prog_name="sm70-kernels")
