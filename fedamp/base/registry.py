"""Variants by name: each registers itself in a file of its own, and no list of them is kept anywhere."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

Variant = TypeVar("Variant")


class Registry(Generic[Variant]):
    """The variants of one family. The modules of ``package`` register them, and are imported at the first question."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._variants: dict[str, Variant] = {}
        self._complete = False

    def register(self, *names: str) -> Callable[[Variant], Variant]:
        """Decorator that makes a variant available under these names; ValueError: a name is taken."""

        def keep(variant: Variant) -> Variant:
            for name in names:
                if self._variants.setdefault(name, variant) is not variant:
                    raise ValueError(f"{self._package}: {name!r} is registered twice")
            return variant

        return keep

    def all(self) -> dict[str, Variant]:
        """Every variant by name."""
        if not self._complete:
            for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
                importlib.import_module(f"{self._package}.{module.name}")
            self._complete = True
        return self._variants
