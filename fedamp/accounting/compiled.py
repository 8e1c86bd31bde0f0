"""Numba's compiler, with a cache on disk."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``numba.njit(**options)``, cached beside the code, in the user's home, or in ``NUMBA_CACHE_DIR``. If none of them
    can be written to, as in a container without a home, every process compiles again.
    """

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # "no locator available"
            return njit(**options)(function)  # type: ignore[no-any-return]

    return compile_
