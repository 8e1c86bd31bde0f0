"""Audit a scenario: attack the real code many times, and bound epsilon from below.

Canaries are units with real records and real training, present or absent in many repetitions of a federation. The
adversary knows everything about them but their hidden choices, and reads every released model. The federation is a
short form of the scenario, with the worst case for a canary. Everything that the accountant charges for stays: clipping
norms, noise multipliers, check-in, submodels, mixing. The worst case changes the records and the other units, which an
adversary may choose, and the server's optimiser, which is post-processing.

:func:`audit` is the place to begin. :mod:`fedamp.extensions.audit.planted` plays the federation, and
:mod:`fedamp.extensions.audit.bound` turns scores into a bound.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp import rng
from fedamp.base.devices import usual_state
from fedamp.engines import flower
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DataError, ScenarioError
from fedamp.extensions.audit.bound import AttackGuesses, AuditResult
from fedamp.extensions.audit.planted import PlantedFederation, records_of
from fedamp.extensions.population.account import left_units
from fedamp.federation.check_in import log_mean
from fedamp.federation.kept_answers import KEPT
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.optimizers import ServerUpdate
from fedamp.federation.plan import Plan, make_plan, privacy_units
from fedamp.federation.running import Engine
from fedamp.federation.scenario import Scenario

Vector = NDArray[np.float64]

FEWEST, LONGEST = 20, 8
_SINGLE = 16  # submodels, and rounds, that have an attack of their own
WEAKEST = 0.5  # shortest useful update of a canary, over the clipping norm
_CANDIDATES = 1000  # clients to search for one with records
_MASKS = 64  # random masks that stand for all of them (dropout): the adversary averages over these
BYSTANDERS = 3  # units beside the canaries, with updates of zero: the server must handle a cohort
# How far the noise of a round may move a coordinate of the model. The canary's gradient must stay that of the initial
# model, and float32 must show the noise to four digits.
_DRIFT = 1e-3
_STRETCH = 1e6  # length of the canary's step for a gradient of norm 1, in clipping norms


class AuditSubject(NamedTuple):
    """A federation to repeat, and the claim to test.

    Attributes:
        claim: the scenario for the audited rounds; its charge is tested.
        played: scenario that is played; its charge equals the claim.
        canaries: units that are present or absent together; their ids are 0, 1, ...
        units: of the played scenario.
    """

    claim: Plan
    played: Scenario
    canaries: int
    units: int


@usual_state()
def audit(
    scenario: Scenario,
    repetitions: int = 500,
    rounds: int = LONGEST,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> AuditResult:
    """Attack a scenario through the real server and client code.

    Args:
        scenario: validated, its paths absolute. Its seed decides everything.
        repetitions: trials of each world (canary present, canary absent); at least 20.
        rounds: maximum; a longer scenario is shortened, and its claim too.
        progress: called with the number of finished trials, and of all trials of both worlds.

    Returns:
        The guesses of each attack, with the claim that they test.

    Raises:
        InputError: a scenario that cannot be prepared or has no noise, or an argument out of range.
        FederationError: the client app failed.
    """
    if repetitions < FEWEST:
        raise ScenarioError(f"--repetitions {repetitions}: expected: at least {FEWEST}")
    if rounds < 1:
        raise ScenarioError(f"--rounds {rounds}: expected: at least 1")
    subject = subject_of(scenario, rounds)
    federation = CanaryFederation(subject)
    evidence = federation.evidence(repetitions, scenario.seed, lambda done: progress(done, 2 * repetitions))
    present = np.arange(2 * repetitions) < repetitions
    scores = attacks(np.concatenate(evidence), subject.claim)
    told = {"repetitions": repetitions, "scenario_rounds": scenario.rounds, "canary_strength": federation.strength}
    guesses = tuple(AttackGuesses(name, each, present) for name, each in scores.items())
    return AuditResult((subject.claim,), guesses, subject.canaries, told, dependent=False)


def attacks(ratios: NDArray[np.float64], plan: Plan) -> dict[str, Vector]:
    """Compute statistics by which an adversary tells whether the canary was present.

    The first one is the likelihood ratio, the strongest against correct code (Neyman, Pearson 1933). The others look
    for mistakes. Hidden choices may be drawn once for the whole run, or be always the same. Units may take part more
    often, or in other rounds, than the schedule says.

    Args:
        ratios: log-likelihood ratios, float64 [repetitions, rounds, choices].
        plan: the adversary knows its schedule and its kind of submodels.

    Returns:
        Scores [repetitions] by the attack's name; larger means present.
    """
    rounds, choices = ratios.shape[1:]
    over_rounds = plan.check_in.log_likelihood_ratio
    hidden = log_mean(ratios, axis=2)
    found = {"likelihood ratio": over_rounds(hidden)}
    if choices > 1:
        by_choice = np.stack([over_rounds(ratios[:, :, choice]) for choice in range(choices)], axis=1)
        found["one hidden choice for the whole run"] = log_mean(by_choice, axis=1)
        found["the average choice"] = over_rounds(ratios.mean(2))
        if plan.submodels.choices_are_all:
            found |= {f"submodel {choice} always": by_choice[:, choice] for choice in range(min(choices, _SINGLE))}
    if plan.check_in.is_hidden:
        found["takes part in every round"] = hidden.sum(1)
        found |= {f"takes part in round {round_ + 1}": hidden[:, round_] for round_ in range(min(rounds, _SINGLE))}
    return found


def subject_of(scenario: Scenario, rounds: int) -> AuditSubject:
    """Choose what is repeated, and what claim it tests.

    Args:
        scenario: of the audit.
        rounds: a longer scenario is shortened to these, at the same rate of check-ins.

    Raises:
        ScenarioError: a scenario without noise: it has no claim to test.
    """
    full = make_plan(scenario, privacy_units(scenario), answers=KEPT)
    if not full.is_private:
        raise ScenarioError(
            "privacy.noise_multiplier is 0: nothing is claimed, so nothing can be audited; expected: > 0"
        )
    claim = Plan(_first_rounds(full, min(rounds, scenario.rounds)), full.units, full.seed, answers=KEPT)
    canaries = scenario.privacy.group_size
    units = canaries + BYSTANDERS if claim.check_in.units_are_independent else claim.units
    played = Plan(claim.scenario, units, full.seed, answers=KEPT)
    return AuditSubject(claim, _worst_case(claim, played), canaries, played.units)


def _first_rounds(full: Plan, rounds: int) -> Scenario:
    """Return the first rounds of a plan as a scenario, with the noise of the whole plan, and without a budget."""
    whole = full.scenario.with_bands(len(full.coefficients) + 1, full.coefficients)
    noise: dict[str, Any] = {"noise_multiplier": full.noise_multiplier, "epsilon": None}
    if whole.privacy.clip == "auto":  # it depends on the number of rounds; the canary's updates are longer anyway
        noise["clip"] = full.clipping.first_norm(full.noise_multiplier)
    update: dict[str, Any] = {
        "rounds": rounds,
        "check_in": full.check_in.for_fewer_rounds(whole.rounds, rounds),
        "privacy": whole.privacy.model_copy(update=noise),
    }
    update |= {key: section.for_fewer_rounds(rounds) for key, section in whole.sections.items()}
    return whole.model_copy(update=update)


def _worst_case(claim: Plan, played: Plan) -> Scenario:
    """Return the claim's scenario with one huge step of every unit, so that updates are clipped, and a slow server."""
    before, clips = claim.scenario, max(part.clip for part in played.parts)
    rate = _DRIFT / max(part.noise_deviation / part.denominator for part in played.parts)
    update: dict[str, Any] = {
        "client": LocalTraining(loss=before.client.loss, steps=1, learning_rate=_STRETCH * max(1.0, clips)),
        "server": ServerUpdate(learning_rate=rate),
        "engine": Engine(kind="serial", device="cpu"),
    }
    steps = before.server.learning_rate / claim.expected_cohort, rate / played.expected_cohort  # of one unit
    update |= {key: section.with_steps(*steps) for key, section in before.sections.items()}
    return before.model_copy(update=update)


class _Updates(NamedTuple):
    """The possible updates of a canary in a round: clipped, one for every hidden submodel, or for some masks.

    Attributes:
        whitened: float64 [choices, coordinates], each coordinate over the variance of the noise that hides it.
        energies: float64 [choices], half the squared length of each update in standard deviations of the noise.
        strength: length over the clipping norm, in the part where it is smallest on average.
    """

    whitened: Vector
    energies: Vector
    strength: float


class CanaryFederation:
    """The audited federation, to be played again and again with and without its canaries.

    All canaries hold the records of the first client that has any, and has not left the scenario's population: units of
    a group may be alike. The other units answer zeros, so nobody else's records are used.

    Args:
        subject: with the scenario that is played.

    Attributes:
        strength: length of the canary's update over the clipping norm, in the part where it is smallest.

    Raises:
        DataError: no client has records, or the canary's update is too short for an audit to see a leak.
    """

    def __init__(self, subject: AuditSubject) -> None:
        self._rounds, self._canaries = subject.played.rounds, np.arange(subject.canaries)
        self._federation = PlantedFederation(subject.played, subject.units, subject.canaries)
        self._plan, dataset = self._federation.prepared.plan, self._federation.dataset
        clients = np.arange(min(_CANDIDATES, dataset.num_clients))
        filled = clients[(dataset.sizes(clients) > 0) & ~np.isin(clients, list(left_units(subject.claim.scenario)))]
        if not len(filled):
            found = f"none of the first {_CANDIDATES} clients has records and has not left"
            raise DataError(f"data: {found}, so none can be a canary")
        self._records = records_of(dataset, int(filled[0]))
        self._updates: dict[tuple[int, float, tuple[int, ...]], _Updates] = {}
        self.strength = self._updates_in(1).strength
        if self.strength < WEAKEST:
            raise DataError(
                f"data: the update of client {filled[0]}, the canary, is {self.strength:.2g} of the clipping "
                f"norm in some part of the model; expected: at least {WEAKEST:g} (records and a model with a gradient)"
            )

    def evidence(
        self, repetitions: int, seed: int, progress: Callable[[int], None] = lambda done: None
    ) -> tuple[Vector, Vector]:
        """Play the federation with the canaries present, and absent, and collect the evidence of the adversary.

        Args:
            repetitions: of each world.
            seed: decides all repetitions.
            progress: called with the number of finished repetitions of both worlds.

        Returns:
            Two arrays of shape [repetitions, rounds, choices]: log-likelihood ratios of the release of a round, with
            the canary in it under this hidden choice (submodel, mask) against without it.

        Raises:
            FederationError: the client app failed.
        """
        worlds: list[Vector] = []
        with flower.chatter_to(Path(os.devnull), "fedamp"):  # thousands of rounds need no log
            for present in (True, False):
                world = []
                for number in range(repetitions):
                    self._federation.restart(rng.public_seed(seed, f"audit {present} {number}"))
                    with self._federation.planted(self._canaries, self._records if present else None):
                        world.append(self._run())
                    progress(len(worlds) * repetitions + number + 1)
                worlds.append(np.array(world))
        return worlds[0], worlds[1]

    def _run(self) -> Vector:
        """Play all rounds, and read their releases: log-likelihood ratios of shape [rounds, choices]."""
        rounds = range(1, self._rounds + 1)
        products, energies = np.stack([self._round(round_) for round_ in rounds]).swapaxes(0, 1)
        with np.errstate(all="ignore"):  # infinite values are evidence of a defect too
            seen, share = self._plan.scenario.privacy.noise.matched_filter(products, self._plan.coefficients)
            evidence: Vector = np.nan_to_num(seen - share[:, None] * energies, nan=np.inf)
        return evidence

    def _round(self, round_: int) -> Vector:
        """Play a round: the products of its release with the possible updates, and their energies, [2, choices]."""
        release = self._federation.release(round_, self._federation.collect(round_))
        updates = self._updates_in(round_)
        with np.errstate(all="ignore"):  # infinite values are evidence of a defect too
            noisy_sum = _flat_vector(release.noisy_sums) / release.clip_scale
            return np.stack([updates.whitened @ noisy_sum, updates.energies])

    def _updates_in(self, round_: int) -> _Updates:
        """Compute the possible updates in a round at the initial model, by the client's own code."""
        plan = self._plan
        mixing = sum(section.hidden_variance(round_) for section in plan.sections.values())
        choices = plan.submodels.possible_draws(_MASKS, round_)
        key = plan.submodels.cut_index(round_), mixing, tuple(submodel for _, submodel in choices)
        if key in self._updates:
            return self._updates[key]
        with self._federation.planted(self._canaries, self._records):
            sent = np.stack([self._update(round_, *choice) for choice in choices])
        model = self._federation.prepared.pipeline.model
        sizes = [int(np.prod(shape)) for shape in model.shapes.values()]
        part_of = np.repeat([model.part_of[name] for name in model.shapes], sizes)  # by coordinate
        lengths = [np.linalg.norm(sent[:, part_of == i], axis=1) / part.clip for i, part in enumerate(plan.parts)]
        for index, length in enumerate(lengths):  # the adversary assumes correct clipping
            sent[:, part_of == index] /= np.maximum(length, 1.0)[:, None]
        rate = plan.optimizer.learning_rate
        # Each coordinate of the sum is hidden by noise, and by the least that sections add.
        variances = [part.noise_deviation**2 + mixing / (rate / part.denominator) ** 2 for part in plan.parts]
        whitened = sent / np.array(variances)[part_of]
        strength = float(min(np.mean(length) for length in lengths))
        self._updates[key] = _Updates(whitened, (whitened * sent).sum(1) / 2, strength)
        return self._updates[key]

    def _update(self, round_: int, seed: bytes, submodel: int) -> Vector:
        """Train unit 0 with a seed and a submodel, and return its clipped update as one vector."""
        clips = tuple(part.clip for part in self._plan.parts)
        arrays = self._federation.prepared.state.parameters
        return _flat_vector(
            self._federation.node.train(RoundOrder("", round_, clips, rows([0], [seed], submodel), arrays)).sums
        )


def _flat_vector(arrays: Mapping[str, NDArray[Any]]) -> Vector:
    """Return a model's arrays as one vector, float64."""
    return np.concatenate([array.ravel() for array in arrays.values()], dtype=np.float64)
