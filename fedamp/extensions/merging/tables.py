"""Show a merger as a table, at most 80 columns wide."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from fedamp.report import words
from fedamp.report.tables import CellText, facts, listing, named
from fedamp.report.words import metric, value_of


def merge_table(answer: Mapping[str, Any]) -> RenderableType:
    """Show the inputs with their weights, and the merged model; the inputs' accuracies are for the owner alone.

    Args:
        answer: of :meth:`fedamp.extensions.merging.merge.MergeResult.to_json`.
    """
    drawn, final = answer["draw"] and answer["draw"]["model"], answer["final"]
    accuracy = {} if final["accuracy"] is None else {"accuracy": final["accuracy"]}
    name, reached = next(iter((accuracy | final["metrics"]).items()), ("accuracy", None))
    scores = zip(answer["inputs"], answer["weights"], answer["unprotected"]["accuracies"], strict=True)
    columns: dict[str, CellText] = {
        "model": lambda row: row["name"] + " (drawn)" * (row["name"] == drawn),
        "weight": "weight",
        "epsilon alone": "epsilon_upper",
        metric(name): lambda row: "" if row["reached"] is None else value_of(name, row["reached"], 2),
    }
    inputs = [model | {"weight": weight, "reached": found} for model, weight, found in scores]
    chosen = {**answer, "weights": answer["weights_chosen_by"]}
    rows = named(chosen, "epsilon", "budget_epsilon", "delta", "epsilon_bound", "weights")
    of_test_set = words.NOT_MEASURED if reached is None else f"{value_of(name, reached, 2)} on the public test set"
    rows |= {metric(name): of_test_set}
    note = "Assumes that nothing else of the inputs is released: certificate.json, docs/research/merging.md"
    return Group(listing(inputs, columns, f"merged by {answer['method']}"), facts(None, rows), note)
