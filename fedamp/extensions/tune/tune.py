"""Tune privately: the trials, and the run with the best settings, are paid from one budget.

Every trial is a run on all people, with more noise than the run that follows. For the same cost, a sum over all people
has less noise than one over a tenth of them (docs/research/filter.md has the factor). More noise asks for smaller
steps: ``privacy.clip: auto`` shortens updates by its own rule. With another clip the server's rate is divided by the
factor of the noise, so that the noise in a trial's model is that of the run. A trial is judged by what it releases: its
evaluation on held-out records of people, which is charged to it.

Successive halving (Jamieson, Talwalkar 2016) plays trials in stages. Each stage keeps the best settings of the stage
before it, with less noise: the stages have equal parts of the trials' budget. What a stage spends more of is privacy,
and not rounds: the best rates of a shorter run may be others.

:func:`tune` is the place to begin; :mod:`fedamp.extensions.tune.sweep` plays the trials.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
from fedamp.runs.folder import read_summary
from fedamp.runs.records import Bracket
from fedamp.server.observers import check_several

TUNED = Path("tuned")
FILE, CHOSEN = "tune.json", "chosen.yaml"
STAGE = "stage"
"""The key of a trial's stage among its settings, where there are several: each stage's trials are runs of one sweep."""
SHARE = 0.2  # of the budget, in squares of Gaussian parameters, for all trials: the run then has 1.12 times the noise
SCORE = "score"
_NOT_TUNED = ("name", "seed", "known_seed", "data", "privacy", "evaluation")


class TrialRecord(FileRecord):
    """The release of a trial about itself.

    Attributes:
        settings: its values of the grid's keys.
        score: as released, with noise; None for a trial that diverged.
        lower, upper: interval of 95 % of the noise; None for a trial that diverged.
        stage: from 1; None: there is one.
    """

    kind: ClassVar[str] = "trial"
    settings: RunSettings
    score: float | None
    lower: float | None
    upper: float | None
    stage: int | None = None


class TuneRecord(FileRecord):
    """The content of ``tune.json``: all trials, the choice, and what everything costs a person.

    Attributes:
        share: of the budget, for all trials.
        trial_noise, noise: noise multipliers of a trial, and of the run with the chosen settings.
        epsilon, delta: of the trials and that run together.
        trials: in the order of the grid, stage by stage.
        chosen: settings of the trial with the highest score in the last stage.
        stage_noise: noise multiplier of a trial in each stage; ``trial_noise`` is the first. None: there is one.
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
    stage_noise: tuple[float, ...] | None = None


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
        stages: noise multiplier of a trial in each stage.
        noise: that of the run.
        epsilon: what all of them cost together.
    """

    stages: tuple[float, ...]
    noise: float
    epsilon: Bounds


def stage_sizes(trials: int, halving: int | None) -> list[int]:
    """Count the trials of each stage: one part in ``halving`` is kept, as long as there is something to choose.

    Args:
        trials: of the first stage.
        halving: None: there is no other stage.

    Raises:
        ScenarioError: the number of trials gives no second stage.

    >>> stage_sizes(9, 3), stage_sizes(10, 3), stage_sizes(9, None)
    ([9, 3], [10, 4, 2], [9])
    """
    sizes = [trials]
    if halving is None:
        return sizes
    if not 2 <= halving < trials:
        raise ScenarioError(f"halving: got {halving} with {trials} trials; expected: at least 2, and more trials")
    while (kept := math.ceil(sizes[-1] / halving)) > 1:
        sizes.append(kept)
    return sizes


def split(plan: Plan, stages: Sequence[int], share: float) -> BudgetSplit:
    """Calibrate the noise with which trials spend a share of the budget, and the run after them the rest.

    Costs of Gaussian uses add up in squares of 1 / noise. Each of S stages has an equal part of the share. So a trial
    in a stage of n has sqrt(n S (1 - share) / share) times the noise of the run; one factor of all is calibrated on
    the exact composition. The noise of all is fixed before the first trial, so the composition holds for any choice of
    the settings that are kept (docs/research/accounting.md).

    Args:
        plan: of the run.
        stages: number of trials in each.
        share: of the budget, for all trials, in (0, 1).

    Raises:
        ScenarioError: no noise keeps the budget.
    """
    privacy = plan.scenario.privacy
    ratios = [math.sqrt(trials * len(stages) * (1 - share) / share) for trials in stages]
    delta = delta_left(privacy.delta, sum(stages) + 1)

    def together(noise: float) -> Compose:
        *trials, run = (plan.charge.with_noise(times * noise, privacy.group_size) for times in (*ratios, 1.0))
        return Compose((*map(Repeat, trials, stages), run))

    assert privacy.epsilon is not None, "checked"
    try:
        noise = plan.answers.noise_multiplier(together, privacy.epsilon, delta, privacy.precision)
    except ValueError as error:
        why = plan.charge.keys_beyond(privacy.epsilon, plan.scenario.rounds) or error
        raise ScenarioError(f"tune: no noise keeps privacy.epsilon {privacy.epsilon:g}: {why}") from None
    epsilon = plan.answers.epsilon(together(noise), delta, privacy.precision)
    return BudgetSplit(tuple(ratio * noise for ratio in ratios), noise, epsilon)


def tune(
    load: Callable[[RunSettings], Scenario],
    grid: Mapping[str, Any],
    out: Path | None = None,
    share: float = SHARE,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    trials: int | None = None,
    halving: int | None = None,
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
        halving: one part in so many is kept from stage to stage (:func:`stage_sizes`); default: one stage.

    Raises:
        ScenarioError: the scenario cannot be tuned, or not by these keys.
        RunFolderError: the folder holds a trial of another grid.
        FedampError: trials are unfinished, or every trial diverged.
    """
    lists, base = checked(grid), load({})
    settings = points(lists) if trials is None else random_points(lists, trials, base.seed)
    sizes, scenarios = stage_sizes(len(settings), halving), [load(each) for each in settings]
    plan = _checked_plan(base, scenarios, lists, share)
    noise, folder = split(plan, sizes, share), out or TUNED / base.name
    planned = [_with_noise(scenarios[0], noise.noise), *(_trial_scenario(base, each, noise) for each in noise.stages)]
    plans = [make_plan(each, plan.units, answers=KEPT) for each in planned]
    for each, multiplier in zip(plans, (noise.noise, *noise.stages), strict=True):
        if each.charge.mechanism != plan.charge.with_noise(multiplier, base.privacy.group_size):
            raise ScenarioError(
                "tune: a round's cost follows from its rate or noise; expected: no mixing, no auto bands"
            )
    if not folder.exists():
        check_several(list(zip(plans, (1, *sizes), strict=True)))
    keys = {STAGE: list(range(1, len(sizes) + 1)), **lists} if len(sizes) > 1 else lists

    def in_stage(stage: int, kept: list[RunSettings]) -> list[RunSettings]:
        return [{STAGE: stage, **each} if keys is not lists else each for each in kept]

    def trial(each: RunSettings) -> Scenario:
        return _trial_scenario(load(_without_stage(each)), noise.stages[each.get(STAGE, 1) - 1], noise)

    kept, asked, records = settings, list[RunSettings](), list[TrialRecord]()
    for stage, left in enumerate((*sizes[1:], 1), start=1):
        asked += in_stage(stage, kept)
        later = [each for following in range(stage + 1, len(sizes) + 1) for each in in_stage(following, settings)]
        _check_folder(folder, {folder_name(each, keys) for each in asked + later})
        records = _trial_records(sweep(trial, keys, folder, jobs, watcher, chosen=asked))
        judged = [each for each in records[-len(kept) :] if each.score is not None]
        if not judged:
            raise FedampError(f"{folder}: every trial diverged; expected: smaller rates, or more people")
        best = [each.settings for each in sorted(judged, key=lambda each: each.score or 0.0, reverse=True)[:left]]
        kept = [each for each in settings if each in best]
        if len(kept) == 1:
            break
    chosen = _with_noise(scenarios[settings.index(kept[0])], noise.noise)
    record = TuneRecord(
        written_by=f"fedamp {version()}",
        scenario=base.name,
        share=share,
        trial_noise=noise.stages[0],
        noise=noise.noise,
        epsilon=Bracket.of(noise.epsilon),
        delta=base.privacy.delta,
        trials=tuple(records),
        chosen=kept[0],
        stage_noise=noise.stages if halving else None,
    )
    write_atomically(folder / CHOSEN, chosen.to_yaml().encode())
    record.write(folder / FILE)
    return Tuned(record, folder, chosen)


def _without_stage(settings: RunSettings) -> RunSettings:
    """Return a trial's values of the grid's keys alone."""
    return {key: value for key, value in settings.items() if key != STAGE}


def _check_folder(folder: Path, planned: set[str]) -> None:
    """Refuse a folder with a trial that is not planned.

    Raises:
        RunFolderError: it holds one.
    """
    there = {ledger.parent.name for ledger in (folder / RUNS).glob("*/ledger.json")}
    if others := sorted(there - planned):
        found = f"{folder}: it holds a trial of another grid, {others[0]}, whose cost would not be counted"
        raise RunFolderError(f"{found}; expected: another folder with --out, and fedamp total of both")


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


def _trial_scenario(scenario: Scenario, multiplier: float, noise: BudgetSplit) -> Scenario:
    """Return a trial; it is judged by its charged evaluation alone, so no model is tested on public records."""
    federation, server = scenario.federation.model_copy(update={"evaluate_every": 0}), scenario.server
    if server.is_linear and scenario.privacy.clip != "auto":  # adam's steps have their size whatever noise is
        server = server.model_copy(update={"learning_rate": server.learning_rate * noise.noise / multiplier})
    changes = {"name": f"{scenario.name[:72]}-trial", "federation": federation, "server": server}
    return _with_noise(scenario.model_copy(update=changes), multiplier)


def _trial_records(swept: Sweep) -> list[TrialRecord]:
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
        own, stage = _without_stage(each.settings), each.settings.get(STAGE)
        found.append(TrialRecord(settings=own, score=ends[0], lower=ends[1], upper=ends[2], stage=stage))
    if left:
        raise FedampError(f"{swept.folder}: {len(left)} of {len(found)} trials are unfinished ({left[0]})")
    return found
