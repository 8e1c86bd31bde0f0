"""Show an audit as a table, at most 80 columns wide."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from fedamp.base.numbers import at_least, at_most, power
from fedamp.report.tables import CellText, facts, listing

VERDICTS = {
    "refuted": "REFUTED: the code leaks more than the accountant charges",
    "consistent": "consistent: no leak above the accountant's bound was found",
}


def audit_table(answer: Mapping[str, Any]) -> RenderableType:
    """Show the lower bounds of attacks, and the accountant's upper bound.

    Args:
        answer: of :meth:`fedamp.extensions.audit.bound.AuditResult.to_json`.
    """
    size, unit, rounds, canaries = (answer.get(key) for key in ("group_size", "unit", "rounds", "canaries"))
    planned, adaptive = answer.get("scenario_rounds", rounds), answer["adaptive_epsilon"]
    charged = f"epsilon {at_most(answer['epsilon']['upper'], 3)} at delta {power(float(answer['delta']))}"
    if canaries:
        tried = {"canaries": f"{canaries:,}, each in or out; {answer['share_of_cohort']:.1%} of an average cohort"}
    else:
        tried = {
            "present or absent": f"one {unit}" if size == 1 else f"{size} {unit}s together",
            "repetitions": f"{answer['repetitions']:,} with and as many without",
            "canary's update": f"{answer['canary_strength']:.0%} of the clipping norm",
        }
    rows = {
        "verdict": VERDICTS[answer["verdict"]],
        "attacked": answer["mechanism"],
        "rounds": f"{rounds}, shortened from {planned} at the same rate" if rounds < planned else rounds,
        **tried,
        "accountant: at most": charged + (f"; {at_most(adaptive, 3)} if chosen in turn" if adaptive else ""),
        "p-value of that": f"{answer['p_value']:.3g}",
    }
    columns: dict[str, CellText] = {
        "attack": "attack",
        "guessed": lambda row: f"{row['guesses']['right']:,} of {row['guesses']['of']:,}",
        "epsilon, at least": lambda row: at_least(row["epsilon"]["lower"], 3),
    }
    if canaries:
        columns["for dependent guesses"] = lambda row: at_least(row["epsilon_if_dependent"], 3)
    bounds = listing(answer["findings"], columns, f"at {answer['confidence']:.4g} confidence")
    note = "Meaning and limits of these numbers: docs/audit.md"
    return Group(facts(f"{answer['scenario']}: audit", rows), bounds, note)
