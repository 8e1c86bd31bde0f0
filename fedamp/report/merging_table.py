"""A merger as a person reads it."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from fedamp.numbers import at_least, at_most


def merge_table(answer: dict[str, Any]) -> RenderableType:
    """The inputs with their weights, and the merged model; the inputs' accuracies are for the owner alone."""
    drawn = answer["draw"]
    inputs = Table("model", "weight", "epsilon alone", "accuracy", title=f"merged by {answer['method']}")
    rows = zip(answer["inputs"], answer["weights"], answer["unprotected"]["accuracies"], strict=True)
    for model, weight, accuracy in rows:
        name = model["name"] + (" (drawn)" if drawn and drawn["model"] == model["name"] else "")
        inputs.add_row(name, f"{weight:.6g}", at_most(model["epsilon_upper"], 4), f"{accuracy:.2%}")
    epsilon = answer["epsilon"]
    facts = Table(show_header=False)
    facts.add_row("epsilon", f"{at_most(epsilon['upper'], 4)} (at least {at_least(epsilon['lower'], 4)})")
    facts.add_row("budget", f"epsilon <= {answer['budget_epsilon']:g} at delta = {answer['delta']:g}")
    facts.add_row("upper end from", answer["epsilon_bound"])
    facts.add_row("weights", answer["weights_chosen_by"])
    facts.add_row("accuracy", f"{answer['final']['accuracy']:.2%} on the public test set")
    if answer["rehearsal"]:
        facts.add_row("known seed", "a seed is known, so the noise or the draw is: for research, not for release")
    note = "Assumes that nothing else of the inputs is released: certificate.json, docs/merging.md"
    return Group(inputs, facts, note)
