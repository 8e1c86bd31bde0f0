"""Numba, told once: what it compiles is kept on disk, where there is a place to keep it."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As ``numba.njit(**options)``, kept beside the code, in the user's home, or in ``NUMBA_CACHE_DIR``.

    Where none of them can be written to, as in a container without a home, every process compiles for itself.
    """

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # "no locator available"
            return njit(**options)(function)  # type: ignore[no-any-return]

    return compile_
