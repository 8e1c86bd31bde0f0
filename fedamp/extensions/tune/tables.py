"""Show sweeps and tuning as tables, at most 80 columns wide."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from fedamp.base.numbers import at_most
from fedamp.report import words
from fedamp.report.tables import CellText, RowCells, facts, listing
from fedamp.report.words import metric, value_of

NO_BEST = (
    "No best settings: there are no public validation records, and the test set is not chosen by. Expected: "
    "--set federation.validation_share=0.5"
)


def tune_table(answer: Mapping[str, Any]) -> RenderableType:
    """Show what each trial released, the chosen settings, and the cost of everything."""
    columns: dict[str, CellText] = {
        "settings": "settings",
        "score, with its noise": "score",
        "95 % of the noise": "ends",
    }
    trials = [
        {
            "settings": ", ".join(f"{key} {value}" for key, value in each["settings"].items()),
            "score": "diverged" if each["score"] is None else f"{each['score']:.1%}",
            "ends": "" if each["score"] is None else f"{each['lower']:.1%} to {each['upper']:.1%}",
        }
        for each in answer["trials"]
    ]
    rows = {
        "chosen": ", ".join(f"{key} {value}" for key, value in answer["chosen"].items()),
        "epsilon, trials and run": answer["epsilon"],
        "delta": answer["delta"],
        "noise multiplier": f"{answer['noise']:.4g} of the run, {answer['trial_noise']:.4g} of a trial",
    }
    return Group(listing(trials, columns), facts("for somebody who is in all of it", rows))


def sweep_cells(answer: Mapping[str, Any]) -> RowCells:
    """Make a row for each combination of settings: means and deviations over seeds."""
    keys, outcomes, rows = answer["varied"], answer["outcomes"], []
    scores = ["score", *["validation_score"] * any(outcome["validation_score"] for outcome in outcomes)]
    for outcome in outcomes:
        settings = [words.given(outcome["settings"][key]) for key in keys] or ["as it stands"]
        means = [_mean_text(outcome, key) for key in scores]
        rows.append([*settings, str(outcome["runs"]), *means, at_most(outcome["epsilon_upper"])])
    left = [words.setting(key, keys) for key in keys] or ["settings"]
    leads = metric(next((outcome["metric"] for outcome in outcomes), "accuracy"))
    return RowCells(left, ("runs", *[leads, "validation"][: len(scores)], "epsilon"), rows)


def sweep_notes(answer: Mapping[str, Any]) -> list[str]:
    """Write the best settings, and the cost of the choice."""
    outcomes, missing, notes = answer["outcomes"], answer["unfinished"], []
    if missing:
        why = next((f": {Path(each['folder']).name}: {each['error']}" for each in missing if each["error"]), "")
        planned = len(missing) + sum(outcome["runs"] for outcome in outcomes)
        notes.append(f"caution: {len(missing)} of {planned} runs are unfinished{why}")
    if answer["best"]:
        best = [
            f"{words.settings(each['settings'])} ({_mean_text(each, 'validation_score')})" for each in answer["best"]
        ]
        notes.append("Best by the public validation records: " + "; ".join(best))
    elif answer["varied"] and outcomes:
        notes.append(NO_BEST)
    return [*notes, *answer["choosing"]["in_words"]]


def _mean_text(outcome: Mapping[str, Any], key: str) -> str:
    """Write a mean, with its deviation if there is one."""
    found = outcome[key].values() if outcome[key] else ()
    return " ± ".join(value_of(outcome["metric"], value) for value in found if value is not None)
