"""What the commands print for a person: a table for each object that ``--json`` prints, at most 80 columns wide."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from fedamp.base.numbers import amount_of_bytes, amount_of_time, at_least, at_most, power
from fedamp.report.words import ENDINGS, GUARANTEES, KNOWN_SEED, common, metric, protected, score, value_of

if TYPE_CHECKING:
    from fedamp.data import LabelCounts
    from fedamp.federation.scenario import Scenario
    from fedamp.runs.records import Summary

Answer = Mapping[str, Any]

ROUNDS_SHOWN = 10
LABELS_SHOWN = 10  # as many as fit 80 columns
VERDICT_COLOURS = {"fine": "green", "caution": "yellow", "wrong": "red"}


_NORM_HINTS = {
    True: "privacy.clip decides the step alone; auto chooses it",
    False: "a smaller privacy.clip needs less noise; auto chooses it",
}


def run_table(summary: "Summary", clipped: float | None = None) -> Table:
    """What a run came to: quality, cost, work, and how long it took; and a hint where the clipping norm was chosen far
    from the updates, of which it clipped a share.
    """
    rows = {}
    if summary.final.score is not None:
        name, value = summary.final.score
        others = [f"{metric(other)} {value_of(other, found)}" for other, found in summary.final.metrics.items()]
        others = [f"loss {summary.final.loss:.3f}", *(words for words in others if not words.startswith(metric(name)))]
        rows[metric(name)] = f"{value_of(name, value, 2)} on the public test set ({', '.join(others)})"
    if math.isinf(summary.epsilon.upper):
        rows["privacy"] = "none: no noise was added"
    else:
        rows["epsilon"] = f"{at_most(summary.epsilon.upper, 3)} at delta = {summary.delta:g}"
        released = summary.released_rounds_epsilon
        if released is not None and released.upper < summary.epsilon.upper:
            rows["epsilon"] += ", what all rounds cost"
            rows["if not looked"] = f"{at_most(released.upper, 3)}, if nothing that was seen decided when it stopped"
        if summary.has_known_seed:
            rows["known seed"] = KNOWN_SEED
        rows["unamplified"] = f"{at_most(summary.unamplified_epsilon.upper, 3)} for the whole run"
        rows["noise multiplier"] = f"{summary.noise_multiplier:.4g}"
    clients, seconds, start = summary.clients_trained, summary.wall_seconds, summary.startup_seconds
    rows["rounds"] = str(summary.rounds_completed)
    scheduled = clients if summary.clients_scheduled is None else summary.clients_scheduled
    missed = f" [yellow]of {scheduled:,} scheduled[/]" if clients < scheduled else ""
    rows["clients trained"] = f"{clients:,}{missed} ({clients / max(seconds, 1e-9):,.0f} a second)"
    if summary.clients_failed:
        rows["failed"] = f"[yellow]{summary.clients_failed:,}[/], not finite or not readable: they count as zero"
    if clipped is not None and not 0.01 <= clipped <= 0.99:
        rows["clipped"] = f"{clipped:.0%} of the updates: " + _NORM_HINTS[clipped > 0.5]
    share, work = summary.cost.parameters_share, summary.cost.flops_share
    if share < 1:
        rows["sent to a client"] = f"{share:.0%} of the model; {work:.0%} of the work"
    rows["time"] = f"{seconds:.1f} s" + (f", and {start:.1f} s to start" if start >= 0.1 else "")
    return _facts(f"{summary.name}: {ENDINGS[summary.stopped_because]}", rows)


def privacy_table(answer: Answer) -> RenderableType:
    """What a scenario will cost: amplified and unamplified, side by side, and over the rounds."""
    unit, poisson = answer["unit"], answer["poisson_epsilon"]
    rows = {
        "protected": protected(unit, answer["group_size"]),
        "adjacency": answer["adjacency"],
        "delta": f"{answer['delta']:g}",
        "noise multiplier": f"{answer['noise_multiplier']:.5g}",
        "expected cohort": f"{answer['expected_cohort']:,.4g} of {answer['units']:,} {unit}s a round",
        "mechanism": answer["mechanism"],
        "epsilon": _bracket(answer["epsilon"]),
        **({} if poisson is None else {"by Poisson sampling": _bracket(poisson)}),
        "unamplified": _bracket(answer["unamplified_epsilon"]),
        **({"known seed": KNOWN_SEED} if answer["known_seed"] else {}),
        "upper end from": answer["epsilon_bound"],
        "in words": answer["risk"]["in_words"],
        "budget": "none"
        if answer["budget"] is None
        else f"epsilon <= {answer['budget']:g}, pays for {answer['affordable_rounds']} of {answer['rounds']} rounds",
    }
    curve = Table("round", "epsilon", "unamplified", title="spent so far, at most")
    for row in spread(answer["per_round"], ROUNDS_SHOWN):
        curve.add_row(str(row["round"]), at_most(row["epsilon_upper"], 4), at_most(row["unamplified_upper"], 4))
    groups: RenderableType = "What groups protected together would cost: add --groups (takes seconds)"
    if answer["groups"] is not None:
        groups = Table(f"{unit}s together", "epsilon", title="what groups cost, at most")
        for row in answer["groups"]:
            groups.add_row(str(row["size"]), at_most(row["epsilon_upper"], 4))
    note = f"Assumes a trusted server and hidden assignments: {GUARANTEES}"
    return Group(_facts(f"{answer['scenario']}: what it costs", rows), curve, groups, note)


def calibration_table(answer: Answer) -> Table:
    """The calibrated noise."""
    rows = {
        "noise multiplier": f"{answer['noise_multiplier']:.6g}",
        "budget": f"epsilon <= {answer['budget']:g} at delta = {answer['delta']:g}",
        "epsilon": _bracket(answer["epsilon"]),
        **({"known seed": KNOWN_SEED} if answer["known_seed"] else {}),
        "mechanism": answer["mechanism"],
    }
    return _facts(f"{answer['scenario']}: least noise for the budget", rows)


def comparison_table(answer: Answer) -> RenderableType:
    """Several runs and merged models, one a row."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("run", overflow="fold")
    leads = common(run["score"] for run in answer["runs"])  # models of several tasks say each what theirs is
    headings = (leads or "quality", "epsilon", "unamplified", "rounds", "bytes per\ncheck-in", "time per\ncheck-in")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for run in answer["runs"]:
        work = ["", "merged", "", ""]
        if run["merged_by"] is None:
            work = [
                at_most(run["unamplified_epsilon_upper"]),
                str(run["rounds_completed"]),
                amount_of_bytes(run["bytes_per_check_in"]),
                amount_of_time(run["seconds_per_check_in"]),
            ]
        quality = value_of(*run["score"]) if leads and run["score"] else score(run["score"])
        table.add_row(run["name"], quality, at_most(run["epsilon"]["upper"]), *work)
    return Group(table, *(f"caution: {caution}" for caution in answer["cautions"]))


def merge_table(answer: Answer) -> RenderableType:
    """The inputs with their weights, and the merged model; the inputs' accuracies are for the owner alone."""
    drawn = answer["draw"] and answer["draw"]["model"]
    final = answer["final"]
    leading = "accuracy" if final["accuracy"] is not None else next(iter(final["metrics"]))
    reached = final["accuracy"] if leading == "accuracy" else final["metrics"][leading]
    inputs = Table("model", "weight", "epsilon alone", metric(leading), title=f"merged by {answer['method']}")
    weighted = zip(answer["inputs"], answer["weights"], answer["unprotected"]["accuracies"], strict=True)
    for model, weight, accuracy in weighted:
        name = model["name"] + " (drawn)" * (model["name"] == drawn)
        inputs.add_row(name, f"{weight:.6g}", at_most(model["epsilon_upper"], 4), value_of(leading, accuracy, 2))
    rows = {
        "epsilon": _bracket(answer["epsilon"]),
        "budget": f"epsilon <= {answer['budget_epsilon']:g} at delta = {answer['delta']:g}",
        "upper end from": answer["epsilon_bound"],
        "weights": answer["weights_chosen_by"],
        metric(leading): f"{value_of(leading, reached, 2)} on the public test set",
    }
    if answer["has_known_seed"]:
        rows["known seed"] = "the noise or the draw can be computed from it: for research, not for release"
    note = "Assumes that nothing else of the inputs is released: certificate.json, docs/merging.md"
    return Group(inputs, _facts(None, rows), note)


def audit_table(answer: Answer) -> RenderableType:
    """What an attack on the real code found, beside what the accountant charges."""
    refuted = answer["verdict"] == "refuted"
    size, unit, rounds = answer["group_size"], answer["unit"], answer["rounds"]
    shortened = f", shortened from {answer['scenario_rounds']} at the same rate"
    rows = {
        "verdict": "REFUTED: the code leaks more than the accountant charges"
        if refuted
        else "consistent: no leak beyond what the accountant charges was found",
        "attacked": answer["mechanism"],
        "present or absent": f"one {unit}" if size == 1 else f"{size} {unit}s together",
        "rounds": f"{rounds}{shortened if rounds < answer['scenario_rounds'] else ''}",
        "repetitions": f"{answer['repetitions']:,} with and as many without; {answer['counted']:,} of each counted",
        "canary's update": f"{answer['canary_strength']:.0%} of the clipping norm",
    }
    columns = ("delta", "epsilon, at least", "accountant: at most", "attack")
    bounds = Table(*columns, title=f"at {answer['confidence']:.4g} confidence")
    for finding in answer["findings"]:
        lower, upper = finding["epsilon"]["lower"], finding["epsilon"]["upper"]
        delta = power(float(f"{finding['delta']:.3g}"))
        bounds.add_row(delta, at_least(lower, 3), at_most(upper, 3), finding["attack"])
    note = "What these numbers can show, and what they cannot: docs/audit.md"
    return Group(_facts(f"{answer['scenario']}: audit", rows), bounds, note)


def sensitivity_table(answer: Answer) -> RenderableType:
    """How far one unit's data move the sum of a round, before its noise."""
    verdict = {
        "refuted": "REFUTED: one unit's data count for more than is charged",
        "consistent": "consistent: nothing beyond what is charged was found",
    }
    rows = {
        "verdict": verdict[answer["verdict"]],
        "largest distance": f"{answer['largest_distance']:.6g} clips",
        "changed": f"one {answer['unit']}'s records, {answer['repetitions']:,} times",
        **({"both data sets": answer["kept"], "again": answer["repeat"]} if answer["kept"] else {}),
    }
    columns = ("round", "distance", "charged", answer["unit"], "its records", "against")
    moves = Table(*columns, title="largest distance of each round, in clips")
    for move in answer["rounds"]:
        told = " (reports differ)" if move["is_told"] else ""
        distance = f"{move['distance']:.4g}{told}"
        moves.add_row(
            str(move["round"]), distance, str(move["allowed"]), str(move["unit"]), move["records"], move["against"]
        )
    return Group(_facts(f"{answer['scenario']}: sensitivity", rows), moves)


def checks_table(title: str, answer: Answer) -> Table:
    """Things that were looked at one by one, each with its verdict."""
    table = Table("", "", Column(overflow="fold"), title=title, show_header=False)  # all of a long digest
    for check in answer["checks"]:
        verdict = check["verdict"]
        table.add_row(Text(verdict, VERDICT_COLOURS[verdict]), check["name"], check["found"])
    return table


def doctor_table(answer: Answer) -> RenderableType:
    """What this machine has and, where it was asked for, whether the deployment is sound."""
    rows = {"python": f"{answer['python']} on {answer['system']}"}
    rows |= {name: version or "not installed" for name, version in answer["packages"].items()}
    rows["cores"] = str(answer["cores"])
    for key in ("memory_bytes", "free_memory_bytes", "free_disk_bytes"):
        rows[key.removesuffix("_bytes").replace("_", " ")] = f"{answer[key] / 1e9:.1f} GB"
    rows["devices"] = ", ".join(answer["devices"])
    tables = [_facts("this machine", rows)]
    if "deployment" in answer:
        tables.append(checks_table("deployment", answer["deployment"]))
    return Group(*tables)


def scenarios_table(scenarios: "Iterable[Scenario]") -> Table:
    """Scenarios with their descriptions."""
    table = Table("scenario", "description")
    for scenario in scenarios:
        table.add_row(scenario.name, scenario.description)
    return table


def partition_table(counts: "LabelCounts") -> RenderableType:
    """How many records of each label the first clients hold, and a summary of all clients."""
    import numpy as np

    sizes = counts.sizes if counts.sizes.size else np.zeros(1, dtype=np.int64)
    summary = (
        f"{sizes.sum():,} training records of {len(counts.sizes):,} clients "
        f"({sizes.min()} to {sizes.max()} each, median {np.median(sizes):g}); "
        f"{counts.test_records:,} public test records"
    )
    labels = counts.counts.shape[1]
    shown, more = min(labels, LABELS_SHOWN), labels > LABELS_SHOWN
    table = Table(box=box.SIMPLE)
    for heading in ("client", *map(str, range(shown)), *["others"] * more, "records"):
        table.add_column(heading, justify="right", no_wrap=True)
    for client, row in zip(counts.clients, counts.counts, strict=True):
        cells = [*row[:shown], row[shown:].sum()] if more else row
        table.add_row(str(client), *(str(cell) if cell else "" for cell in cells), str(row.sum()))
    if len(counts.sizes) > len(counts.clients):
        table.add_row("...")
    return Group(Text(summary), Text("Records of every label, for the first clients:"), table)


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the rows, evenly spread; the last one is always among them."""
    numbers = {max(1, round(share * len(rows) / count)) for share in range(1, count + 1)} if rows else set()
    return [rows[number - 1] for number in sorted(numbers)]


def _facts(title: str | None, rows: Mapping[str, str]) -> Table:
    table = Table(title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _bracket(ends: Mapping[str, float | None]) -> str:
    return f"{at_most(ends['upper'], 4)} (at least {at_least(ends['lower'], 4)})"
