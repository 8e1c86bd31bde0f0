"""Write numbers as text; bounds are rounded to the side on which they stay bounds.

Reports, logs and errors show numbers through these functions, so an upper end is never shown too small. Files keep the
full numbers.
"""

import math
from collections.abc import Callable


def at_most(value: float | None, digits: int | None = None) -> str:
    """Write an upper bound, rounded up.

    >>> at_most(3.1416), at_least(3.1416), at_most(None)
    ('3.15', '3.14', 'infinite')

    Args:
        value: the bound; None stands for infinity.
        digits: decimals; default: 2 below 10, 1 below 100, else none.
    """
    return "infinite" if value in (None, math.inf) else _rounded_text(value, digits, math.ceil)


def at_least(value: float | None, digits: int | None = None) -> str:
    """Write a lower bound, rounded down; arguments are those of :func:`at_most`."""
    return "infinite" if value in (None, math.inf) else _rounded_text(value, digits, math.floor)


def power(value: float) -> str:
    """Write a small number such as a delta without a leading zero in its exponent.

    >>> power(0.00001)
    '1e-5'
    """
    return f"{value:g}".replace("e-0", "e-")


def amount_of_bytes(count: float) -> str:
    """Write a number of bytes with a decimal unit, from B to GB, to three digits.

    >>> amount_of_bytes(12_345_678)
    '12.3 MB'
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def amount_of_time(seconds: float) -> str:
    """Write a duration, given in seconds, with the unit that suits it: s, ms or µs.

    >>> amount_of_time(0.01234)
    '12.3 ms'
    """
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:,.3g} {unit}"
    return f"{seconds * 1e6:.2g} µs"


def _rounded_text(value: float, digits: int | None, to_side: Callable[[float], int]) -> str:
    """Round to one side, with a number of decimals that depends on the size unless it is given."""
    if digits is None:
        digits = 2 if value < 10 else 1 if value < 100 else 0
    # Multiplying may round; a bound that is written with these digits already must not move.
    scaled = value * 10**digits
    whole = round(scaled) if math.isclose(scaled, round(scaled), rel_tol=1e-12) else to_side(scaled)
    return f"{whole / 10**digits:,.{digits}f}"
