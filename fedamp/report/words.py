"""Words that tables, pictures and pages share."""

from collections.abc import Iterable, Sequence

GUARANTEES = "docs/threat-model.md"
ENDINGS = {
    "finished": "finished",
    "budget": "stopped before the round that would have exceeded the budget",
    "interrupted": "interrupted; it can be resumed",
    "failed": "failed; it can be resumed",
    "diverged": "stopped because the model diverged",
}
KNOWN_SEED = "no protection from anybody who knows the seed: for research, not for release"
_METRICS = {"r2": "R²", "f1": "F1", "mean_absolute_error": "mean absolute error"}


def metric(name: str) -> str:
    """A metric by its usual name."""
    return _METRICS.get(name, name.replace("_", " "))


def is_share(name: str) -> bool:
    """Whether a metric is read in per cent."""
    return name in ("accuracy", "f1")


def value_of(name: str, value: float, digits: int = 1) -> str:
    """The value of a metric: 91.2%, or 0.467."""
    return f"{value:.{digits}%}" if is_share(name) else f"{value:.{digits + 2}g}"


def score(found: tuple[str, float] | None) -> str:
    """A metric and its value: 91.2% accuracy, or R² 0.467; empty for None."""
    if found is None:
        return ""
    words, value = metric(found[0]), value_of(*found)
    return f"{value} {words}" if is_share(found[0]) else f"{words} {value}"


def common(scores: Iterable[tuple[str, float] | None]) -> str | None:
    """The metric that several models have in common; None where their tasks differ."""
    names = {found[0] for found in scores if found}
    return metric(names.pop()) if len(names) == 1 else None


def protected(unit: str, group_size: int) -> str:
    """The subject of a guarantee: one client, or any three clients together."""
    return f"one {unit}" if group_size == 1 else f"any {group_size} {unit}s together"


def end_of(key: str, keys: Sequence[str]) -> str:
    """The last part of a key, if no other key ends in it."""
    end = key.rpartition(".")[2]
    return end if sum(other.rpartition(".")[2] == end for other in keys) == 1 else key
