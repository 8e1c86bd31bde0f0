"""Show sweeps, studies and tuning as tables, at most 80 columns wide."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from fedamp.base.numbers import at_most
from fedamp.extensions.tune.sweep import BUDGET, Sweep
from fedamp.report import words
from fedamp.report.tables import CellText, RowCells, facts, listing
from fedamp.report.words import metric, value_of

NO_BEST = (
    "No best settings: there are no public validation records, and the test set is not chosen by. Expected: "
    "--set federation.validation_share=0.5"
)


def tune_table(answer: Mapping[str, Any]) -> RenderableType:
    """Show what each trial released, the chosen settings, and the cost of everything."""
    stages = answer.get("stage_noise") or [answer["trial_noise"]]
    columns: dict[str, CellText] = {
        **({"stage": "stage"} if len(stages) > 1 else {}),
        "settings": "settings",
        "score, with its noise": "score",
        "95 % of the noise": "ends",
    }
    trials = [
        {
            "stage": str(each.get("stage")),
            "settings": ", ".join(f"{key} {value}" for key, value in each["settings"].items()),
            "score": "diverged" if each["score"] is None else f"{each['score']:.1%}",
            "ends": "" if each["score"] is None else f"{each['lower']:.1%} to {each['upper']:.1%}",
        }
        for each in answer["trials"]
    ]
    noises = ", then ".join(f"{each:.4g}" for each in stages)
    rows = {
        "chosen": ", ".join(f"{key} {value}" for key, value in answer["chosen"].items()),
        "epsilon, trials and run": answer["epsilon"],
        "delta": answer["delta"],
        "noise multiplier": f"{answer['noise']:.4g} of the run, {noises} of a trial",
    }
    return Group(listing(trials, columns), facts("for a person in all of it", rows))


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
    outcomes, notes = answer["outcomes"], _left_out(answer)
    if answer["best"]:
        best = [
            f"{words.settings(each['settings'])} ({_mean_text(each, 'validation_score')})" for each in answer["best"]
        ]
        notes.append("Best by the public validation records: " + "; ".join(best))
    elif answer["varied"] and outcomes:
        notes.append(NO_BEST)
    return [*notes, *answer["choosing"]["in_words"]]


def _mean_text(outcome: Mapping[str, Any], key: str) -> str:
    """Write a mean, with half the width of its 95 % interval if there is one."""
    found = outcome[key] or {}
    values = [found.get("mean"), found.get("half_width")]
    return " ± ".join(value_of(outcome["metric"], value) for value in values if value is not None)


def study_cells(answer: Mapping[str, Any]) -> RowCells:
    """Make a row for each variant, with a column for each value of the key across; the best of a column are bold."""
    table, (_, percent) = answer["table"], _metric_of(answer)
    rows, bold = [], set()
    for row, (name, cells) in enumerate(table["lines"].items()):
        texts = [_mean_text(cell, "score") if cell else "" for cell in cells]
        rows.append([name, *[text.replace("%", "") if percent else text for text in texts]])
        bold |= {(row, column + 1) for column, cell in enumerate(cells) if cell and cell["is_best"] and len(rows)}
    across = table["across"]
    symbol = "ε" if across == BUDGET else words.setting(across)
    heads = ["without noise" if value is None else f"{symbol} = {words.given(value)}" for value in table["values"]]
    several = len(table["lines"]) > 1
    return RowCells(["variant"], heads if across else [answer["scenario"]], rows, frozenset(bold if several else ()))


def study_notes(answer: Mapping[str, Any]) -> list[str]:
    """Write what a reader of the table must know, a paragraph each."""
    outcomes, (name, percent) = answer["outcomes"], _metric_of(answer)
    counts = sorted({outcome["runs"] for outcome in outcomes})
    runs = " to ".join(map(str, dict.fromkeys([*counts[:1], *counts[-1:]]))) or "0"
    interval = " ± half the width of its 95 % interval (Student's t)" if any(each > 1 for each in counts) else ""
    unit, seeds = ", in per cent" if percent else "", f"{runs} seed{'s' * (runs != '1')}"
    notes = [f"{name.capitalize()}{unit} on public test records: mean over {seeds}{interval}."]
    if len(answer["table"]["lines"]) > 1:
        notes.append("Bold: the best mean of a column, and means whose interval contains it.")
    return [*notes, *answer["guarantees"], *_left_out(answer)]


def study_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each combination of settings: its settings, mean, ends of the interval, and cost."""
    return [
        {
            **{key: words.given(value) if isinstance(value, dict | list) else value for key, value in settings.items()},
            "metric": outcome.metric,
            "runs": len(outcome.runs),
            "mean": outcome.score and outcome.score.mean,
            "lower": outcome.score and outcome.score.ends[0],
            "upper": outcome.score and outcome.score.ends[1],
            "epsilon_upper": outcome.epsilon,
            "unamplified_epsilon_upper": outcome.unamplified_epsilon,
        }
        for outcome in sweep.outcomes
        for settings in [outcome.settings]
    ]


def _metric_of(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the usual name of the score, and whether it is read in per cent."""
    name = next((outcome["metric"] for outcome in answer["outcomes"]), "accuracy")
    return words.metric(name), words.is_share(name)


def _left_out(answer: Mapping[str, Any]) -> list[str]:
    """Write a caution about runs that have not come to their end."""
    outcomes, missing = answer["outcomes"], answer["unfinished"]
    if not missing:
        return []
    why = next((f": {Path(each['folder']).name}: {each['error']}" for each in missing if each["error"]), "")
    planned = len(missing) + sum(outcome["runs"] for outcome in outcomes)
    return [f"caution: {len(missing)} of {planned} runs are unfinished{why}"]
