"""Words that tables, pictures and pages share."""

GUARANTEES = "docs/threat-model.md"

ENDINGS = {
    "finished": "finished",
    "budget": "stopped before the round that would have exceeded the budget",
    "interrupted": "interrupted; it can be resumed",
    "failed": "failed; it can be resumed",
    "diverged": "stopped because the model diverged",
}

KNOWN_SEED = "no protection from anybody who knows the seed: for research, not for release"


def protected(unit: str, group_size: int) -> str:
    """Whom a guarantee is about."""
    return f"one {unit}" if group_size == 1 else f"any {group_size} {unit}s together"
