"""What is imported, or compiled, when it is first used: a process that never uses it starts sooner."""

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any


class Later:
    """Stands for a module under its name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, key: str) -> Any:
        return getattr(import_module(self.__name__), key)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As :func:`fedamp.accounting.arithmetic.compiled`, at the first call; no compiled function can call the result."""

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        @cache
        def kernel() -> Callable[..., Any]:
            njit = import_module("numba").njit
            try:
                return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
            except RuntimeError:  # there is no place for a cache
                return njit(**options)(function)  # type: ignore[no-any-return]

        @wraps(function)
        def call(*arguments: Any) -> Any:
            return kernel()(*arguments)

        return call

    return compile_
