"""The operators. Importing this package loads every operator's DSO and registers ``torch.ops.sm70_kernels.*``.

Operators are the modules of this folder: adding one touches no list.
"""

from __future__ import annotations

import importlib
import pkgutil

__all__ = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))

for _name in __all__:
    importlib.import_module(f"{__name__}.{_name}")
