"""Numbers as text; bounds are rounded to the side on which they stay bounds."""

import math
from collections.abc import Callable


def at_most(value: float | None, digits: int | None = None) -> str:
    """An upper bound, rounded up to ``digits`` decimals (default: enough for reading); None is infinite."""
    return "infinite" if value in (None, math.inf) else _rounded(value, digits, math.ceil)


def at_least(value: float | None, digits: int | None = None) -> str:
    """A lower bound, rounded down; as :func:`at_most`."""
    return "infinite" if value in (None, math.inf) else _rounded(value, digits, math.floor)


def power(value: float) -> str:
    """A small number such as a delta: ``1e-5``."""
    return f"{value:g}".replace("e-0", "e-")


def amount_of_bytes(count: float) -> str:
    """A number of bytes with the unit that suits it."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def amount_of_time(seconds: float) -> str:
    """A duration with the unit that suits it."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:,.3g} {unit}"
    return f"{seconds * 1e6:.2g} µs"


def _rounded(value: float, digits: int | None, to_side: Callable[[float], int]) -> str:
    if digits is None:
        digits = 2 if value < 10 else 1 if value < 100 else 0
    # Multiplying may round; a bound that is written with these digits already must not move.
    scaled = value * 10**digits
    whole = round(scaled) if math.isclose(scaled, round(scaled), rel_tol=1e-12) else to_side(scaled)
    return f"{whole / 10**digits:,.{digits}f}"
