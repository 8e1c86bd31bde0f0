"""A table for each study of many runs: sweeps, mergers, audits."""

from pathlib import Path

from rich.console import Group, RenderableType

from fedamp.base.numbers import at_least, at_most, power
from fedamp.report import words
from fedamp.report.tables import Answer, Cell, Cells, facts, listing, named
from fedamp.report.words import metric, value_of

NO_BEST = (
    "No best settings: there are no public validation records, and the test set is not chosen by. Expected: "
    "--set federation.validation_share=0.5"
)

VERDICTS = {
    ("audit", "refuted"): "REFUTED: the code leaks more than the accountant charges",
    ("audit", "consistent"): "consistent: no leak above the accountant's bound was found",
    ("sensitivity", "refuted"): "REFUTED: one unit's data count for more than is charged",
    ("sensitivity", "consistent"): "consistent: no distance above the charge was found",
}


def sweep_cells(answer: Answer) -> Cells:
    """Means and deviations over seeds."""
    keys, outcomes, rows = answer["varied"], answer["outcomes"], []
    scores = ["score", *["validation_score"] * any(outcome["validation_score"] for outcome in outcomes)]
    for outcome in outcomes:
        settings = [words.given(outcome["settings"][key]) for key in keys] or ["as it stands"]
        means = [_mean(outcome, key) for key in scores]
        rows.append([*settings, str(outcome["runs"]), *means, at_most(outcome["epsilon_upper"])])
    left = [words.setting(key, keys) for key in keys] or ["settings"]
    leads = metric(next((outcome["metric"] for outcome in outcomes), "accuracy"))
    return Cells(left, ("runs", *[leads, "validation"][: len(scores)], "epsilon"), rows)


def sweep_notes(answer: Answer) -> list[str]:
    """The best settings, and the cost of the choice."""
    outcomes, missing, notes = answer["outcomes"], answer["unfinished"], []
    if missing:
        why = next((f": {Path(each['folder']).name}: {each['error']}" for each in missing if each["error"]), "")
        planned = len(missing) + sum(outcome["runs"] for outcome in outcomes)
        notes.append(f"caution: {len(missing)} of {planned} runs have not come to their end{why}")
    if answer["best"]:
        best = [f"{words.settings(each['settings'])} ({_mean(each, 'validation_score')})" for each in answer["best"]]
        notes.append("Best by the public validation records: " + "; ".join(best))
    elif answer["varied"] and outcomes:
        notes.append(NO_BEST)
    return [*notes, *answer["choosing"]["in_words"]]


def _mean(outcome: Answer, key: str) -> str:
    found = outcome[key].values() if outcome[key] else ()
    return " ± ".join(value_of(outcome["metric"], value) for value in found if value is not None)


def merge_table(answer: Answer) -> RenderableType:
    """The inputs with their weights, and the merged model; the inputs' accuracies are for the owner alone."""
    drawn, final = answer["draw"] and answer["draw"]["model"], answer["final"]
    accuracy = {} if final["accuracy"] is None else {"accuracy": final["accuracy"]}
    name, reached = next(iter((accuracy | final["metrics"]).items()), ("accuracy", None))
    scores = zip(answer["inputs"], answer["weights"], answer["unprotected"]["accuracies"], strict=True)
    columns: dict[str, Cell] = {
        "model": lambda row: row["name"] + " (drawn)" * (row["name"] == drawn),
        "weight": "weight",
        "epsilon alone": "epsilon_upper",
        metric(name): lambda row: "" if row["reached"] is None else value_of(name, row["reached"], 2),
    }
    inputs = [model | {"weight": weight, "reached": found} for model, weight, found in scores]
    rows = named(answer, "epsilon", "budget_epsilon", "delta", "epsilon_bound", "weights_chosen_by")
    of_test_set = words.NOT_MEASURED if reached is None else f"{value_of(name, reached, 2)} on the public test set"
    rows |= {metric(name): of_test_set}
    note = "Assumes that nothing else of the inputs is released: certificate.json, docs/merging.md"
    return Group(listing(inputs, columns, f"merged by {answer['method']}"), facts(None, rows), note)


def audit_table(answer: Answer) -> RenderableType:
    """The lower bounds of an attack on the real code, and the accountant's upper bounds."""
    size, unit, rounds, planned = (answer[key] for key in ("group_size", "unit", "rounds", "scenario_rounds"))
    rows = {
        "verdict": VERDICTS["audit", answer["verdict"]],
        "attacked": answer["mechanism"],
        "present or absent": f"one {unit}" if size == 1 else f"{size} {unit}s together",
        "rounds": f"{rounds}, shortened from {planned} at the same rate" if rounds < planned else rounds,
        "repetitions": f"{answer['repetitions']:,} with and as many without; {answer['counted']:,} of each counted",
        "canary's update": f"{answer['canary_strength']:.0%} of the clipping norm",
    }
    columns: dict[str, Cell] = {
        "delta": lambda row: power(float(f"{row['delta']:.3g}")),
        "epsilon, at least": lambda row: at_least(row["epsilon"]["lower"], 3),
        "accountant: at most": lambda row: at_most(row["epsilon"]["upper"], 3),
        "attack": "attack",
    }
    bounds = listing(answer["findings"], columns, f"at {answer['confidence']:.4g} confidence")
    note = "What these numbers can show, and what they cannot: docs/audit.md"
    return Group(facts(f"{answer['scenario']}: audit", rows), bounds, note)


def sensitivity_table(answer: Answer) -> RenderableType:
    """The distances between the sums of a round, before noise, when one unit's data change."""
    rows = {
        "verdict": VERDICTS["sensitivity", answer["verdict"]],
        "largest distance": f"{answer['largest_distance']:.6g} clips",
        "changed": f"one {answer['unit']}'s records, {answer['repetitions']:,} times",
    }
    columns: dict[str, Cell] = {
        "round": "round",
        "distance": lambda row: f"{row['distance']:.4g}{' (reports differ)' if row['is_told'] else ''}",
        "charged": "allowed",
        answer["unit"]: "unit",
        "its records": "records",
        "against": "against",
    }
    moves = listing(answer["rounds"], columns, "largest distance of each round, in clips")
    return Group(facts(f"{answer['scenario']}: sensitivity", rows), moves)
