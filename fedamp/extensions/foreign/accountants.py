"""Read events of other people's accountants as our mechanisms, and offer our accountant behind their interfaces.

A library is imported where it is asked for. An event means nothing without its neighbouring relation: both go together,
in both directions. Under substitution (``REPLACE_ONE``) they do not suffice: dp-accounting 0.6 reads the noise
multiplier of one event in two ways. Its ``RdpAccountant`` takes it relative to the change (twice a contribution), its
``PLDAccountant`` relative to a contribution. So ``GaussianDpEvent(1.0)`` costs 4.73 at delta 1e-5 by the one and 10.0
by the other. There the accountant has to be named.

An event that has no exact mechanism here is refused, never charged by guess.
"""

import math
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from fedamp import accounting as events
from fedamp.accounting.bounds import check_count
from fedamp.accounting.mechanism import largest_loss_of
from fedamp.extensions.batches.mechanisms import WithoutReplacement

METHOD = "fedamp"  # the name by which other tools know the accountant

ZERO_OUT, ADD_REMOVE, SUBSTITUTION = events.Relation
_NAMES = {ZERO_OUT: "REPLACE_SPECIAL", ADD_REMOVE: "ADD_OR_REMOVE_ONE", SUBSTITUTION: "REPLACE_ONE"}

AccountantName = Literal["rdp", "pld"]


def to_dp_accounting(mechanism: events.Mechanism, accountant: AccountantName | None = None) -> tuple[Any, Any]:
    """Return the ``dp_accounting.DpEvent`` of a mechanism, and the relation that its accountant is to have.

    Args:
        mechanism: what was released.
        accountant: which of dp-accounting's is to read it; has to be named under substitution.

    Returns:
        The event and a ``dp_accounting.NeighboringRelation``.

    Raises:
        ValueError: dp-accounting has no event for it (allocation, submodels, ModelMix, ...), or no accountant is named.
    """
    import dp_accounting as dp

    event, name = (
        _write_event(mechanism, _noise_ratio(mechanism.relation, accountant)),
        _NAMES[mechanism.relation or ZERO_OUT],
    )
    return event, dp.NeighboringRelation[name]


def from_dp_accounting(event: Any, relation: Any, accountant: AccountantName | None = None) -> events.Mechanism:
    """Return the mechanism of a ``dp_accounting.DpEvent`` under a ``dp_accounting.NeighboringRelation``.

    Args:
        event: what was released.
        relation: which neighbours.
        accountant: as whose input it is to be read; has to be named under substitution.

    Raises:
        ValueError: there is no mechanism for it, or not under this relation, or no accountant is named.
    """
    ours = {name: each for each, name in _NAMES.items()}
    if getattr(relation, "name", None) not in ours:
        raise ValueError(f"relation must be a dp_accounting.NeighboringRelation, got {relation!r}")
    return _read_event(event, ours[relation.name], _noise_ratio(ours[relation.name], accountant))


def _noise_ratio(relation: events.Relation | None, accountant: AccountantName | None) -> int:
    """Return by what our noise multipliers, which are relative to a contribution, exceed dp-accounting's."""
    if relation is not SUBSTITUTION:
        return 1
    if accountant not in ("rdp", "pld"):
        needed = 'accountant must be "rdp" or "pld" under substitution, where they read one event differently'
        raise ValueError(f"{needed}, got {accountant!r}")
    return 2 if accountant == "rdp" else 1


def _write_event(mechanism: events.Mechanism, change: int) -> Any:
    """Write a mechanism as an event; ``change`` is that of :func:`_noise_ratio`."""
    import dp_accounting as dp

    match mechanism:
        case events.Gaussian(noise):
            return dp.GaussianDpEvent(noise / change)
        case events.Laplace(scale):
            return dp.LaplaceDpEvent(scale / change)
        case events.RandomisedResponse(probability):
            if mechanism.relation is not SUBSTITUTION:  # there, a zeroed record answers at random
                raise ValueError(f"dp-accounting means another randomised response under {mechanism.relation}")
            return dp.RandomizedResponseDpEvent(noise_parameter=2 * (1 - probability), num_buckets=2)
        case events.NotPrivate():
            return dp.NonPrivateDpEvent()
        case events.Poisson(inner, rate):
            return dp.PoissonSampledDpEvent(rate, _write_event(inner, change))
        case WithoutReplacement(inner, batch, population, 1):
            return dp.SampledWithoutReplacementDpEvent(
                population, batch, _write_event(inner.under_substitution(), change)
            )
        case events.Repeat(_, 0):
            return dp.NoOpDpEvent()
        case events.Repeat(inner, times):
            return dp.SelfComposedDpEvent(_write_event(inner, change), times)
        case events.Compose(parts):
            return dp.ComposedDpEvent([_write_event(part, change) for part in parts])
    raise ValueError(f"dp-accounting has no event for {type(mechanism).__name__}")


def _read_event(event: Any, relation: events.Relation, change: int, in_batch: bool = False) -> events.Mechanism:
    """Read an event as a mechanism.

    Args:
        event: of dp-accounting.
        relation: which neighbours.
        change: of :func:`_noise_ratio`.
        in_batch: whether it is a batch's release, written for zero-out and charged for substitution.
    """
    from dp_accounting import dp_event as dp

    if in_batch:
        relation = ZERO_OUT
    match event:
        case dp.NoOpDpEvent():
            return events.NOTHING
        case dp.NonPrivateDpEvent():
            return events.NotPrivate()
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return events.Gaussian(change * noise, relation=relation) if noise else events.NotPrivate()
        case dp.LaplaceDpEvent(noise_multiplier=scale):
            return events.Laplace(change * scale, relation=relation) if scale else events.NotPrivate()
        case dp.RandomizedResponseDpEvent(num_buckets=1):
            return events.NOTHING
        case dp.RandomizedResponseDpEvent(noise_parameter=0):
            return events.NotPrivate()
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=2) if in_batch or relation is SUBSTITUTION:
            return events.RandomisedResponse(1 - noise / 2, relation=relation)
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=answers) if (
            not in_batch and relation is not ADD_REMOVE
        ):
            true, other = 1 - noise + noise / answers, noise / answers
            present, absent = (true, other, 1 - true - other), (other, true, 1 - true - other)
            if relation is ZERO_OUT:  # a zeroed record answers at random
                present, absent = (true, 1 - true, 0.0), (1 / answers, 1 - 1 / answers, 0.0)
            return events.FiniteOutcomes(present, absent, relation=relation)
        case dp.DiscreteLaplaceDpEvent(noise_parameter=decay, sensitivity=most):
            return _discrete_laplace(decay, most, relation) if decay else events.NotPrivate()
        case dp.MixtureOfGaussiansDpEvent(standard_deviation=deviation, sensitivities=shifts, sampling_probs=weights):
            if not any(shifts) or not deviation:
                return events.NotPrivate() if any(shifts) else events.NOTHING
            return events.GaussianMixture([shift / deviation for shift in shifts], weights, relation=relation)
        case dp.PoissonSampledDpEvent(sampling_probability=0):
            return events.NOTHING
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=dp.GaussianDpEvent(noise_multiplier=noise)) if (
            noise and relation is SUBSTITUTION
        ):
            return events.SubstitutedPoissonGaussian(change * noise, rate)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return events.Poisson(_read_event(inner, relation, change, in_batch), rate)
        case dp.TruncatedSubsampledGaussianDpEvent():
            return _truncated_sample(event, relation, change)
        case dp.SampledWithoutReplacementDpEvent(source_dataset_size=population, sample_size=batch, event=inner):
            if relation is not SUBSTITUTION:
                raise ValueError(f"batches without replacement are for REPLACE_ONE, got {_NAMES[relation]}")
            return WithoutReplacement(_read_event(inner, relation, change, in_batch=True), batch, population)
        case dp.SelfComposedDpEvent(event=inner, count=times):
            return events.Repeat(_read_event(inner, relation, change, in_batch), times)
        case dp.ComposedDpEvent(events=parts):
            return (
                events.Compose([_read_event(part, relation, change, in_batch) for part in parts])
                if parts
                else events.NOTHING
            )
    match type(event).__name__:  # events that dp-accounting 0.6 does not have yet
        case "EpsilonDeltaDpEvent":
            return events.Approximate(event.epsilon, event.delta, relation=relation)
        case "ExponentialMechanismDpEvent" | "PermuteAndFlipDpEvent":
            return events.Approximate(event.epsilon, relation=relation)
    raise ValueError(f"there is no mechanism for {type(event).__name__} under {_NAMES[relation]}")


def _discrete_laplace(decay: float, most: int, relation: events.Relation) -> events.Mechanism:
    """Return the law of a whole number with noise of probability ``tanh(decay / 2) exp(-decay |x|)``.

    A contribution is at most ``most``. Outside of the two means the likelihood ratio is constant.
    """
    distance = most * (2 if relation is SUBSTITUTION else 1)
    outside = 1 / (1 + math.exp(-decay))
    between = [math.tanh(decay / 2) * math.exp(-decay * x) for x in range(1, distance)]
    absent = [outside, *between, outside * math.exp(-decay * distance)]
    return events.FiniteOutcomes(absent[::-1], absent, relation=relation)


def _truncated_sample(event: Any, relation: events.Relation, change: int) -> events.Mechanism:
    """Charge a Poisson sample of which at most B records are kept, at random.

    Suppose that it is known whether B others are sampled. If not, it is Poisson sampling. If so, B - 1 of the kept
    records, and one more, are a random choice of others; the person, if sampled and kept, replaces that one: a change
    of two contributions. The chance of that, given B others, is rate * E[B / (others + 1)]. (dp-accounting 0.6 charges
    a distance of four for it.)
    """
    from scipy.stats import binom

    rate, noise = event.sampling_probability, change * event.noise_multiplier
    if not rate or not event.truncated_batch_size or not event.dataset_size:
        return events.NOTHING
    if not noise:
        return events.NotPrivate()
    if relation is ZERO_OUT:
        raise ValueError("a truncated Poisson sample is not charged under REPLACE_SPECIAL")
    many, others = event.truncated_batch_size, event.dataset_size - 1
    chances = float(binom.cdf(many - 1, others, rate)), float(binom.sf(many - 1, others, rate))
    kept = float(binom.sf(many, others + 1, rate)) * many / (others + 1) / chances[1] if chances[1] else 0.0
    # The deltas of both grow with their rates, at least in proportion: which covers the rounding of all chances.
    rates = [min(1.0, each * (1 + 1e-9)) for each in (rate, kept)]

    def sampled(noise: float, rate: float) -> events.Mechanism:
        if relation is SUBSTITUTION:
            return events.SubstitutedPoissonGaussian(noise, rate)
        return events.Poisson(events.Gaussian(noise, relation=relation), rate)

    parts = [sampled(noise / n, each) for n, each in zip((1, 2), rates, strict=True)]
    return events.RandomSelection(parts, [chance / sum(chances) for chance in chances])


def google_accountant(
    neighboring_relation: Any = None, accountant: AccountantName = "pld", precision: float | None = None
) -> Any:
    """Make a ``dp_accounting.PrivacyAccountant`` that charges with fedamp and answers the upper ends of its brackets.

    Its ``mechanism`` is what was composed.

    Args:
        neighboring_relation: of all events; default: ``ADD_OR_REMOVE_ONE``.
        accountant: how noise multipliers are read under ``REPLACE_ONE``.
        precision: of sampled answers; see ``Mechanism.epsilon``.
    """
    import dp_accounting as dp

    class GoogleAccountant(dp.PrivacyAccountant):  # type: ignore[misc]
        def __init__(self, relation: Any) -> None:
            super().__init__(relation)
            self._composed: Counter[events.Mechanism] = Counter()

        @property
        def mechanism(self) -> events.Mechanism:
            """Composition of all events."""
            return events.composed(self._composed.items())

        def get_epsilon(self, target_delta: float) -> float:
            """Return the upper end of epsilon at a delta in [0, 1]; at 0 what bounded losses prove, else infinity."""
            if target_delta == 0 or not self.mechanism.is_private:
                most, chance = largest_loss_of(self.mechanism)
                return math.inf if chance else most
            return 0.0 if target_delta == 1 else self.mechanism.epsilon(target_delta, precision=precision).upper

        def get_delta(self, target_epsilon: float) -> float:
            """Return the upper end of delta at an epsilon >= 0."""
            return self.mechanism.delta(target_epsilon, precision=precision).upper

        def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
            """Compose an event, or say why it cannot be, as dp-accounting asks for."""
            if isinstance(event, dp.SelfComposedDpEvent) and isinstance(event.count, int) and event.count >= 0:
                return self._maybe_compose(event.event, event.count * count, do_compose)
            if isinstance(event, dp.ComposedDpEvent):
                return next(filter(None, (self._maybe_compose(each, count, do_compose) for each in event.events)), None)
            try:
                mechanism = from_dp_accounting(event, self.neighboring_relation, accountant)
            except ValueError as error:
                return self.CompositionErrorDetails(event, str(error))
            if do_compose:
                self._composed[mechanism] += count
            return None

    return GoogleAccountant(neighboring_relation or dp.NeighboringRelation.ADD_OR_REMOVE_ONE)


@cache
def register_with_opacus() -> Any:
    """Register the accountant with Opacus: ``PrivacyEngine(accountant="fedamp")`` charges with fedamp from then on.

    It charges Poisson samples with Gaussian noise, for records that are added or removed.

    Returns:
        The class of the accountant, an ``opacus.accountants.IAccountant``. Its ``event`` is what was composed, its
        ``history`` triples (noise multiplier, sampling rate, steps), as Opacus's own.
    """
    from opacus.accountants import IAccountant, register_accountant

    def release(noise_multiplier: float, sample_rate: float) -> events.Mechanism:
        if not noise_multiplier:
            return events.NotPrivate()
        return events.Poisson(events.Gaussian(noise_multiplier, relation=ADD_REMOVE), sample_rate)

    class OpacusAccountant(IAccountant):  # type: ignore[misc]
        def __init__(self) -> None:
            self.history: list[tuple[float, float, int]] = []

        @property
        def event(self) -> events.Mechanism:
            """Composition of all steps."""
            return events.composed((release(*each), steps) for *each, steps in self.history)

        def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
            """Charge one step.

            Raises:
                ValueError: the noise multiplier or the rate makes no sense.
            """
            release(noise_multiplier, sample_rate)
            steps = 1
            if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
                steps += self.history.pop()[2]
            self.history.append((noise_multiplier, sample_rate, steps))

        def get_epsilon(self, delta: float, **_: object) -> float:
            """Return the upper end of epsilon at a delta in (0, 1)."""
            return self.event.epsilon(delta).upper

        def __len__(self) -> int:
            return sum(steps for *_, steps in self.history)

        @classmethod
        def mechanism(cls) -> str:
            """Return the name by which Opacus knows this accountant."""
            return METHOD

    register_accountant(METHOD, OpacusAccountant, force=True)
    return OpacusAccountant


class FlowerAccountant:
    """Flower's ``PrivacyAccountant`` (from Flower 1.35 on) for its strategies with clipping at a fixed norm.

    It is given as ``DifferentialPrivacyServerSideFixedClipping(..., accountant=FlowerAccountant(config))``.

    Without amplification Flower says "add or remove one". But a round always has ``sample_size`` clients, so that
    another client takes the place of one who is out: a change of two contributions. It is charged so, unless all
    clients are in every round.

    Args:
        config: Flower's ``PrivacyConfig``.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self._composed: Counter[tuple[float, int, int]] = Counter()

    @property
    def num_releases(self) -> int:
        """Number of releases that were composed."""
        return sum(self._composed.values())

    @property
    def mechanism(self) -> events.Mechanism:
        """Composition of all releases."""
        return self._mechanism(self._composed)

    def compose(self, event: Any, count: int = 1) -> None:
        """Charge ``count`` >= 1 equal releases of Flower's ``GaussianPrivacyEvent``."""
        self._composed = self._with(event, count)

    def get_epsilon(self, delta: float) -> float:
        """Return the upper end of epsilon at a delta in (0, 1)."""
        return self.mechanism.epsilon(delta).upper

    def get_delta(self, epsilon: float) -> float:
        """Return the upper end of delta at an epsilon >= 0."""
        return self.mechanism.delta(epsilon).upper

    def get_privacy_spent(self, delta: float | None = None) -> Any:
        """Return Flower's ``PrivacySpent`` at a delta; default: the configuration's."""
        from flwr.serverapp import PrivacySpent

        delta = self.config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(delta), delta, self.num_releases, METHOD)

    def would_exceed(self, event: Any, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Say whether ``count`` more releases would cost more than the budget.

        Args:
            event: Flower's ``GaussianPrivacyEvent``.
            max_epsilon: the budget; default: the configuration's.
            count: at least 1.

        Raises:
            ValueError: there is no budget.
        """
        budget = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if budget is None:
            raise ValueError("max_epsilon is in neither the PrivacyConfig nor the call")
        return self._mechanism(self._with(event, count)).epsilon(self.config.target_delta).upper > budget

    def state_dict(self) -> dict[str, object]:
        """Return what ``load_state_dict`` reads, as JSON holds it."""
        return {"backend": METHOD, "compositions": [[*event, count] for event, count in self._composed.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a state in place of what was composed.

        Raises:
            ValueError: another accountant has written it, or its numbers make no sense.
        """
        if state.get("backend") != METHOD:
            raise ValueError(f"backend must be {METHOD!r}, got {state.get('backend')!r}")
        counts = Counter({(float(z), int(n), int(of)): int(count) for z, n, of, count in state["compositions"]})
        self._mechanism(counts)  # refuses what makes no sense
        self._composed = counts

    def _with(self, event: Any, count: int) -> "Counter[tuple[float, int, int]]":
        """Return the counts with more releases, if they can be charged."""
        key = event.noise_multiplier, event.sample_size, event.population_size
        counts = self._composed + Counter({key: check_count("count", count)})
        self._mechanism(counts)
        return counts

    def _mechanism(self, counts: Mapping[tuple[float, int, int], int]) -> events.Mechanism:
        """Compose releases by their counts."""
        return events.composed((self._release(*event), count) for event, count in counts.items())

    def _release(self, noise: float, sample: int, population: int) -> events.Mechanism:
        """Return the mechanism of one release, by the configuration's way of sampling."""
        if population != self.config.population_size:
            raise ValueError(f"population_size must be {self.config.population_size}, got {population}")
        check_count("sample_size", sample, 1, population, "population_size")
        match self.config.sampling_method.value:
            case "poisson":
                return events.Poisson(events.Gaussian(noise, relation=ADD_REMOVE), sample / population)
            case "without-replacement":
                return WithoutReplacement(events.Gaussian(noise), sample, population)
            case "no-amplification":
                out = ADD_REMOVE if sample == population else SUBSTITUTION
                return events.Gaussian(noise, relation=out)
        raise ValueError(f"sampling_method {self.config.sampling_method.value!r} is not known")
