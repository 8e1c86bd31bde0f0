"""Dotted names of layers, and what to say about one that does not exist."""

import difflib
from collections.abc import Sequence


def under(name: str, prefixes: Sequence[str]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one (``layer1.0`` below ``layer1``)."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def unknown(name: str, accepted: Sequence[str]) -> str:
    """The end of an error line about a name that does not exist."""
    near = difflib.get_close_matches(name, accepted, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{name!r} is unknown{hint}; accepted: {', '.join(accepted)}"
