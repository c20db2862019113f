"""The operators. Importing this package loads every operator's DSO and registers ``torch.ops.sm70_kernels.*``.

Operators are the modules of this folder: adding one touches no list.
"""

from __future__ import annotations

import importlib
import pkgutil

from sm70_kernels import _variables

_variables.check()
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
