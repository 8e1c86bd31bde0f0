"""Data sets that need no keys of their own: each a module that registers itself under its name.

A scenario may name every module of this folder (:class:`fedamp.data.sections.BuiltInData`).
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
