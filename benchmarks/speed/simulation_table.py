"""The table of ``docs/architecture.md``, from what ``benchmarks.speed.simulation`` measured."""

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
OURS = ("fedamp, 1 worker", "fedamp, 2 workers")
# Columns, and against whom fedamp with one worker stands there, and with two.
COLUMNS = {
    "JAX": ("JAX, 1 thread", "JAX, 2 threads"),
    **{name: (name, name) for name in ("stock Flower", "pfl", "plain torch loop", "bare vmap", "Opacus")},
    "jax_privacy": ("jax_privacy, 1 thread",) * 2,
}


def in_markdown(figures: dict[str, Any]) -> str:
    """fedamp with one and two workers: clients a second, and how many times as fast as the others; the machine."""
    machine, workloads = figures["machine"], figures["workloads"]
    rows = [["model, clients a round", "clients/s", *COLUMNS], ["---"] * (2 + len(COLUMNS)), *map(_row, workloads)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    passes = [row["clients_per_second_by_pass"] for each in workloads for row in _measured(each).values()]
    spread = max((max(speeds) / min(speeds) - 1 for speeds in passes), default=0.0)
    clock = f" of {machine['gigahertz']} GHz" if machine["gigahertz"] else ""
    return (
        f"{table}\nMedians on {machine['cores']} cores{clock}, load {machine['load_at_start'][0]:.1f} at the start. "
        f"Passes of one simulator differ by at most {100 * spread:.0f}%.\n"
    )


def _row(workload: dict[str, Any]) -> list[str]:
    speeds = {name: row["clients_per_second"] for name, row in _measured(workload).items()}
    cells = [" / ".join(f"{speeds[name]:,.0f}" for name in OURS if name in speeds)]
    for others in COLUMNS.values():
        pairs = [(name, other) for name, other in zip(OURS, others, strict=True) if {name, other} <= set(speeds)]
        ratios = " / ".join(f"{speeds[name] / speeds[other]:.2f}" for name, other in pairs)
        cells.append(ratios or ("not measured" if set(others) & set(workload["simulators"]) else ""))
    return [f"{workload['name']}, {workload['clients']:,}", *cells]


def _measured(workload: dict[str, Any]) -> dict[str, Any]:
    return {name: row for name, row in workload["simulators"].items() if "problem" not in row}
