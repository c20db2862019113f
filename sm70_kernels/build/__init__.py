"""Build of the operator libraries and the interpreter module: source -> PTX -> cubin -> DSO -> manifest.

``python -m sm70_kernels.build`` builds in place. The wheel's build hook calls the same code, so both give the same
bytes. Nothing here imports torch or needs a GPU or a CUDA toolkit; the compilers come from locked wheels, the host
compiler is GCC 12.
"""

from sm70_kernels.build.settings import BuildError

__all__ = ["BuildError"]
