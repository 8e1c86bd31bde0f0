"""Accuracy of each scheme in a federation of thousands: Fashion-MNIST, 6,000 clients with ten images each.

    python -m benchmarks.federations            resumes; half an hour on one core for all of it
    python -m benchmarks.federations --quick    a few rounds of two schemes, as a check
    python -m benchmarks.federations --show     tables and picture of the stored results

Every scheme is tuned alike: its rate, a power of two, by the accuracy on 6,000 training images that
nobody trains on, until both neighbours of the best rate are worse. Then it trains on all of them, once a seed, and is
tested on the test set. Every run is a line of ``benchmarks/results/federations.jsonl``. From these come the tables of
docs/strategies.md, an extract of them in the README, and ``docs/images/federations.png``.
"""

import argparse
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.training import best_power, fashion_mnist
from fedamp.base.numbers import amount_of_bytes
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.serial import SerialGrid
from fedamp.federation import reader
from fedamp.federation.plan import Plan, make_plan
from fedamp.federation.scenario import Scenario
from fedamp.report import style
from fedamp.server.loop import ask
from fedamp.server.setup import Prepared, prepare

RESULTS, PICTURE = Path("benchmarks/results/federations.jsonl"), Path("docs/images/federations.png")
EPSILONS, SEEDS, DELTA = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0), (1, 2, 3, 4, 5), 1e-5
CLIENTS, RECORDS, HELD_OUT = 6000, 10, 6000
FEATURES = [{"name": "scattering", "scales": 3, "angles": 2}, {"name": "group_norm", "groups": 19}]
PARTITIONS = {"iid": {"scheme": "iid"}, "dirichlet": {"scheme": "dirichlet", "alpha": 0.3}}
CHECK_INS, SERVER = 3, {"momentum": 0.5, "averaging": 0.9}
FEDERATION: dict[str, Any] = {
    "name": "federations",
    "known_seed": True,
    "model": {"name": "mlp", "hidden": [32]},
    "rounds": 60,
    "check_in": {"scheme": "balanced", "k": CHECK_INS},
    "client": {"steps": 2, "learning_rate": 0.1},
    "server": SERVER,
    "engine": {"kind": "serial"},
}
STILL = {**SERVER, "momentum": 0.0}  # ModelMix refuses momentum
POISSON = {"check_in": {"scheme": "poisson", "rate": CHECK_INS / FEDERATION["rounds"]}}
HALF = {"scheme": "disjoint", "count": 2, "rest": "dealt"}
SPLIT = {"scheme": "disjoint", "shared_noise_multiplier": "balanced"}
# The longest step of a unit that is alone: the two models that are mixed are kept so many of them apart.
MIXED_STEPS = 4.0


@dataclass(frozen=True)
class Scheme:
    """A row of the table: its words, and what it says otherwise than FEDERATION."""

    words: str
    sections: dict[str, Any]
    private: bool = True
    amplified: bool = True
    mixed: bool = False
    charged_as: str | None = None  # the scheme whose noise it has, so that what differs is not credited


SCHEMES = {
    "none": Scheme("k of T, without noise", {}, private=False),
    "unamplified": Scheme("k of T, charged without amplification", {}, amplified=False),
    "poisson": Scheme("Poisson sampling (DP-FedAvg)", POISSON),
    "everybody": Scheme("everybody in each round", {"check_in": {"scheme": "all"}}),
    "stratified": Scheme("k of T, one a block", {"check_in": {"scheme": "stratified", "k": CHECK_INS}}),
    "balanced": Scheme("k of T", {}),
    "split-2": Scheme("k of T, 2 submodels", {"submodels": HALF}),
    "split-2-bare": Scheme("k of T, 2 submodels, not credited", {"submodels": HALF}, charged_as="balanced"),
    "split-2-work": Scheme(
        "2k of T, 2 submodels: the work of k of T",
        {"submodels": HALF, "check_in": {"scheme": "balanced", "k": 2 * CHECK_INS}},
    ),
    "narrow": Scheme("k of T, a model of half the width", {"model": {"name": "mlp", "hidden": [16]}}),
    "banded": Scheme(
        "k of T, spaced, correlated noise",
        {"check_in": {"scheme": "spaced", "k": CHECK_INS}, "privacy": {"noise": {"scheme": "banded"}}},
    ),
    "split-4": Scheme("k of T, 4 submodels", {"submodels": {"scheme": "disjoint", "count": 4, "rest": "dealt"}}),
    "partial-2": Scheme("k of T, 2 submodels and a shared part", {"submodels": {**SPLIT, "count": 2}}),
    "partial-4": Scheme("k of T, 4 submodels and a shared part", {"submodels": {**SPLIT, "count": 4}}),
    "dropout": Scheme("k of T, dropout of half", {"submodels": {"scheme": "dropout", "keep": 0.5, "rest": "dealt"}}),
    "poisson-still": Scheme("Poisson sampling, no momentum", {**POISSON, "server": STILL}),
    "modelmix": Scheme("Poisson sampling, no momentum, ModelMix", {**POISSON, "server": STILL}, mixed=True),
}


@dataclass(frozen=True)
class Cell:
    """What is tuned and measured."""

    partition: str
    scheme: str
    epsilon: float | None

    def to_calibrate(self) -> Scenario:
        """The federation with the budget; neither data nor rate matter to its noise."""
        budget = {"noise_multiplier": "auto", "epsilon": self.epsilon}
        return self._scenario({"name": "synthetic", "clients": CLIENTS}, 1, 1.0, (1.0, 1.0), budget)

    def to_run(self, data_: dict[str, Any], rate: int, seed: int, noise: float) -> Scenario:
        """The federation at a rate of 2^rate (see :class:`Run`), with noise of that multiplier."""
        multiplier = {"noise_multiplier": noise}
        plan = make_plan(self._scenario(data_, seed, "auto", (1.0, 1.0), multiplier), data_["clients"])
        norm, server = plan.clipping.norm(noise), plan.scenario.server
        step = 2.0**rate * (1 - server.momentum) / plan.scenario.rounds
        return self._scenario(data_, seed, "auto", (step / norm, norm), multiplier)

    def _scenario(
        self, data_: dict[str, Any], seed: int, clip: str | float, step: tuple[float, float], noise: dict[str, Any]
    ) -> Scenario:
        scheme, (rate, norm) = SCHEMES[self.scheme], step
        raw = {**FEDERATION, **scheme.sections, "seed": seed, "data": data_}
        raw["server"] = {**raw["server"], "learning_rate": rate}
        own = raw.get("privacy", {})
        if own and noise["noise_multiplier"] != "auto":  # the bands that were best at the budget
            bands = planned(self.scheme, self.epsilon).bands
            own = {"noise": {"scheme": "banded", "bands": bands}}
            raw["check_in"] = {**raw["check_in"], "gap": bands}
        raw["privacy"] = {"clip": clip, "delta": DELTA, "amplification": scheme.amplified, **own, **noise}
        if scheme.mixed:
            width = MIXED_STEPS * rate * norm * raw["rounds"] / (data_["clients"] * CHECK_INS)
            raw["mixing"] = {"width": width, "linf_coordinates": 25}
        return reader.validate(raw, self.scheme)


@cache
def planned(scheme: str, epsilon: float) -> Plan:
    """With the noise that keeps the budget."""
    return make_plan(Cell("iid", scheme, epsilon).to_calibrate(), CLIENTS)


def noise_of(scheme: str, epsilon: float | None) -> float:
    """The noise multiplier that keeps the budget."""
    return planned(SCHEMES[scheme].charged_as or scheme, epsilon).noise_multiplier if epsilon else 0.0


def folders() -> dict[bool, Path]:
    """The features as npz files, made once: to tune on (True), with training images held out, and to test on."""
    home = Path(os.environ.get("FEDAMP_CACHE", Path.home() / ".cache" / "fedamp")) / "federations"
    result = {True: home / "tuning", False: home / "test"}
    if not (home / "done").exists():
        train, test = fashion_mnist(FEATURES)
        for tuning, folder in result.items():
            folder.mkdir(parents=True, exist_ok=True)
            kept = slice(HELD_OUT if tuning else 0, None)
            held_out = [each[:HELD_OUT] for each in train] if tuning else test
            for name, (inputs, labels) in (("train", [each[kept] for each in train]), ("test", held_out)):
                np.savez(folder / f"{name}.npz", x=inputs, y=labels)
        (home / "done").touch()
    return result


@dataclass(frozen=True)
class Run:
    """One line of the results.

    Attributes:
        rate: updates that all agree move the model by 2^rate in the whole run.
        tuning: whether the accuracy is on held-out training images.
        accuracy, last: of the average of the models, and of the last one.
        seconds: of one core.
    """

    partition: str
    scheme: str
    epsilon: float | None
    rate: int
    seed: int
    tuning: bool
    noise_multiplier: float
    accuracy: float
    last: float
    seconds: float


class Bench:
    """The runs so far, and those that are made when they are asked for."""

    def __init__(self, file: Path, quick: bool) -> None:
        self.file, self._quick, self._folders = file, quick, folders()
        lines = file.read_text().splitlines() if file.exists() else []
        self.runs = [Run(**json.loads(line)) for line in lines]

    def run(self, cell: Cell, rate: int, seed: int, tuning: bool) -> Run:
        """A run, made unless there is one."""
        asked = (cell.partition, cell.scheme, cell.epsilon, rate, seed, tuning)
        for known in self.runs:
            if (known.partition, known.scheme, known.epsilon, known.rate, known.seed, known.tuning) == asked:
                return known
        noise = noise_of(cell.scheme, cell.epsilon)
        start = process_time()
        clients = CLIENTS - HELD_OUT // RECORDS if tuning else CLIENTS
        where = {"name": "npz", "path": str(self._folders[tuning]), "clients": clients}
        section = {**where, "partition": PARTITIONS[cell.partition]}
        scenario = cell.to_run(section, rate, seed, noise)
        if self._quick:
            scenario = scenario.model_copy(update={"rounds": 3})
        accuracy, last = train(prepare(scenario))
        done = Run(**asdict(cell), rate=rate, seed=seed, tuning=tuning, noise_multiplier=noise, accuracy=accuracy,
                   last=last, seconds=round(process_time() - start, 2))  # fmt: skip
        self.runs.append(done)
        with self.file.open("a") as file:
            file.write(json.dumps(asdict(done)) + "\n")
        print(json.dumps(asdict(done)), flush=True)
        return done

    def best_rate(self, cell: Cell, start: int) -> int:
        """The rate with the highest accuracy, which no neighbour exceeds."""
        return best_power(lambda rate: self.run(cell, rate, SEEDS[0], True).accuracy, start)


def train(prepared: Prepared) -> tuple[float, float]:
    """Accuracy of the averaged and of the last model."""
    strategy = prepared.strategy(prepared.state)
    with SerialGrid(CLIENT_APP) as grid:
        for round_ in range(1, prepared.plan.scenario.rounds + 1):
            strategy.release(round_, ask(strategy, grid, round_))
    state = strategy.state
    return prepared.evaluate(state.model).metrics["accuracy"], prepared.evaluate(state.parameters).metrics["accuracy"]


def cells(partition: str) -> Iterator[Cell]:
    """All of a partition: schemes side by side, so that what is there can be compared; the extreme budgets first."""
    yield Cell(partition, "none", None)
    for epsilon in (EPSILONS[0], EPSILONS[-1], *EPSILONS[1:-1]):
        for name, scheme in SCHEMES.items():
            if scheme.private:
                yield Cell(partition, name, epsilon)


def measure(bench: Bench) -> None:
    """Everything, seed after seed; the search for a rate starts at the last budget's best."""
    best: dict[Cell, int] = {}
    for partition in PARTITIONS:
        start = dict.fromkeys(SCHEMES, 7)
        for cell in cells(partition):
            best[cell] = start[cell.scheme] = bench.best_rate(cell, start[cell.scheme])
            bench.run(cell, best[cell], SEEDS[0], False)
        for seed in SEEDS[1:]:
            for cell in cells(partition):
                bench.run(cell, best[cell], seed, False)


# --- what is shown ----------------------------------------------------------------------------------------------------


def tested(runs: Iterable[Run]) -> dict[Cell, list[float]]:
    """Test accuracies in per cent, by cell."""
    result: dict[Cell, list[float]] = defaultdict(list)
    for run in runs:
        if not run.tuning:
            result[Cell(run.partition, run.scheme, run.epsilon)].append(100 * run.accuracy)
    return result


def table(
    runs: list[Run], partition: str, schemes: Iterable[str] = tuple(SCHEMES), epsilons: Sequence[float] = EPSILONS
) -> str:
    """In Markdown: a scheme a row, with what it costs a device a check-in."""
    found = tested(runs)
    heads = [f"ε = {epsilon:g}" for epsilon in epsilons]
    lines = [f"| | {' | '.join(heads)} | work | sent |", f"| --- |{' --- |' * len(heads)} --- | --- |"]
    for name in schemes:
        scheme = SCHEMES[name]
        values = [found.get(Cell(partition, name, epsilon if scheme.private else None)) for epsilon in epsilons]
        if any(values):
            work, sent = device_cost(name)
            lines.append(f"| {scheme.words} | {' | '.join(map(_spread, values))} | {work:.0%} | {sent} |")
    seeds = {run.seed for run in runs if run.partition == partition and not run.tuning}
    caption = (
        f"Mean ± standard deviation over {len(seeds)} seeds; without ±: a single seed."
        if seeds
        else "Not measured yet."
    )
    return "\n".join([*lines, "", caption])


def _spread(values: list[float] | None) -> str:
    if not values:
        return ""
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


@cache
def device_cost(scheme: str) -> tuple[float, str]:
    """Floating-point operations of a device over those of the whole model, and bytes of the model that it receives."""
    anywhere = {"name": "synthetic", "clients": CLIENTS, "shape": [19, 3, 3]}
    epsilon = EPSILONS[0] if SCHEMES[scheme].private else None
    cost = prepare(Cell("iid", scheme, epsilon).to_run(anywhere, 0, 1, 1.0)).cost
    whole = cost if scheme == "none" else prepare(Cell("iid", "none", None).to_run(anywhere, 0, 1, 0.0)).cost
    share = cost.flops_per_record / whole.flops_per_record
    return share, amount_of_bytes(int(4 * cost.parameters_per_client))


def put_tables(runs: list[Run]) -> None:
    """All tables, each in its place."""
    strategies = Path("docs/strategies.md")
    short = table(runs, "iid", SHORT, (0.1, 1.0, 4.0))
    put_in(Path("README.md"), "iid, short", short)
    for partition in PARTITIONS:
        put_in(strategies, partition, table(runs, partition))


def put_in(page: Path, name: str, found: str) -> None:
    """Print a table, and put it where a page has its place."""
    print(f"\n{name}\n\n{found}")
    place = re.compile(f"(<!-- federations: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    page.write_text(place.sub(lambda marks: f"{marks[1]}{found}\n{marks[2]}", page.read_text()))


SHOWN = ("everybody", "balanced", "split-2", "split-2-bare", "narrow", "unamplified")
SHORT = ("none", "unamplified", "everybody", "poisson", "balanced", "banded", "split-2", "split-2-bare", "narrow")


def draw(runs: list[Run], file: Path) -> None:
    """Accuracy against epsilon, iid."""
    found = tested(runs)
    subtitle = f"Fashion-MNIST, protected: one client of {CLIENTS:,}"
    canvas, (axes,) = style.figure("accuracy with hidden randomness", subtitle, (3.0,))
    for index, name in enumerate(SHOWN):
        look = style.look(index)
        points = [(epsilon, found[cell]) for epsilon in EPSILONS if (cell := Cell("iid", name, epsilon)) in found]
        means, spread = ([function(values) for _, values in points] for function in (np.mean, np.std))
        drawn = {"color": look.color, "linestyle": look.dash, "marker": look.marker, "capsize": 3}
        axes.errorbar([epsilon for epsilon, _ in points], means, spread, label=SCHEMES[name].words, **drawn)
    if bare := found.get(Cell("iid", "none", None)):
        axes.axhline(float(np.mean(bare)), color=style.GREY, linestyle=":")
        place = (EPSILONS[0], float(np.mean(bare)))
        style.label(
            axes, f"without noise: {np.mean(bare):.1f} %", place, (0, 3), ha="left", va="bottom", color=style.GREY
        )
    axes.legend(loc="lower right", frameon=False, handlelength=3, fontsize=style.TEXT - 2)
    style.logarithmic(axes)
    limits = EPSILONS[0] / 1.2, EPSILONS[-1] * 1.2
    axes.set(xlabel="privacy budget ε (less is better)", xticks=EPSILONS, xlim=limits, ylabel="test accuracy, %")
    shown = [value for cell, values in found.items() if cell.partition == "iid" for value in values]
    axes.set_ylim(min(shown, default=80.0) - 6, max(shown, default=90.0) + 1.5)  # room for the legend, and for words
    file.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(file, dpi=220)


def main() -> None:
    """Measure what is missing, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds; the results go to a temporary folder")
    parser.add_argument("--show", action="store_true", help="tables and picture of what there is; measures nothing")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedamp-federations-")) if asked.quick else Path()
    (folder / RESULTS).parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder / RESULTS, asked.quick)
    if asked.quick:
        for name in ("balanced", "split-2"):
            bench.run(Cell("iid", name, EPSILONS[-1]), 7, SEEDS[0], False)
        print(table(bench.runs, "iid"))
    else:
        if not asked.show:
            measure(bench)
        put_tables(bench.runs)
    draw(bench.runs, folder / PICTURE)
    print(f"\n{folder / RESULTS}\n{folder / PICTURE}\n{sum(run.seconds for run in bench.runs) / 60:.0f} CPU minutes")


if __name__ == "__main__":
    main()
