"""Mechanisms from plain dictionaries, as written by ``Mechanism.to_json``."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedamp.accounting.mechanism import Mechanism


def from_json(value: Mapping[str, Any]) -> Mechanism:
    """The mechanism that ``to_json`` wrote.

    Raises:
        ValueError: unknown kind, missing or unknown keys, or values the mechanism refuses.
    """
    if not isinstance(value, Mapping) or "kind" not in value:
        raise ValueError(f'a mechanism must be an object with a "kind", got {value!r}')
    kind = Mechanism.kinds.get(value["kind"]) if isinstance(value["kind"], str) else None
    if kind is None:
        raise ValueError(f"kind must be one of {', '.join(sorted(Mechanism.kinds))}, got {value['kind']!r}")
    expected = {field.name for field in fields(kind)}
    given = set(value) - {"kind"}
    if given != expected:
        raise ValueError(f"{kind.__name__} must have exactly the keys {sorted(expected)}, got {sorted(given)}")
    return kind(**{name: _nested(value[name]) for name in expected})


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, list):
        return tuple(_nested(item) for item in value)
    return value
