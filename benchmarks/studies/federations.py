"""Accuracy of each scheme at equal privacy, on several tasks: thousands of clients, each protected.

    python -m benchmarks.studies.federations [TASK ...]     resumes; three hours on one core for all of it
    python -m benchmarks.studies.federations --quick        a few rounds of two schemes, as a check
    python -m benchmarks.studies.federations --show         tables and pictures of the stored results

Every scheme is tuned alike: its rate, a power of two, by the score on records that nobody trains on and that the test
leaves out, until both neighbours of the best rate are worse. Without noise a rate at which some seed diverged is not
taken (the next call goes on below it). Then it trains once a seed, and is tested on the test set.
Every run is a line of ``benchmarks/studies/federations.jsonl``. From these come the tables of
docs/research/federations.md, an
extract of them in the README, and two pictures in ``docs/images``. The tasks are in ``federation_tasks.py``.
"""

import argparse
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

import fedamp
from benchmarks.record import ROOT, add_row, put_in, rows_of
from benchmarks.studies.federation_tasks import BUDGETS, DELTA, SCHEMES, TASKS, Scheme, Sections
from benchmarks.training import best_power
from fedamp.base.numbers import amount_of_bytes, at_most
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.federation import reader
from fedamp.federation.plan import Plan, make_plan
from fedamp.federation.scenario import Scenario
from fedamp.report import style
from fedamp.server.loop import ask
from fedamp.server.setup import RunInputs, prepare
from fedamp.strategies.private import PrivateStrategy

RESULTS, IMAGES = Path(__file__).with_suffix(".jsonl"), ROOT / "docs" / "images"
SHIPPED = ROOT / "scenarios"
# The longest step of a unit that is alone: the two models that are mixed are kept so many of them apart.
MIXED_STEPS = 4.0
SHORTENED = 1024.0


@dataclass(frozen=True)
class Cell:
    """What is tuned and measured."""

    task: str
    scheme: str
    epsilon: float | None

    @property
    def how(self) -> Scheme:
        return TASKS[self.task].schemes[self.scheme]

    def to_calibrate(self) -> Scenario:
        """The federation with the budget; its rate does not matter to its noise, and nothing is loaded."""
        return self._scenario(False, 1, 1.0, (1.0, 1.0), {"noise_multiplier": "auto", "epsilon": self.epsilon})

    def to_run(self, tuning: bool, rate: int, seed: int, noise: float) -> Scenario:
        """The federation at a rate of 2^rate (see :class:`Run`), with noise of that multiplier.

        A norm far below that of ``auto`` scales all updates alike; ``auto`` would divide by a server's rate above 1.
        """
        multiplier = {"noise_multiplier": noise}
        plan = make_plan(self._scenario(tuning, seed, "auto", (1.0, 1.0), multiplier), TASKS[self.task].clients)
        norm, server = plan.clipping.first_norm(noise) / SHORTENED, plan.scenario.server
        step = 2.0**rate * (1 - server.momentum) / plan.scenario.rounds
        return self._scenario(tuning, seed, norm, (step / norm, norm), multiplier)

    def _scenario(
        self,
        tuning: bool,
        seed: int,
        clip: str | float,
        step: tuple[float, float],
        noise: Sections,
    ) -> Scenario:
        task, (rate, norm) = TASKS[self.task], step
        raw = {**task.federation, **self.how.sections, "seed": seed, "data": task.data(tuning)}
        raw["server"] = {**raw["server"], "learning_rate": rate}
        if task.validation:
            raw["federation"] = {"validation_share": 0.5}
        own = raw.get("privacy", {})
        if own and noise["noise_multiplier"] != "auto":  # the bands that were best at the budget
            bands = len(planned(self).coefficients) + 1
            own = {"noise": {"scheme": "banded", "bands": bands}}
            raw["check_in"] = {**raw["check_in"], "gap": bands}
        raw["privacy"] = {"clip": clip, "delta": DELTA, "amplification": self.how.amplified, **own, **noise}
        if self.how.mixed:
            check_ins = raw["rounds"] * raw["check_in"]["rate"]
            width = MIXED_STEPS * rate * norm * raw["rounds"] / (task.clients * check_ins)
            raw["mixing"] = {"width": width, "linf_coordinates": 25}
        return reader.validate_scenario(raw, self.scheme)


@cache
def planned(cell: Cell) -> Plan:
    """With the noise that keeps the budget."""
    return make_plan(cell.to_calibrate(), TASKS[cell.task].clients)


@cache
def noise_of(cell: Cell) -> float:
    """The noise multiplier that keeps the budget."""
    charged = replace(cell, scheme=cell.how.charged_as or cell.scheme)
    return planned(charged).noise_multiplier if cell.epsilon else 0.0


@dataclass(frozen=True)
class Run:
    """One line of the results.

    Attributes:
        rate: updates that all agree move the model by 2^rate in the whole run.
        tuning: whether the score is on the records that rates are chosen by.
        score, last: of the average of the models, and of the last one.
        seconds: of one core.
    """

    task: str
    scheme: str
    epsilon: float | None
    rate: int
    seed: int
    tuning: bool
    noise_multiplier: float
    score: float
    last: float
    seconds: float


class Bench:
    """The runs so far, and those that are made when they are asked for."""

    def __init__(self, file: Path, quick: bool) -> None:
        self.file, self._quick = file, quick
        self.runs = [Run(**row) for row in rows_of(file)]

    def known(self, cell: Cell, rate: int, seed: int, tuning: bool) -> Run | None:
        """The run, if it has been made."""
        asked = (*asdict(cell).values(), rate, seed, tuning)
        made = ((each.task, each.scheme, each.epsilon, each.rate, each.seed, each.tuning) for each in self.runs)
        return next((run for run, found in zip(self.runs, made, strict=True) if found == asked), None)

    def run(self, cell: Cell, rate: int, seed: int, tuning: bool) -> Run:
        """A run, made unless there is one."""
        if known := self.known(cell, rate, seed, tuning):
            return known
        noise = self.noise(cell)
        start = process_time()
        scores = self.train(cell, rate, seed, tuning, noise)
        seconds = round(process_time() - start, 2)
        for which, (score, last) in scores.items():
            if not self.known(cell, rate, seed, which):
                done = Run(**asdict(cell), rate=rate, seed=seed, tuning=which, noise_multiplier=noise, score=score,
                           last=last, seconds=seconds if which == tuning else 0.0)  # fmt: skip
                self.runs.append(done)
                add_row(self.file, asdict(done))
        return self.run(cell, rate, seed, tuning)

    def noise(self, cell: Cell) -> float:
        """The noise multiplier that keeps the budget."""
        return noise_of(cell)

    def train(self, cell: Cell, rate: int, seed: int, tuning: bool, noise: float) -> dict[bool, tuple[float, float]]:
        """As of :func:`train`."""
        scenario = cell.to_run(tuning, rate, seed, noise)
        if self._quick:
            scenario = scenario.model_copy(update={"rounds": 3})
        if TASKS[cell.task].personal:
            return {tuning: trained_alone(scenario, tuning)}
        return train(prepare(scenario), tuning)

    def best_rate(self, cell: Cell, start: int) -> int:
        """The rate with the highest score, which no neighbour exceeds."""
        while True:
            best = best_power(
                lambda rate: -math.inf if diverged(self.runs, cell, rate) else self.run(cell, rate, 1, True).score,
                start,
            )
            start = best_rates(self.runs)[cell]
            if start == best:  # else an earlier search has found a higher peak
                return best


def best_rates(runs: Iterable[Run]) -> dict[Cell, int]:
    """The rate of each cell that tuning found best."""
    best: dict[Cell, Run] = {}
    runs = list(runs)
    for run in runs:
        cell = Cell(run.task, run.scheme, run.epsilon)
        better = cell not in best or run.score > best[cell].score
        if run.tuning and better and not diverged(runs, cell, run.rate):
            best[cell] = run
    return {cell: run.rate for cell, run in best.items()}


def diverged(runs: Sequence[Run], cell: Cell, rate: int) -> bool:
    """Whether a training without noise ended at less than half of what the cell reaches: no noise says so before."""
    if cell.epsilon is not None:
        return False
    of_cell = [run for run in runs if (run.task, run.scheme, run.epsilon) == (cell.task, cell.scheme, None)]
    return any(run.rate == rate and run.score < max(run.score for run in of_cell) / 2 for run in of_cell)


def played(strategy: PrivateStrategy, after: Callable[[int], None] | None = None) -> int:
    """Play all rounds here, and call ``after`` with each; how many clients have trained, all rounds added."""
    clients = 0
    with SerialGrid(CLIENT_APP) as grid:
        for round_ in range(1, strategy.plan.scenario.rounds + 1):
            total = ask(strategy, grid, round_)
            clients += total.reported
            strategy.release(round_, total)
            if after is not None:
                after(round_)
    return clients


def train(prepared: RunInputs, tuning: bool) -> dict[bool, tuple[float, float]]:
    """Scores of the averaged and of the last model, by whether rates are chosen by these records.

    Where the loader's test records are both the validation and the test, one training tells both.
    """
    strategy = prepared.strategy(prepared.state)
    played(strategy)
    state = strategy.state
    records = {tuning: prepared.test}
    if len(prepared.validation[1]):
        records = {True: prepared.validation, False: prepared.test}
    return {
        which: (prepared.evaluate(state.model, each).score, prepared.evaluate(state.parameters, each).score)
        for which, each in records.items()
    }


def trained_alone(scenario: Scenario, tuning: bool) -> tuple[float, float]:
    """Share of the variance of labels that is explained where each client has parameters of its own.

    Rates are chosen by the clients with an even number, and the others are the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = fedamp.run(scenario, out=f"{folder}/run")
        found = run.by_client()
    chosen = found.clients % 2 == (0 if tuning else 1)
    labels = prepare(scenario).test[1]
    squared = float(np.average(found.loss[chosen], weights=found.records[chosen]))
    score = 1 - squared / float(np.var(labels))
    return score, score


def cells(task: str) -> Iterator[Cell]:
    """All of a task: schemes side by side, so that what is there can be compared; the extreme budgets first."""
    schemes, epsilons = TASKS[task].schemes, TASKS[task].epsilons
    for name, scheme in schemes.items():
        if not scheme.private:
            yield Cell(task, name, None)
    for epsilon in dict.fromkeys((epsilons[0], epsilons[-1], *epsilons)):
        for name, scheme in schemes.items():
            if scheme.private:
                yield Cell(task, name, epsilon)


def named(asked: Iterable[str]) -> Iterator[Cell]:
    """The cells of ``TASK`` or ``TASK:SCHEME,SCHEME``, each."""
    for each in asked:
        task, _, schemes = each.partition(":")
        yield from (cell for cell in cells(task) if not schemes or cell.scheme in schemes.split(","))


def measure(bench: Bench, task: str) -> None:
    """Everything, seed after seed; the search for a rate starts at the last budget's best."""
    best: dict[Cell, int] = {}
    first, *others = TASKS[task].seeds
    start: dict[str, int] = {}
    for cell in cells(task):
        near = start.get(cell.scheme, next(reversed(start.values()), 7))
        best[cell] = start[cell.scheme] = bench.best_rate(cell, near)
        bench.run(cell, best[cell], first, False)
    for seed in others:
        for cell in cells(task):
            bench.run(cell, best[cell], seed, False)


# --- what is shown ----------------------------------------------------------------------------------------------------


def tested(runs: Iterable[Run]) -> dict[Cell, list[float]]:
    """Test scores in per cent, by cell, at its best rate."""
    runs = list(runs)
    result: dict[Cell, list[float]] = defaultdict(list)
    best = best_rates(runs)
    for run in runs:
        cell = Cell(run.task, run.scheme, run.epsilon)
        if not run.tuning and run.rate == best.get(cell, run.rate):
            result[cell].append(100 * run.score)
    return result


def table(
    runs: list[Run],
    task: str,
    schemes: Iterable[str] | None = None,
    epsilons: Sequence[float] | None = None,
    costs: bool = True,
) -> str:
    """In Markdown: a scheme a row, with what it costs a device in the whole run, unless all schemes cost the same."""
    found, epsilons = tested(runs), epsilons or TASKS[task].epsilons
    heads = [*(f"ε = {epsilon:g}" for epsilon in epsilons), *(["work", "sent"] if costs else [])]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for name in schemes or TASKS[task].schemes:
        scheme = TASKS[task].schemes[name]
        values = [found.get(Cell(task, name, epsilon if scheme.private else None)) for epsilon in epsilons]
        if any(values):
            shown = [_spread(value) for value in values]
            if costs:
                cost = device_cost(task, name)
                shown += [f"{cost.work:.0%}", amount_of_bytes(round(cost.bytes))]
            lines.append(f"| {scheme.words} | {' | '.join(shown)} |")
    seeds = {run.seed for run in runs if run.task == task and not run.tuning}
    caption = f"Mean ± standard deviation over {len(seeds)} seeds." if seeds else "Not measured yet."
    return "\n".join([*lines, "", caption])


def short_table(runs: list[Run]) -> str:
    """The table of the first page; its schemes cost a device the same."""
    return table(runs, "sections", SHORT, README_BUDGETS, costs=False)


def _spread(values: list[float] | None) -> str:
    if not values:
        return ""
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


@dataclass(frozen=True)
class DeviceCost:
    """Of a device in the whole run.

    Attributes:
        work: floating-point operations, over those of the task's own federation (k of T, the whole model).
        bytes: of models that it receives; it sends as many.
    """

    work: float
    bytes: float


@cache
def device_cost(task: str, scheme: str) -> DeviceCost:
    """On average over the devices."""
    operations, received = _of_a_device(task, scheme)
    return DeviceCost(operations / _of_a_device(task, None)[0], received)


@cache
def _of_a_device(task: str, scheme: str | None) -> tuple[float, float]:
    """Operations a record and bytes, times check-ins; of the task's own federation where no scheme is named."""
    prepared = on_made_up_records(task, scheme)
    check_ins = prepared.plan.expected_cohort * prepared.plan.scenario.rounds / TASKS[task].clients
    # A table of embeddings multiplies nothing: its work is in proportion to the check-ins.
    return check_ins * (prepared.cost.flops_per_record or 1), check_ins * 4 * prepared.cost.parameters_per_client


def on_made_up_records(task: str, scheme: str | None = None, seed: int = 1) -> RunInputs:
    """A task's federation with the first model of a seed, on made-up records of the same shape if the task has one."""
    asked = TASKS[task]
    how = asked.schemes[scheme].sections if scheme else {}
    data = {"name": "synthetic", "clients": asked.clients, "shape": asked.shape, "classes": asked.classes}
    if not asked.shape:
        data = asked.data(False)
    raw = {**asked.federation, **{key: value for key, value in how.items() if key != "privacy"}, "data": data}
    if raw["check_in"]["scheme"] == "spaced":
        raw["check_in"] = {**raw["check_in"], "gap": 1}  # with correlated noise it follows from the bands
    privacy = {"clip": 1.0, "noise_multiplier": 1.0}
    return prepare(reader.validate_scenario({**raw, "seed": seed, "privacy": privacy}, scheme or task))


def put_tables(runs: list[Run]) -> None:
    """All tables, each in its place."""
    page = ROOT / "docs" / "research" / "federations.md"
    put_in(ROOT / "README.md", "federations: sections, short", short_table(runs))
    put_in(ROOT / "README.md", "federations: worth", worth(runs))
    for task in TASKS:
        if task not in ("frontier", "authors"):  # a picture shows the one, and results alone hold the other
            budgets = SHORT_BUDGETS if TASKS[task].epsilons == BUDGETS else None  # the pictures show all
            rows = [name for name in TASKS[task].schemes if name in COMPARED or task not in ("dirichlet", "adapters")]
            put_in(page, f"federations: {task}", table(runs, task, rows, budgets))
    put_in(page, "federations: servers", servers())


def servers(budgets: Sequence[float] = BUDGETS) -> str:
    """In Markdown: what the models cost a client, and what a server that colludes with nodes learns, by budget."""
    heads = ("ε, models", "noise multiplier", "noise when nobody drops out", "ε, server", "ε, server, nodes draw")
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    drawn = {**TASKS["iid"].federation["check_in"], "drawn_by": "node"}
    for epsilon in budgets:
        hidden, by_nodes = (_secure_plan(epsilon, each) for each in ({}, {"check_in": drawn}))
        assert hidden.agreed_terms is not None
        multiplier, more = hidden.noise_multiplier, math.sqrt(hidden.agreed_terms.nodes / hidden.agreed_terms.honest)
        spent = (hidden.charge.planned_epsilon, hidden.charge.server_epsilon, by_nodes.charge.server_epsilon)
        models, *server = (at_most(each.upper, 3) if each else "" for each in spent)
        lines.append(f"| {models} | {multiplier:.3f} | {more * multiplier:.3f} | {' | '.join(server)} |")
    return "\n".join(lines)


def _secure_plan(epsilon: float, sections: Sections) -> Plan:
    raw = {**TASKS["iid"].federation, **SCHEMES["secure"].sections, **sections}
    raw["data"] = {"name": "synthetic", "clients": TASKS["iid"].clients}
    raw["privacy"] = {"clip": 1.0, "delta": DELTA, "noise_multiplier": "auto", "epsilon": epsilon}
    return make_plan(reader.validate_scenario(raw, "secure"), TASKS["iid"].clients)


SHOWN = ("everybody", "balanced", "split-2", "split-2-bare", "narrow", "unamplified")
SHORT, SHORT_BUDGETS = ("none", "unamplified", "poisson", "balanced"), (0.1, 1.0, 4.0)
README_BUDGETS = (0.5, 1.0, 4.0)
COMPARED = ("none", "unamplified", "poisson", "everybody", "balanced", "split-2", "narrow", "dropout")


def _label(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **options: Any) -> None:
    """Words ``shift`` points away from a point of the data, on a background that hides the grid."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axes.annotate(text, at, xytext=shift, textcoords="offset points", fontsize=style.TEXT, bbox=ground, **options)


def draw(runs: list[Run], file: Path) -> None:
    """Accuracy against epsilon, iid."""
    found = tested(runs)
    subtitle = f"Fashion-MNIST, protected: one client of {TASKS['iid'].clients:,}"
    canvas, (axes,) = style.figure("accuracy with hidden randomness", subtitle, (3.0,))
    for index, name in enumerate(SHOWN):
        look = style.look(index)
        points = [(epsilon, found[cell]) for epsilon in BUDGETS if (cell := Cell("iid", name, epsilon)) in found]
        means, spread = ([function(values) for _, values in points] for function in (np.mean, np.std))
        drawn = {"color": look.color, "linestyle": look.dash, "marker": look.marker, "capsize": 3}
        axes.errorbar([epsilon for epsilon, _ in points], means, spread, label=SCHEMES[name].words, **drawn)
    if bare := found.get(Cell("iid", "none", None)):
        axes.axhline(float(np.mean(bare)), color=style.GREY, linestyle=":")
        place = (BUDGETS[0], float(np.mean(bare)))
        _label(axes, f"without noise: {np.mean(bare):.1f} %", place, (0, 3), ha="left", va="bottom", color=style.GREY)
    axes.legend(loc="lower right", frameon=False, handlelength=3, fontsize=style.TEXT - 2)
    style.logarithmic(axes)
    limits = BUDGETS[0] / 1.2, BUDGETS[-1] * 1.2
    axes.set(xlabel="privacy budget ε (less is better)", xticks=BUDGETS, xlim=limits, ylabel="test accuracy, %")
    shown = [value for cell, values in found.items() if cell.task == "iid" for value in values]
    axes.set_ylim(min(shown, default=80.0) - 6, max(shown, default=90.0) + 1.5)  # room for the legend, and for words
    file.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(file, dpi=220)


def worth(runs: list[Run], epsilon: float = 1.0) -> str:
    """What hidden check-in is worth on the first page: beside Poisson sampling first, and where it gives more."""
    found, people = tested(runs), TASKS["sections"].clients

    def score(name: str, epsilon: float) -> float:
        return float(np.mean(found[Cell("sections", name, epsilon)]))

    budgets = TASKS["sections"].epsilons
    most = max(budgets, key=lambda each: score("banded", each) - score("poisson", each))
    gains = np.subtract(*(found[Cell("sections", name, most)] for name in ("banded", "poisson")))  # of the same seeds
    half = stats.sem(gains) * stats.t.ppf(0.975, len(gains) - 1)
    return (
        f"{people:,} people, epsilon {epsilon:g}: k of T hidden rounds reach **{score('balanced', epsilon):.1f} %**, "
        f"Poisson sampling {score('poisson', epsilon):.1f} %,\nand no amplification "
        f"{score('unamplified', epsilon):.1f} %. With correlated noise "
        f"k of T reaches\n{score('banded', most):.1f} % at epsilon {most:g}, where Poisson sampling reaches "
        f"{score('poisson', most):.1f} %:\n{gains.mean():.1f} ± {half:.1f} points more (95 % interval of {len(gains)} "
        f"seeds), the largest gain at {len(budgets)} epsilons."
    )


def draw_worth(runs: list[Run], file: Path) -> None:
    """The second picture: accuracy over epsilon by check-in and charge, and the points between best and last."""
    found, task = tested(runs), TASKS["sections"]
    title = "what hidden check-in is worth"
    canvas, (axes,) = style.figure(title, f"{task.clients:,} people, 4 rounds of 40 each", (2.6,))
    shown = {"balanced": "k of T hidden rounds", "unamplified": "no amplification", "poisson": "Poisson sampling"}
    means = {}
    for index, (name, words) in enumerate(shown.items()):
        scores = [found[Cell("sections", name, epsilon)] for epsilon in task.epsilons]
        means[name] = [float(np.mean(each)) for each in scores]
        spread = [float(np.std(each)) for each in scores]
        axes.errorbar(task.epsilons, means[name], spread, label=words, capsize=3, **style.look(index).options)
    axes.fill_between(task.epsilons, means["unamplified"], means["balanced"], color=style.look(0).color, alpha=0.12)
    for epsilon, high, low in zip(task.epsilons, means["balanced"], means["unamplified"], strict=True):
        if high - low > 5:  # room for the words
            place = (epsilon, (high + low) / 2)
            _label(axes, f"+{high - low:.0f}", place, (0, 0), ha="center", va="center", color=style.look(0).color)
    bare = float(np.mean(found[Cell("sections", "none", None)]))
    axes.axhline(bare, color=style.GREY, linestyle=":")
    words, place = f"without noise: {bare:.0f} %", (task.epsilons[0], bare)
    _label(axes, words, place, (0, 3), ha="left", va="bottom", color=style.GREY)
    style.logarithmic(axes)
    limits = task.epsilons[0] / 1.2, task.epsilons[-1] * 1.2
    axes.set(xlabel="privacy budget ε (less is better)", xticks=task.epsilons, xlim=limits, ylabel="test accuracy, %")
    axes.set_ylim(15, bare + 8)  # always the commonest section: 18 %
    axes.legend(loc="lower right", frameon=False, handlelength=3, fontsize=style.TEXT - 2)
    canvas.savefig(file, dpi=220)


PARTS = {  # words, with it, and without it
    "hidden check-in": ("balanced", "unamplified"),
    "correlated noise": ("banded", "balanced"),
    "credit for 2 submodels": ("split-2", "split-2-bare"),
}
SHOWN_TASKS = {"iid": "Fashion-MNIST", "sections": "sections"}


def draw_parts(runs: list[Run], file: Path) -> None:
    """What each part adds, in points of the task's score, over epsilon."""
    found = tested(runs)
    canvas, panels = style.figure("what each part is worth", "points gained at the same privacy", (2.2, 2.2))
    for axes, (task, title) in zip(panels, SHOWN_TASKS.items(), strict=True):
        epsilons, parts = TASKS[task].epsilons, {w: p for w, p in PARTS.items() if p[0] in TASKS[task].schemes}
        for index, (words, (with_, without)) in enumerate(parts.items()):
            place = np.arange(len(epsilons)) + (index - (len(parts) - 1) / 2) * 0.27
            pairs = [(found[Cell(task, with_, each)], found[Cell(task, without, each)]) for each in epsilons]
            gains = [float(np.mean(more) - np.mean(less)) for more, less in pairs]
            axes.bar(place, gains, 0.25, color=style.look(index).color, label=words)
            for at, gain in zip(place, gains, strict=True):
                up = gain >= 0
                spot, side = (at, gain), "bottom" if up else "top"
                words_, shift = f"{gain:+.1f}", (0, 2 if up else -2)
                axes.annotate(
                    words_,
                    spot,
                    xytext=shift,
                    textcoords="offset points",
                    ha="center",
                    va=side,
                    fontsize=style.TEXT - 5,
                )
        axes.axhline(0, color=style.GREY, linewidth=1)
        axes.set(xticks=range(len(epsilons)), ylabel=f"points, {title}")
        axes.set_xticklabels([f"ε = {epsilon:g}" for epsilon in epsilons])
        axes.margins(y=0.2)
    panels[0].legend(loc="upper right", frameon=False, fontsize=style.TEXT - 3)
    canvas.savefig(file, dpi=220)


FAMILIES = {1: "whole models", 2: "2 submodels", 4: "4 submodels"}


def draw_frontier(runs: list[Run], file: Path) -> None:
    """Accuracy against bytes at one epsilon; a line joins what nothing cheaper of its kind reaches."""
    found = {cell: float(np.mean(values)) for cell, values in tested(runs).items() if cell.task == "frontier"}
    subtitle = f"Fashion-MNIST, 6,000 clients, ε = {TASKS['frontier'].epsilons[0]:g}"
    canvas, (axes,) = style.figure("accuracy over what a device receives", subtitle, (3.0,))
    for index, (count, words) in enumerate(FAMILIES.items()):
        look = style.look(index)
        points = sorted(
            (device_cost("frontier", cell.scheme).bytes / 1000, score)
            for cell, score in found.items()
            if cell.scheme.endswith(f"split{count}")
        )
        best = [(x, y) for x, y in points if y >= max(other for at, other in points if at <= x)]
        axes.plot(*zip(*points, strict=True), look.marker, color=look.color, alpha=0.25)
        axes.plot(*zip(*best, strict=True), color=look.color, linestyle=look.dash, marker=look.marker, label=words)
    style.logarithmic(axes)
    axes.set(xlabel="kB of models in the whole run", ylabel="test accuracy, %", xlim=(2, 1500), ylim=(68, 85))
    axes.set_xticks([3, 10, 30, 100, 300, 1000], minor=False)
    axes.legend(loc="lower right", frameon=False, handlelength=3, fontsize=style.TEXT - 2)
    canvas.savefig(file, dpi=220)


def main() -> None:
    """Measure what is missing, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few rounds; the results go to a temporary folder")
    parser.add_argument("--show", action="store_true", help="tables and picture of what there is; measures nothing")
    asked = parser.parse_args()
    if unknown := set(asked.tasks) - set(TASKS):
        parser.error(f"no task {min(unknown)}; expected: {', '.join(TASKS)}")
    sys.path.insert(0, str(SHIPPED))  # of custom models
    results, images = RESULTS, IMAGES
    if asked.quick:
        results = (images := Path(tempfile.mkdtemp(prefix="fedamp-federations-"))) / RESULTS.name
    bench = Bench(results, asked.quick)
    if asked.quick:
        for name in ("balanced", "split-2"):
            bench.run(Cell("iid", name, BUDGETS[-1]), 7, 1, False)
        print(table(bench.runs, "iid"))
    else:
        if not asked.show:
            for task in asked.tasks or TASKS:
                measure(bench, task)
        put_tables(bench.runs)
    draw(bench.runs, images / "federations.png")
    if any(run.task == "sections" for run in bench.runs):
        draw_worth(bench.runs, images / "worth.png")
        draw_parts(bench.runs, images / "federations-parts.png")
    if any(run.task == "frontier" for run in bench.runs):
        draw_frontier(bench.runs, images / "federations-frontier.png")
    print(f"\n{results}\n{images}\n{sum(run.seconds for run in bench.runs) / 60:.0f} CPU minutes")


if __name__ == "__main__":
    main()
