"""Other people's accountants: their events as our mechanisms, and our accountant behind their interfaces.

``google``, ``opacus`` and ``flower`` are accountants for code that uses dp-accounting, Opacus and Flower; each needs
the library of its name. ``tools`` reads files of other tools, without them. Here: to and from the events of
dp-accounting, where it has one (the ``interop`` extra).

An event means nothing without its neighbouring relation: both go together, in both directions. Under substitution
(``REPLACE_ONE``) they do not suffice: dp-accounting 0.6 reads the noise multiplier of one event in two ways. Its
``RdpAccountant`` takes it relative to the change (twice a contribution), its ``PLDAccountant`` relative to a
contribution, so that ``GaussianDpEvent(1.0)`` costs 4.73 at delta 1e-5 by the one and 10.0 by the other. There the
accountant has to be named.
"""

import math
from typing import Any, Literal

from fedamp.accounting import events
from fedamp.accounting.theorems import substituted

_NAMES = {
    events.Relation.ZERO_OUT: "REPLACE_SPECIAL",
    events.Relation.ADD_REMOVE: "ADD_OR_REMOVE_ONE",
    events.Relation.SUBSTITUTION: "REPLACE_ONE",
}


Accountant = Literal["rdp", "pld"]


def to_dp_accounting(mechanism: events.Mechanism, accountant: Accountant | None = None) -> tuple[Any, Any]:
    """The ``dp_accounting.DpEvent`` of a mechanism, and the ``NeighboringRelation`` that its accountant is to have.
    ``mechanism``: what was released. ``accountant``: which of dp-accounting's is to read it; has to be named under
    substitution. Raises ``ValueError``: dp-accounting has no event for it (allocation, submodels, ModelMix, ...), or no
    accountant is named.
    """
    import dp_accounting as dp

    return _written(mechanism, _change(mechanism.relation, accountant)), dp.NeighboringRelation[
        _NAMES[mechanism.relation or events.Relation.ZERO_OUT]
    ]


def from_dp_accounting(event: Any, relation: Any, accountant: Accountant | None = None) -> events.Mechanism:
    """The mechanism of a ``dp_accounting.DpEvent`` under a ``dp_accounting.NeighboringRelation``. ``event``: what was
    released. ``relation``: which neighbours. ``accountant``: as whose input it is to be read; has to be named under
    substitution. Raises ``ValueError``: there is no mechanism for it, or not under this relation, or no accountant is
    named.
    """
    ours = {name: each for each, name in _NAMES.items()}
    if getattr(relation, "name", None) not in ours:
        raise ValueError(f"relation must be a dp_accounting.NeighboringRelation, got {relation!r}")
    return _read(event, ours[relation.name], _change(ours[relation.name], accountant))


def _change(relation: events.Relation | None, accountant: Accountant | None) -> int:
    """By what our noise multipliers, which are relative to a contribution, exceed dp-accounting's."""
    if relation is not events.Relation.SUBSTITUTION:
        return 1
    if accountant not in ("rdp", "pld"):
        raise ValueError(
            'accountant must be "rdp" or "pld" under substitution, where they read one event differently, '
            f"got {accountant!r}"
        )
    return 2 if accountant == "rdp" else 1


def _written(mechanism: events.Mechanism, change: int) -> Any:
    import dp_accounting as dp

    match mechanism:
        case events.Gaussian(noise):
            return dp.GaussianDpEvent(noise / change)
        case events.Laplace(scale):
            return dp.LaplaceDpEvent(scale / change)
        case events.RandomisedResponse(probability):
            if mechanism.relation is not events.Relation.SUBSTITUTION:  # there, a zeroed record answers at random
                raise ValueError(f"dp-accounting means another randomised response under {mechanism.relation}")
            return dp.RandomizedResponseDpEvent(noise_parameter=2 * (1 - probability), num_buckets=2)
        case events.NotPrivate():
            return dp.NonPrivateDpEvent()
        case events.Poisson(inner, rate):
            return dp.PoissonSampledDpEvent(rate, _written(inner, change))
        case events.WithoutReplacement(inner, batch, population, 1):
            return dp.SampledWithoutReplacementDpEvent(population, batch, _written(substituted(inner), change))
        case events.Repeat(_, 0):
            return dp.NoOpDpEvent()
        case events.Repeat(inner, times):
            return dp.SelfComposedDpEvent(_written(inner, change), times)
        case events.Compose(parts):
            return dp.ComposedDpEvent([_written(part, change) for part in parts])
    raise ValueError(f"dp-accounting has no event for {type(mechanism).__name__}")


def _read(event: Any, relation: events.Relation, change: int, in_batch: bool = False) -> events.Mechanism:
    """``in_batch``: whether it is a batch's release, written for zero-out and charged for substitution."""
    from dp_accounting import dp_event as dp

    if in_batch:
        relation = events.Relation.ZERO_OUT
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
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=2) if (
            in_batch or relation is events.Relation.SUBSTITUTION
        ):
            return events.RandomisedResponse(1 - noise / 2, relation=relation)
        case dp.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=answers) if (
            not in_batch and relation is not events.Relation.ADD_REMOVE
        ):
            true, other = 1 - noise + noise / answers, noise / answers
            present, absent = (true, other, 1 - true - other), (other, true, 1 - true - other)
            if relation is events.Relation.ZERO_OUT:  # a zeroed record answers at random
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
            noise and relation is events.Relation.SUBSTITUTION
        ):
            return events.SubstitutedPoissonGaussian(change * noise, rate)
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return events.Poisson(_read(inner, relation, change, in_batch), rate)
        case dp.TruncatedSubsampledGaussianDpEvent():
            return _truncated(event, relation, change)
        case dp.SampledWithoutReplacementDpEvent(source_dataset_size=population, sample_size=batch, event=inner):
            if relation is not events.Relation.SUBSTITUTION:
                raise ValueError(f"batches without replacement are for REPLACE_ONE, got {_NAMES[relation]}")
            return events.WithoutReplacement(_read(inner, relation, change, in_batch=True), batch, population)
        case dp.SelfComposedDpEvent(event=inner, count=times):
            return events.Repeat(_read(inner, relation, change, in_batch), times)
        case dp.ComposedDpEvent(events=parts):
            return (
                events.Compose([_read(part, relation, change, in_batch) for part in parts]) if parts else events.NOTHING
            )
    match type(event).__name__:  # events that dp-accounting 0.6 does not have yet
        case "EpsilonDeltaDpEvent":
            return events.Approximate(event.epsilon, event.delta, relation=relation)
        case "ExponentialMechanismDpEvent" | "PermuteAndFlipDpEvent":
            return events.Approximate(event.epsilon, relation=relation)
    raise ValueError(f"there is no mechanism for {type(event).__name__} under {_NAMES[relation]}")


def _discrete_laplace(decay: float, most: int, relation: events.Relation) -> events.Mechanism:
    """A whole number with noise of probability ``tanh(decay / 2) exp(-decay |x|)``; a contribution is at most ``most``.
    Outside of the two means the likelihood ratio is constant.
    """
    distance = most * (2 if relation is events.Relation.SUBSTITUTION else 1)
    outside = 1 / (1 + math.exp(-decay))
    between = [math.tanh(decay / 2) * math.exp(-decay * x) for x in range(1, distance)]
    absent = [outside, *between, outside * math.exp(-decay * distance)]
    return events.FiniteOutcomes(absent[::-1], absent, relation=relation)


def _truncated(event: Any, relation: events.Relation, change: int) -> events.Mechanism:
    """A Poisson sample of which at most B records are kept, at random. Suppose that it is known whether B others are
    sampled. If not, it is Poisson sampling. If so, B - 1 of the kept records, and one more, are a random choice of
    others; the person, if sampled and kept, replaces that one: a change of two contributions. The chance of that,
    given B others, is rate * E[B / (others + 1)]. (dp-accounting 0.6 charges a distance of four for it.)
    """
    from scipy.stats import binom

    rate, noise = event.sampling_probability, change * event.noise_multiplier
    if not rate or not event.truncated_batch_size or not event.dataset_size:
        return events.NOTHING
    if not noise:
        return events.NotPrivate()
    if relation is events.Relation.ZERO_OUT:
        raise ValueError("a truncated Poisson sample is not charged under REPLACE_SPECIAL")
    many, others = event.truncated_batch_size, event.dataset_size - 1
    chances = float(binom.cdf(many - 1, others, rate)), float(binom.sf(many - 1, others, rate))
    kept = float(binom.sf(many, others + 1, rate)) * many / (others + 1) / chances[1] if chances[1] else 0.0
    # The deltas of both grow with their rates, at least in proportion: which covers the rounding of all chances.
    rates = [min(1.0, each * (1 + 1e-9)) for each in (rate, kept)]
    if relation is events.Relation.SUBSTITUTION:
        parts: list[events.Mechanism] = [
            events.SubstitutedPoissonGaussian(noise / n, q) for n, q in zip((1, 2), rates, strict=True)
        ]
    else:
        parts = [
            events.Poisson(events.Gaussian(noise / n, relation=relation), q) for n, q in zip((1, 2), rates, strict=True)
        ]
    return events.RandomSelection(parts, [chance / sum(chances) for chance in chances])
