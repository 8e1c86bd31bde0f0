"""Tune privately: the trials, and the run with the best settings, are paid from one budget.

Every trial is a run on all people, with more noise than the run that follows. For the same cost, a sum over all people
has less noise than one over a tenth of them (docs/research/filter.md has the factor). More noise asks for smaller
steps: ``privacy.clip: auto`` shortens updates by its own rule. With another clip the server's rate is divided by the
factor of the noise, so that the noise in a trial's model is that of the run. A trial is judged by what it releases: its
evaluation on held-out records of people, which is charged to it.

:func:`tune` is the place to begin; :mod:`fedamp.extensions.tune.sweep` plays the trials.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from fedamp.accounting import Bounds, Compose, Repeat
from fedamp.accounting.arithmetic import delta_left
from fedamp.base.files import FileRecord, write_atomically
from fedamp.base.version import version
from fedamp.errors import FedampError, RunFolderError, ScenarioError
from fedamp.extensions.evaluation.section import ClientEvaluation, Evaluated
from fedamp.extensions.tune.sweep import (
    RUNS,
    RunSettings,
    Sweep,
    Watcher,
    checked,
    folder_name,
    points,
    random_points,
    sweep,
)
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.scenario import Scenario
from fedamp.runs.around import check_several
from fedamp.runs.folder import read_summary
from fedamp.runs.records import Bracket

TUNED = Path("tuned")
FILE, CHOSEN = "tune.json", "chosen.yaml"
SHARE = 0.2  # of the budget, in squares of Gaussian parameters, for all trials: the run then has 1.12 times the noise
SCORE = "score"
_NOT_TUNED = ("name", "seed", "known_seed", "data", "privacy", "evaluation")


class TrialRecord(FileRecord):
    """The release of a trial about itself.

    Attributes:
        settings: its values of the grid's keys.
        score: as released, with noise; None for a trial that diverged.
        lower, upper: interval of 95 % of the noise; None for a trial that diverged.
    """

    kind: ClassVar[str] = "trial"
    settings: RunSettings
    score: float | None
    lower: float | None
    upper: float | None


class TuneRecord(FileRecord):
    """The content of ``tune.json``: all trials, the choice, and what everything costs a person.

    Attributes:
        share: of the budget, for all trials.
        trial_noise, noise: noise multipliers of a trial, and of the run with the chosen settings.
        epsilon, delta: of the trials and that run together.
        trials: in the order of the grid.
        chosen: settings of the trial with the highest score.
    """

    kind: ClassVar[str] = "tuning"
    format: Literal["fedamp tune 1"] = "fedamp tune 1"
    written_by: str
    scenario: str
    share: Annotated[float, Field(gt=0, lt=1)]
    trial_noise: float
    noise: float
    epsilon: Bracket
    delta: float
    trials: tuple[TrialRecord, ...]
    chosen: RunSettings


class Tuned(NamedTuple):
    """A tuning that has ended.

    Attributes:
        record: ``tune.json``.
        folder: of the trials.
        scenario: with the chosen settings, and the noise that is left.
    """

    record: TuneRecord
    folder: Path
    scenario: Scenario


class BudgetSplit(NamedTuple):
    """The division of a budget between trials and the run after them.

    Attributes:
        trial_noise: noise multiplier of each trial.
        noise: that of the run.
        epsilon: what all of them cost together.
    """

    trial_noise: float
    noise: float
    epsilon: Bounds


def split(plan: Plan, trials: int, share: float) -> BudgetSplit:
    """Calibrate the noise with which trials spend a share of the budget, and the run after them the rest.

    Costs of Gaussian uses add up in squares of 1 / noise. So a trial has sqrt(trials (1 - share) / share) times the
    noise of the run; one factor of both is calibrated on the exact composition.

    Args:
        plan: of the run.
        trials: their number.
        share: of the budget, for all trials, in (0, 1).

    Raises:
        ScenarioError: no noise keeps the budget.
    """
    privacy = plan.scenario.privacy
    ratio, delta = math.sqrt(trials * (1 - share) / share), delta_left(privacy.delta, trials + 1)

    def together(noise: float) -> Compose:
        trial, run = (plan.charge.with_noise(times * noise, privacy.group_size) for times in (ratio, 1.0))
        return Compose((Repeat(trial, trials), run))

    assert privacy.epsilon is not None, "checked"
    try:
        noise = plan.answers.noise_multiplier(together, privacy.epsilon, delta, privacy.precision)
    except ValueError as error:
        why = plan.charge.keys_beyond(privacy.epsilon, plan.scenario.rounds) or error
        raise ScenarioError(f"tune: no noise keeps privacy.epsilon {privacy.epsilon:g}: {why}") from None
    return BudgetSplit(ratio * noise, noise, plan.answers.epsilon(together(noise), delta, privacy.precision))


def tune(
    load: Callable[[RunSettings], Scenario],
    grid: Mapping[str, Any],
    out: Path | None = None,
    share: float = SHARE,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    trials: int | None = None,
) -> Tuned:
    """Try every combination of a grid's values, and choose one; see :func:`fedamp.extensions.tune.functions.tune`.

    Args:
        load: gives the scenario with some values changed.
        grid: values by key.
        out: folder; default: ``tuned/NAME``.
        share: of the budget, for all trials, in (0, 1).
        jobs: trials at once; default: the number of cores.
        watcher: follows every round and trial.
        trials: number of combinations, drawn from the scenario's public seed; default: all.

    Raises:
        ScenarioError: the scenario cannot be tuned, or not by these keys.
        RunFolderError: the folder holds a trial of another grid.
        FedampError: trials are unfinished, or every trial diverged.
    """
    lists = checked(grid)
    base = load({})
    settings = points(lists) if trials is None else random_points(lists, trials, base.seed)
    scenarios = [load(each) for each in settings]
    plan = _checked_plan(base, scenarios, lists, share)
    noise, folder = split(plan, len(settings), share), out or TUNED / base.name
    trials_there = {ledger.parent.name for ledger in (folder / RUNS).glob("*/ledger.json")}
    if others := sorted(trials_there - {folder_name(each, lists) for each in settings}):
        found = f"{folder}: it holds a trial of another grid, {others[0]}, whose cost would not be counted"
        raise RunFolderError(f"{found}; expected: another folder with --out, and fedamp total of both")
    asked = [_with_noise(each, noise.noise) for each in scenarios]
    tried, run = (make_plan(each, plan.units, answers=KEPT) for each in (_trial_scenario(base, noise), asked[0]))
    for each, multiplier in ((tried, noise.trial_noise), (run, noise.noise)):
        if each.charge.mechanism != plan.charge.with_noise(multiplier, base.privacy.group_size):
            raise ScenarioError(
                "tune: a round's cost follows from its rate or noise; expected: no mixing, no auto bands"
            )
    if not folder.exists():
        check_several([(tried, len(settings)), (run, 1)])
    swept = sweep(lambda each: _trial_scenario(load(each), noise), lists, folder, jobs, watcher, chosen=settings)
    records = _trial_records(swept)
    best = max((each for each in records if each.score is not None), key=lambda each: each.score or 0.0, default=None)
    if best is None:
        raise FedampError(f"{swept.folder}: every trial diverged; expected: smaller rates, or more people")
    chosen = asked[settings.index(best.settings)]
    record = TuneRecord(
        written_by=f"fedamp {version()}",
        scenario=base.name,
        share=share,
        trial_noise=noise.trial_noise,
        noise=noise.noise,
        epsilon=Bracket.of(noise.epsilon),
        delta=base.privacy.delta,
        trials=records,
        chosen=best.settings,
    )
    write_atomically(swept.folder / CHOSEN, chosen.to_yaml().encode())
    record.write(swept.folder / FILE)
    return Tuned(record, swept.folder, chosen)


def _checked_plan(base: Scenario, scenarios: list[Scenario], grid: Mapping[str, list[Any]], share: float) -> Plan:
    """Check that a scenario can be tuned by these keys, and return its plan.

    Raises:
        ScenarioError: it cannot, for example because settings cost differently.
    """
    if not 0 < share < 1:
        raise ScenarioError(f"--share: got {share:g}; expected: the trials' share of the budget, between 0 and 1")
    if base.known_seed:
        raise ScenarioError("tune: with one known seed all runs have the same noise; expected: known_seed: false")
    if base.privacy.noise_multiplier != "auto":
        raise ScenarioError("tune: expected: privacy.noise_multiplier auto, and privacy.epsilon for all of it")
    judged = base.side_sum
    if not isinstance(judged, ClientEvaluation) or not judged.at_end or SCORE not in judged.metrics:
        raise ScenarioError("tune: nothing judges a trial; expected: evaluation with every: end and the metric score")
    if wrong := [key for key in grid if key.partition(".")[0] in _NOT_TUNED]:
        raise ScenarioError(f"tune: {wrong[0]} cannot be tuned; expected: keys of model, client, server or submodels")
    plan = make_plan(base, privacy_units(base), answers=KEPT)
    costs = [make_plan(each, plan.units).charge.with_noise(1.0, base.privacy.group_size) for each in (base, *scenarios)]
    if any(cost != costs[0] for cost in costs):
        raise ScenarioError(f"tune: {', '.join(grid)}: settings cost differently; expected: keys that change no cost")
    return plan


def _with_noise(scenario: Scenario, noise: float) -> Scenario:
    """Return the scenario with a noise multiplier in place of a budget."""
    privacy = scenario.privacy.model_copy(update={"noise_multiplier": noise, "epsilon": None})
    return scenario.model_copy(update={"privacy": privacy})


def _trial_scenario(scenario: Scenario, noise: BudgetSplit) -> Scenario:
    """Return a trial; it is judged by its charged evaluation alone, so no model is tested on public records."""
    federation, server = scenario.federation.model_copy(update={"evaluate_every": 0}), scenario.server
    if server.is_linear and scenario.privacy.clip != "auto":  # adam's steps have their size whatever noise is
        rate = server.learning_rate * noise.noise / noise.trial_noise
        server = server.model_copy(update={"learning_rate": rate})
    changes = {"name": f"{scenario.name[:72]}-trial", "federation": federation, "server": server}
    return _with_noise(scenario.model_copy(update=changes), noise.trial_noise)


def _trial_records(swept: Sweep) -> tuple[TrialRecord, ...]:
    """Return what the trials released.

    Raises:
        FedampError: one may still come to its end.
    """
    found, left = [], []
    for each in swept.runs:
        summary = read_summary(each.folder) if (each.folder / "summary.json").is_file() else None
        judged = summary.side_release if each.run and summary else None
        score = judged.of(SCORE) if isinstance(judged, Evaluated) else None
        if score is None and (summary is None or summary.stopped_because != "diverged"):
            left.append(each.error or f"{each.folder.name} is not finished")
        ends = (None, None, None) if score is None else (score.value, score.lower, score.upper)
        found.append(TrialRecord(settings=each.settings, score=ends[0], lower=ends[1], upper=ends[2]))
    if left:
        raise FedampError(f"{swept.folder}: {len(left)} of {len(found)} trials are unfinished ({left[0]})")
    return tuple(found)
