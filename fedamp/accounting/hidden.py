"""Hidden choices of one person: sampling, submodels, and rounds.

Each kind says which choice is hidden, and what X becomes: (1 - q) + q X for a coin, a mean of copies for one of several
places, and a mean of symmetric polynomials for several rounds. Everything rests on two conditions: the choice does not
depend on the data, and stays secret. Several people are in :mod:`fedamp.accounting.groups`, correlated noise in
:mod:`fedamp.extensions.correlated.spaced`.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from operator import attrgetter
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.arithmetic import UNIT, Array, combined_copies, log_choose, normal_mass, rounding_of_chances
from fedamp.accounting.bounds import (
    Bounds,
    CountField,
    NotEvaluable,
    ProbabilityField,
    Question,
    Relation,
    ScaleField,
    UpTo,
    check_count,
)
from fedamp.accounting.law import DEFAULT_POINTS, NOTHING_RELEASED, ClosedForm, Detail, Law, normal_grid, one_of
from fedamp.accounting.masks import law_under_masks, mask_moments
from fedamp.accounting.mechanism import (
    Fact,
    Hidden,
    Mechanism,
    MomentsOf,
    Participation,
    Release,
    closed_form_of,
    moments_of,
    numerical_law,
    outcomes_of,
)
from fedamp.accounting.outcomes import Outcomes, hidden_outcomes
from fedamp.accounting.releases import (
    NOTHING,
    Compose,
    Gaussian,
    GaussianMixture,
    RandomisedResponse,
    Repeat,
    attained_in_parts,
    attained_part,
    composed,
)
from fedamp.accounting.renyi import MeanMoments, Moments, ThinnedMoments, shifted_moments
from fedamp.accounting.sampling import hidden_log_moments


@dataclass(frozen=True)
class Poisson(Hidden):
    """Sample a person with a secret coin: the person takes part with probability ``rate``, independently of others.

    Release: M with chance q, else M without the person.

    X becomes (1 - q) + q X (Zhu, Dong, Wang 2022, Theorem 11). Parts that share the coin (the shared and the split part
    of one round) must be composed first and sampled together.

    Args:
        mechanism: the release of a participant, for zero-out or add/remove.
        rate: q in [0, 1].

    Example:
        >>> print(Poisson(Gaussian(1.0), 0.1).epsilon(1e-5))
        1.685 (at least 1.684)
    """

    rate: ProbabilityField
    text = "Poisson sampling at rate {0.rate:g} of ({0.mechanism.in_words})"
    is_mean = True

    def simplified(self) -> Mechanism:
        """A rate of 1 hides nothing."""
        return self.mechanism if self.rate == 1 else self

    def attained_mechanism(self) -> Mechanism | None:
        """Sample what the part attains: the charge is exact for that (Zhu, Dong, Wang 2022, Theorem 11)."""
        return attained_in_parts(self)

    def attained_in_draws(self) -> Mechanism | None:
        return self.with_parts(lambda part: part.attained_in_draws() or NOTHING)

    def law(self, detail: Detail) -> Law:
        """X becomes (1 - rate) + rate X (Zhu, Dong, Wang 2022, Theorem 11)."""
        return numerical_law(self.mechanism, detail).thin(self.rate)

    def moments(self) -> Moments:
        """Central moments are multiplied by q^j: X - 1 becomes q (X - 1)."""
        inner = moments_of(self.mechanism)
        return inner if self.rate == 1 else ThinnedMoments(partial(numerical_law, self), inner, self.rate)

    def all_outcomes(self) -> Outcomes:
        return outcomes_of(self.mechanism).poisson_sampled(self.rate) if self.rate < 1 else super().all_outcomes()

    def closed_form(self) -> ClosedForm:
        """Reveal the coin: nothing is released with chance 1 - q, and the release with chance q."""
        inner = closed_form_of(self.mechanism)
        if self.rate == 1:
            return inner
        without = NOTHING_RELEASED, 1 - self.rate, math.log(1 - self.rate)
        return one_of([without, (inner, self.rate, math.log(self.rate))])

    def participation(self) -> Participation:
        """Return the hidden rounds inside, with another chance of none."""
        inner = self.mechanism.participation()
        if self.rate == 0 or (len(inner.chances) == 2 and inner.rounds == 1):  # the law of one round is exact
            return super().participation()
        chances = self.rate * np.array(inner.chances)
        chances[0] += 1 - self.rate
        return Participation(inner.mechanism, tuple(chances.tolist()), inner.rounds, inner.rounding + 4 * UNIT)

    def chance_to_take_part(self) -> Fraction:
        """Return q times the chance inside."""
        return Fraction(self.rate) * self.mechanism.chance_to_take_part()

    def certain_loss(self) -> Fraction:
        """Return log(1 + q (e^l - 1)) for a loss l inside; the remove direction is the larger one."""
        if (most := self.mechanism.certain_loss()) < 700:
            loss = float(most)
            return Fraction(math.log1p(self.rate * math.expm1(loss)) * (1 + 8 * UNIT * (1 + loss)))
        return super().certain_loss()

    def exact_group(self, size: int) -> Mechanism:
        """For Gaussian noise the number of sampled people is binomial; for one bit, anyone sampled turns it."""
        if isinstance(self.mechanism, RandomisedResponse):
            # Schuchardt et al. 2024, Theorem G.1: the worst is a bit that anybody of the group turns.
            return Poisson(self.mechanism, 1 - (1 - self.rate) ** size)
        one = _as_gaussian(self.mechanism)
        return GroupPoissonGaussian(one.noise_multiplier, self.rate, size, relation=one.relation)

    def group_by_rounds(self, size: int) -> Mechanism:
        return Poisson(self.mechanism.unamplified(), self.rate).exact_group(size)


def _as_gaussian(mechanism: Mechanism) -> Gaussian:
    """Return Gaussian releases that one coin decides together as one release; NotEvaluable: not Gaussian."""
    if isinstance(mechanism, Gaussian):
        return mechanism
    if isinstance(mechanism, Compose):
        known = [_as_gaussian(part) for part in mechanism.mechanisms]
        return replace(known[0], noise_multiplier=sum(part.noise_multiplier**-2 for part in known) ** -0.5)
    raise NotEvaluable(f"{type(mechanism).__name__} is not Gaussian")


@dataclass(frozen=True, repr=False)
class GroupPoissonGaussian(Release):
    """Several people together under Poisson sampling and Gaussian noise, each sampled independently.

    Release: f + b_1 v_1 + .. + b_K v_K + z, b_i coins of rate q, z ~ N(0, s^2 I).

    The number of the group's people in the sum is binomial, and their contributions point the same way in the worst
    case.

    Args:
        noise_multiplier: s, over one person's clipping norm, 1e-50 to 1e50.
        rate: q, of each person's coin, in [0, 1].
        size: K, the number of people, 1 to 500.
        relation: zero-out (default) or add/remove.

    Example:
        >>> print(GroupPoissonGaussian(2.0, 0.1, 3).epsilon(1e-5))
        1.285 (at least 1.284)
    """

    noise_multiplier: ScaleField
    rate: ProbabilityField
    size: Annotated[int, partial(check_count, largest=500)]
    takes_substitution = False
    is_exact = True
    text = (
        "a group of {0.size} under Poisson sampling at rate {0.rate:g} and "
        "Gaussian noise of multiplier {0.noise_multiplier:g}"
    )

    def simplified(self) -> Mechanism:
        """One person, or a rate of 1, leaves no choice of how many people are in the sum."""
        if self.size > 1 and self.rate < 1:
            return self
        return Poisson(Gaussian(self.noise_multiplier / self.size, relation=self.relation), self.rate)

    def unamplified(self) -> Mechanism:
        """All people of the group are in the sum."""
        return Gaussian(self.noise_multiplier / self.size, relation=self.relation)

    def charged_as(self) -> Mechanism:
        """Return Gaussian noise around a binomial shift: i / s with chance C(K, i) q^i (1 - q)^(K - i).

        That the contributions point the same way in the worst case is proved for Rényi divergences (Schuchardt et al.
        2024, Theorem 4.2). For the hockey-stick it follows from the same supermodularity; hence a numerical law, which
        that paper leaves open.
        """
        size, rate = self.size, self.rate
        if rate == 1:
            return Gaussian(self.noise_multiplier / size, relation=self.relation)
        chances = [math.comb(size, i) * rate**i * (1 - rate) ** (size - i) for i in range(size + 1)]
        total = math.fsum(chances)
        shifts = [i / self.noise_multiplier for i in range(size + 1)]
        return GaussianMixture(shifts, [chance / total for chance in chances], relation=self.relation)


@dataclass(frozen=True)
class SubstitutedPoissonGaussian(Mechanism):
    """A Gaussian sum of a Poisson sample, for neighbours that differ by substitution.

    Release: f + b v + z, or f + b v' + z, b a coin of rate q, z ~ N(0, s^2 I).

    With probability q the person's contribution v is in the sum, or the other person's v' in its place.

    Args:
        noise_multiplier: s, over the clipping norm, 1e-50 to 1e50.
        rate: q in [0, 1].

    Example:
        >>> print(SubstitutedPoissonGaussian(2.0, 0.1).epsilon(1e-5))
        0.4605 (at least 0.4604)
    """

    noise_multiplier: ScaleField
    rate: ProbabilityField
    text = "Poisson sampling at rate {0.rate:g} of Gaussian noise of multiplier {0.noise_multiplier:g}"

    relation = Relation.SUBSTITUTION
    is_exact = is_symmetric = True

    def simplified(self) -> Mechanism:
        """A rate of 1 hides nothing."""
        return Gaussian(self.noise_multiplier, relation=Relation.SUBSTITUTION) if self.rate == 1 else self

    def unamplified(self) -> Mechanism:
        return Gaussian(self.noise_multiplier, relation=Relation.SUBSTITUTION)

    def law(self, detail: Detail) -> Law:
        """The contributions x, y of the worst pair are opposite and of norm 1; the proof is new (ours).

        Let u = <x, z>, v = <y, z>, u' = u - |x|^2/2, v' = v - |y|^2/2 and alpha = e^epsilon. The hockey-stick is

            E (1 - alpha + rate (e^u' - 1) - alpha rate (e^v' - 1))+.

        Its mixed second derivative is <= 0, so that it falls with <x, y> (Slepian). As <x, y> < 0, it grows with either
        norm (Stein).
        """
        rate, shift = self.rate, 1 / self.noise_multiplier
        z, low, high = normal_grid(shift, detail.points, detail.reach, -shift)
        nobody = (1 - rate) * normal_mass(low, high)
        mass_in = nobody + rate * normal_mass(low - shift, high - shift)
        mass_out = nobody + rate * normal_mass(low + shift, high + shift)
        log_ratio = _log_mean(rate, shift * z - shift**2 / 2) - _log_mean(rate, -shift * z - shift**2 / 2)
        return Law.from_masses(log_ratio, mass_in, mass_out, detail.points)

    def moments(self) -> Moments:
        return SubstitutedMoments(self)


class SubstitutedMoments(MomentsOf[SubstitutedPoissonGaussian]):
    """Moments of a Poisson sample whose neighbours differ by substitution."""

    def _raw_moments(self, highest: int) -> Array:
        """Bound moments by joint convexity.

        They are 1 where the person is not sampled, and those of a change of two contributions where so.
        """
        return _log_mean(self.event.rate, shifted_moments(2 / self.event.noise_multiplier, highest))


def _log_mean(rate: float, log_ratio: Array) -> Array:
    """Return log(1 - rate + rate X)."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio))


@dataclass(frozen=True)
class Submodels(Hidden):
    """Hide which of ``count`` disjoint submodels a person trains, drawn at random.

    Release: (M_1, .., M_d), the person in M_j alone, j uniform.

    X is the mean of d independent copies of the submodel's ratio (Dong, Chen, Özgür 2025, Theorem 3.4). The paper's
    bound of the reverse divergence (Lemma 3.18) is not an upper bound; fedamp computes that direction from the law.

    Submodels drawn afresh each round are ``Repeat(Submodels(m, d), T)``; drawn once for the run, ``Submodels(Repeat(m,
    T), d)``. Parts outside all submodels (the output layer, normalisation) are shared. Compose them inside the round,
    with their own clipping norm.

    Args:
        mechanism: one submodel's release, for zero-out or add/remove.
        count: d, the number of submodels, >= 1.

    Example:
        >>> print(Submodels(Gaussian(1.0), 4).epsilon(1e-5))
        3.031 (at least 3.03)
    """

    count: CountField
    text = "one hidden submodel of {0.count} ({0.mechanism.in_words})"
    is_mean = hides_bits = True

    def simplified(self) -> Mechanism:
        """One submodel hides nothing."""
        return self.mechanism if self.count == 1 else self

    def attained_mechanism(self) -> Mechanism | None:
        """Hide a submodel that attains its cost: the charge is exact for that (Dong, Chen, Özgür 2025, Theorem 3.4)."""
        return attained_in_parts(self)

    def law(self, detail: Detail) -> Law:
        """Take the mean of independent copies (Dong, Chen, Özgür 2025, Theorem 3.4)."""
        return numerical_law(self.mechanism, detail).mean(self.count)

    def moments(self) -> Moments:
        """The sum of d copies of X - 1 has the d-th power of the moment series."""
        inner = moments_of(self.mechanism)
        return inner if self.count == 1 else MeanMoments(partial(numerical_law, self), inner, self.count)

    def all_outcomes(self) -> Outcomes:
        return hidden_outcomes(outcomes_of(self.mechanism), (0.0, 1.0), self.count, 0.0)

    def closed_form(self) -> ClosedForm:
        """Reveal the submodel: each has chance 1 / d, and all are alike."""
        return closed_form_of(self.mechanism).chosen_by_chance(1.0, -math.log(self.count))

    def signal_to_noise(self) -> float | None:
        """The sum over all submodels has the signal once, and the noise d times."""
        signal = self.mechanism.signal_to_noise()
        return None if signal is None else 1 / self.count * signal

    def chance_to_take_part(self) -> Fraction:
        """The person is in some submodel for certain."""
        return self.mechanism.chance_to_take_part()


@dataclass(frozen=True)
class Dropout(Hidden):
    """Hide which units of the whole model a person trains: one hidden mask for each person and round.

    Release: M, of the units of a mask alone, each kept with chance p.

    Each unit must be kept with at most this probability, independently of other units and of the data. One n-th in
    floating point counts as one n-th. With Gaussian noise every p amplifies, with other noise p up to 1/2.

    Args:
        mechanism: the release of the whole model, for zero-out or add/remove.
        keep: p, the largest probability to keep a unit, in (0, 1].

    Example:
        >>> print(Dropout(Gaussian(1.0), 0.5).epsilon(1e-5))
        3.581 (at least 3.539)
    """

    keep: ProbabilityField
    own_facts = (Fact.MASKS_UNITS,)
    text = "hidden dropout, keep {0.keep:g}, of ({0.mechanism.in_words})"
    hides_bits = True

    def check(self) -> None:
        """Refuse a probability of 0 (ValueError)."""
        if self.keep == 0:
            raise ValueError("keep must be in (0, 1], got 0.0")

    def simplified(self) -> Mechanism:
        """A mask that keeps every unit hides nothing."""
        return self.mechanism if self.keep == 1 else self

    def charged_as(self) -> Mechanism:
        """Charge one hidden submodel of floor(1 / keep) disjoint ones.

        X is at most the mean of that many copies (Dong, Chen, Özgür 2025, Theorem 3.5 and Corollary 3.7, extended).
        Give every unit one of floor(1/keep) labels with probability ``keep`` each, or none. Keep the units of one
        random label; the labels' supports are disjoint. Above 1/2 two masks of one person overlap in most units, and no
        two disjoint labels exist.
        """
        return Submodels(self.mechanism, max(1, math.floor(1 / self.keep)))

    def law(self, detail: Detail) -> Law:
        """With Gaussian noise, bound the labels' law by moments that hold for every p (ours)."""
        labels, one = numerical_law(self.charged_as(), detail), self.mechanism
        if not isinstance(one, Gaussian):
            return labels
        return law_under_masks(labels, self.keep, one.signal_to_noise(), detail)

    def moments(self) -> Moments:
        """Take the smaller of the labels' moments and those that hold for every p."""
        labels, one = moments_of(self.charged_as()), self.mechanism
        return DropoutMoments(self, labels, one.signal_to_noise()) if isinstance(one, Gaussian) else labels

    def attained_mechanism(self) -> Mechanism:
        """Use the first unit kept; where noise is not Gaussian, the only unit, which a mask silences."""
        one, rest = attained_part(self.mechanism), self.evenly_spread()
        return Poisson(one, self.keep) if rest is self or self.keep == 1 else FirstKept(one, self.keep, rest)

    def evenly_spread(self) -> Mechanism:
        """Spread a contribution over very many units: the sum over those kept has length sqrt(keep)."""
        signal = self.signal_to_noise()
        if not signal or not 1e-50 <= (noise := signal**-0.5) <= 1e50:
            return self
        return Gaussian(noise, relation=self.relation or Relation.ZERO_OUT)

    def signal_to_noise(self) -> float | None:
        """Return that of a contribution that spreads evenly; see :meth:`evenly_spread`."""
        signal = self.mechanism.signal_to_noise()
        return None if signal is None else self.keep * signal


class DropoutMoments(MomentsOf[Dropout]):
    """Moments under a hidden mask of Gaussian noise: the smaller of the labels' and of bounds for every p.

    The add direction is never the larger one (docs/research/accounting.md).
    """

    def __init__(self, event: Dropout, labels: Moments, signal: float) -> None:
        super().__init__(event)
        self.labels, self.signal = labels, signal

    def _raw_moments(self, highest: int) -> Array:
        bound = np.append(0.0, mask_moments(self.event.keep, self.signal, np.arange(1.0, highest + 1)))
        return np.asarray(np.minimum(self.labels.raw_moments(highest), bound))

    def _negative_moments(self, highest: int) -> Array:
        return np.asarray(np.minimum(self.labels.negative_moments(highest), self.raw_moments(highest)[1:]))

    def _central_moments(self, highest: int) -> Array:
        return self.labels.central_moments(highest)


@dataclass(frozen=True)
class FirstKept(Hidden, is_kind=False):
    """Use the first unit kept of a few, or, where all of them are dropped, all others evenly.

    Release: M at unit j < n with chance p (1 - p)^j, else the ``rest``.

    X = sum_j p (1 - p)^j x_j + (1 - p)^n y, with independent ratios x_j of M and y of the rest. A federation attains it
    in the limit. The gradient of each of n units is far larger than that of the next one, so clipping leaves the first
    kept. Very many other units have equal gradients, smaller still (docs/research/accounting.md).

    Args:
        mechanism: M, what one unit attains.
        keep: p, in (0, 1).
        rest: what evenly spread contributions attain.
    """

    keep: ProbabilityField
    rest: Mechanism
    is_exact = hides_bits = True
    text = "the first unit kept with chance {0.keep:g} of ({0.mechanism.in_words})"

    @property
    def doublings(self) -> int:
        """How often one unit is doubled to n, the next power of two above 1 / p; more units hardly cost more."""
        return min(math.ceil(-math.log2(self.keep)), 10)

    def law(self, detail: Detail) -> Law:
        """Double the mean of the first units: the weights of the second half are (1 - p)^n times as large."""
        found, log_dropped = numerical_law(self.mechanism, detail), math.log1p(-self.keep)
        for _ in range(self.doublings):
            found, log_dropped = found.mean_with(found, 1 / (1 + math.exp(-log_dropped))), 2 * log_dropped
        return numerical_law(self.rest, detail).mean_with(found, -math.expm1(log_dropped))

    def closed_form(self) -> ClosedForm:
        """Reveal the unit."""
        units, one = 2**self.doublings, closed_form_of(self.mechanism)
        chances = [self.keep * (1 - self.keep) ** j for j in range(units)]
        parts = [(one, chance, math.log(chance)) for chance in chances]
        rest = (1 - self.keep) ** units
        return one_of([*parts, (closed_form_of(self.rest), rest, math.log(rest))], 64 * units * UNIT)


# Hidden rounds.


class HiddenRoundsOfRun(Hidden, is_kind=False):
    """Base of runs in which a person takes part in some hidden rounds.

    With h the number of a person's rounds, drawn by chances c_h, x_i the ratios of the rounds, and e_h the elementary
    symmetric polynomial,

        X = sum over h of c_h e_h(x_1, .., x_T) / C(T, h).

    A kind gives the law of h (:meth:`participation`), bounds with a law (:meth:`charged_as`, :meth:`costlier_runs`),
    and its beginnings.
    """

    is_mean = hides_bits = True
    own_facts: ClassVar[tuple[Fact, ...]] = (Fact.HIDES_ROUNDS,)

    @property
    def most_rounds(self) -> int:
        """The most rounds that a person takes part in, over the whole run."""
        raise NotImplementedError

    def unamplified(self) -> Mechanism:
        """Charge as many known rounds as a person may have."""
        return Repeat(self.mechanism.unamplified(), min(self.most_rounds, self.span))

    def attained_mechanism(self) -> Mechanism | None:
        """Return the run of what a round attains if only one round is hidden; of more, one round alone.

        ``attained_in_draws`` knows more.
        """
        return self.with_parts(attained_part) if self.most_rounds == 1 else self._attained_by_first_round()

    def _attained_by_first_round(self) -> Mechanism | None:
        """Return the first round alone, in which the person takes part with a known chance; None: with no chance."""
        first = self.after(min(1, self.span)).participation()
        if len(first.chances) < 2:
            return None
        return Poisson(attained_part(first.mechanism), first.chances[1] * max(0.0, 1 - first.rounding))

    def attained_in_draws(self) -> Mechanism | None:
        """Return the run of what a round attains."""
        return self.with_parts(attained_part)

    def costlier_runs(self) -> list[Mechanism]:
        """List mechanisms of other kinds, or with more rounds, that each cost at least as much.

        They bound the moments. A kind without a law of its own (:class:`PartOfRun`) is bounded by their laws, too.
        """
        return [self.charged_as()]

    def moments(self) -> Moments:
        return HiddenRoundsMoments(self)

    def all_outcomes(self) -> Outcomes:
        choice = self.participation()
        return hidden_outcomes(outcomes_of(choice.mechanism), choice.chances, choice.rounds, choice.rounding)

    def closed_form(self) -> ClosedForm:
        """Reveal the set of rounds: all sets of one size are equally likely.

        A person takes part in h rounds with a chance c_h, so each set of h of T rounds has the chance c_h / C(T, h).
        """
        found = self.participation()
        one, parts, known, rounds = closed_form_of(found.mechanism), [], NOTHING_RELEASED, 0
        possible = np.flatnonzero(found.chances).tolist()
        if len(possible) > _MOST_SIZES:
            raise NotEvaluable("a person may take part in too many different numbers of rounds")
        for h in possible:
            known, rounds = (
                known.composed_with(combined_copies(one, h - rounds, ClosedForm.composed_with)) if h else known,
                h,
            )
            parts.append((known, found.chances[h], math.log(found.chances[h]) - float(log_choose(found.rounds, h))))
        return one_of(parts, found.rounding + 64 * (math.lgamma(found.rounds + 1) + 1) * UNIT)


_MOST_SIZES = 2000
"""The most sizes of a set of rounds in closed form."""
_EXACT_ORDER = 5
"""The highest order at which moments of several hidden rounds are exact; beyond, there are too many overlaps."""


class HiddenRoundsMoments(MomentsOf[HiddenRoundsOfRun]):
    """Moments of hidden rounds: order by order the smallest of several bounds.

    They are the bound by the split or by coins, and those of runs with more rounds, since moments only grow with the
    rounds. At low orders there is the exact moment (docs/research/k-of-t.md), if overlaps are not too many.
    """

    def __init__(self, event: HiddenRoundsOfRun) -> None:
        super().__init__(event)
        self.bounds = [moments_of(bound) for bound in event.costlier_runs()]

    def _raw_moments(self, highest: int) -> Array:
        """Take the smallest bound, and the exact moments up to the highest order that is not too much work."""
        result = np.min([bound.raw_moments(highest) for bound in self.bounds], axis=0)
        found = self.event.participation()
        for order in range(min(_EXACT_ORDER, highest), 1, -1) if len(found.chances) > 2 else ():
            try:
                one = moments_of(found.mechanism).raw_moments(highest)[: order + 1]
                exact = hidden_log_moments(one, found.chances, found.rounds, found.rounding)
                result[: order + 1] = np.minimum(result[: order + 1], exact)
                break
            except NotEvaluable:
                continue
        return np.asarray(result)

    def _negative_moments(self, highest: int) -> Array:
        return np.asarray(np.min([bound.negative_moments(highest) for bound in self.bounds], axis=0))

    def _central_moments(self, highest: int) -> Array:
        return self.bounds[0].central_moments(highest)


@dataclass(frozen=True)
class Allocation(HiddenRoundsOfRun):
    """Hide in which k rounds of a whole run a person takes part: exactly k, drawn uniformly.

    Release: (M_1, .., M_T), the person in those of a uniform set of k.

    X = e_k(x_1, .., x_T) / C(T, k). For k = 1 it is the mean of T copies, exactly. For other k the law is an upper
    bound (:meth:`charged_as`), some per cent above the truth, and sampling gives both ends (docs/research/k-of-t.md).

    Args:
        mechanism: one round, for zero-out or add/remove. It may itself be amplified (``Submodels``) or composed.
        k: how many rounds a person takes part in, 0 to ``rounds``.
        rounds: T, of the whole run, >= 1.

    Example:
        >>> print(Allocation(Gaussian(1.0), 1, 10).epsilon(1e-5))
        2.19 (at least 2.188)
    """

    k: Annotated[int, UpTo("rounds")]
    rounds: CountField

    @property
    def in_words(self) -> str:
        chosen = "one hidden round" if self.k == 1 else f"{self.k} hidden rounds"
        return f"{chosen} of {self.rounds} ({self.mechanism.in_words})"

    @property
    def span(self) -> int:
        return self.rounds

    @property
    def most_rounds(self) -> int:
        return self.k

    def _run_prefix(self, rounds: int) -> Mechanism:
        """The number of a person's rounds in a beginning is random."""
        return AllocationPrefix(self.mechanism, self.k, self.rounds, rounds)

    def simplified(self) -> Mechanism:
        """All rounds hide nothing."""
        return Repeat(self.mechanism, self.rounds) if self.k == self.rounds else self

    def charged_as(self) -> Mechanism:
        """Charge one hidden round in each of k groups of rounds; exact for k = 1.

        X is at most a product of k means (Feldman, Shenfeld 2025, Theorem 3.1 and Lemmas 3.2 and F.1). A random choice
        of k rounds is the same as a random partition into k groups, as even as integers allow, with one round drawn
        from each. Joint convexity removes the partition. ``Submodels`` stands for a group: a mean of copies has one
        law, whether rounds or submodels are hidden.
        """
        size, larger = divmod(self.rounds, max(self.k, 1))
        groups = ((size, self.k - larger), (size + 1, larger))
        return composed((Submodels(self.mechanism, each), n) for each, n in groups if n) if self.k else NOTHING

    def law(self, detail: Detail) -> Law:
        """Multiply the means that :meth:`charged_as` names."""
        size, larger = divmod(self.rounds, self.k)
        one, laws = numerical_law(self.mechanism, detail), list[tuple[Law, int]]()
        for each, n in ((size, self.k - larger), (size + 1, larger)):
            if n:
                laws.append((one.mean(each), n))
        return Law.product(laws)

    def attained_mechanism(self) -> Mechanism | None:
        """Return the run of what a round attains for k = 1 or T; else the sum of all rounds' releases, or one round.

        ``attained_in_draws`` knows more.
        """
        if self.k in (1, self.rounds):  # of all rounds nothing is hidden
            return self.with_parts(attained_part)
        if self.k and (signal := self.signal_to_noise()) is not None:
            if not 1e-50 <= (noise := signal**-0.5) <= 1e50:
                return None
            return Gaussian(noise, relation=self.relation or Relation.ZERO_OUT)
        return self._attained_by_first_round()

    def signal_to_noise(self) -> float | None:
        """The sum over all rounds has the signal k times, and the noise T times: k^2 / T of a round's ratio."""
        signal = self.mechanism.signal_to_noise()
        return None if signal is None else self.k**2 / self.rounds * signal

    def participation(self) -> Participation:
        """Return H = k for certain."""
        return _first_rounds(self.mechanism, np.eye(1, self.k + 1, self.k)[0], self.rounds, self.rounds)

    def chance_to_take_part(self) -> Fraction:
        """Return at most k times the chance in a round."""
        return min(Fraction(1), self.k * self.mechanism.chance_to_take_part())


class BegunRounds(Hidden, is_kind=False):
    """Base of hidden rounds of which only a beginning may be out.

    Attributes:
        rounds: of the whole run, >= 1.
        released: how many rounds are out, 0 to ``rounds``; None: all.
    """

    rounds: CountField
    released: int | None

    def check(self) -> None:
        """Check ``released``; all rounds become None (ValueError)."""
        if self.released is not None:
            released = check_count("released", self.released, 0, self.rounds, "rounds")
            self._set_fields(released=None if released == self.rounds else released)

    @property
    def span(self) -> int:
        return self.rounds if self.released is None else self.released

    def _run_prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)  # type: ignore[call-arg]


class PartOfRun(HiddenRoundsOfRun, is_kind=False):
    """Base of hidden rounds whose best bound is one of several."""

    own_facts = (Fact.HIDES_ROUNDS, Fact.SEVERAL_BOUNDS)

    def costlier_mechanisms(self) -> list[Mechanism]:
        """List the bounds, because the kind has no law of its own."""
        return self.costlier_runs()

    def by_law(self, question: Question) -> Bounds:
        """Return the smallest of several bounds.

        None is exact, so a grid finer than the default is not worth its time.
        """
        bounds = self.costlier_runs()
        if question.points is None and len(bounds) > 1:
            question = replace(question, points=DEFAULT_POINTS)
        return min((part.by_law(question) for part in bounds), key=attrgetter("upper"))


@dataclass(frozen=True)
class AllocationPrefix(PartOfRun):
    """The first rounds of an ``Allocation``. The other rounds are not out, and may never be.

    Release: the first r of (M_1, .., M_T), the person in those of a uniform set of k.

    The number of a person's rounds among the first r is hypergeometric.

    Args:
        mechanism: one round, for zero-out or add/remove.
        k: how many rounds of the whole run a person takes part in, 0 to ``rounds``.
        rounds: T, of the whole run, >= 1.
        released: r, how many of them are out, 0 to ``rounds``.

    Example:
        >>> print(AllocationPrefix(Gaussian(1.0), 1, 10, 5).epsilon(1e-5))
        2.04 (at least 2.039)
    """

    k: Annotated[int, UpTo("rounds")]
    rounds: CountField
    released: Annotated[int, UpTo("rounds")]

    @property
    def in_words(self) -> str:
        return f"the first {self.released} rounds of ({self.whole_run().in_words})"

    @property
    def span(self) -> int:
        return self.released

    @property
    def most_rounds(self) -> int:
        return self.k

    def whole_run(self) -> Allocation:
        """Return the run that it is the beginning of."""
        return Allocation(self.mechanism, self.k, self.rounds)

    def _run_prefix(self, rounds: int) -> Mechanism:
        return replace(self, released=rounds)

    def simplified(self) -> Mechanism:
        """All rounds of a person, or all rounds released, are other kinds."""
        if self.k == self.rounds:
            return Repeat(self.mechanism, self.released)
        return self.whole_run() if self.released == self.rounds else self

    def charged_as(self) -> Mechanism:
        """Charge one hidden round for each of several coins; exact for k = 1.

        The number H of a person's rounds among those released is hypergeometric, hence a sum of independent coins of
        probabilities p_i (Vatutin, Mikhailov 1982). Split the released rounds at random into one group for each coin,
        of any fixed sizes. One hidden round of group i, if coin i says so, is a random choice of H rounds. By joint
        convexity in the partition X is at most the product of (1 - p_i) + p_i (mean of the group's copies), in convex
        order.
        """
        groups = best_coin_groups(self.k, self.rounds, self.released)
        return composed((Poisson(Submodels(self.mechanism, size), p), n) for p, size, n in groups)

    def costlier_runs(self) -> list[Mechanism]:
        """List what it is charged as and, where that is not exact, the whole run: more rounds never cost less.

        See docs/research/k-of-t.md.
        """
        return [self.charged_as(), self.whole_run()] if self.k > 1 else [self.charged_as()]

    def participation(self) -> Participation:
        """Return the hypergeometric law of H."""
        return _first_rounds(self.mechanism, np.eye(1, self.k + 1, self.k)[0], self.rounds, self.released)

    def chance_to_take_part(self) -> Fraction:
        """Return at most k r / T times the chance in a round."""
        chance = Fraction(self.k * self.released, self.rounds) * self.mechanism.chance_to_take_part()
        return min(Fraction(1), chance)


@dataclass(frozen=True)
class CappedPoisson(BegunRounds, PartOfRun):
    """Sample a person by Poisson sampling over a whole run, with a cap on the number of rounds.

    Release: (M_1, .., M_T), the person in at most c of those that coins of rate q choose.

    Where a person's coins choose more than c rounds, the person takes part in c of them, drawn uniformly (Feldman,
    Shenfeld 2025, proof of Corollary 4.7).

    Args:
        mechanism: one round, for zero-out or add/remove.
        rate: q, of the coins, in [0, 1].
        at_most: c, the cap, 1 to ``rounds``.
        rounds: T, of the whole run, >= 1.
        released: how many rounds are out, 0 to ``rounds``; default: all.

    Example:
        >>> print(CappedPoisson(Gaussian(1.0), 0.1, 1, 10).epsilon(1e-5))
        1.735 (at least 1.734)
    """

    rate: ProbabilityField
    at_most: Annotated[int, UpTo("rounds", smallest=1)]
    rounds: CountField
    released: int | None = None

    @property
    def in_words(self) -> str:
        beginning = "" if self.released is None else f"the first {self.released} of "
        sampled = f"{self.rounds} rounds of Poisson sampling at rate {self.rate:g}"
        return f"{beginning}{sampled}, at most {self.at_most} a person ({self.mechanism.in_words})"

    @property
    def most_rounds(self) -> int:
        return self.at_most

    def simplified(self) -> Mechanism:
        """A cap that is never met is Poisson sampling; a rate of 1 is an allocation."""
        if self.at_most == self.rounds:  # the cap is never met
            return Repeat(Poisson(self.mechanism, self.rate), self.span)
        return Allocation(self.mechanism, self.at_most, self.rounds).after(self.span) if self.rate == 1 else self

    def charged_as(self) -> Mechanism:
        """Charge it without the cap; exactly for a cap of one round.

        Leaving rounds out, by any rule that does not look at releases, never costs (docs/research/k-of-t.md; Feldman,
        Shenfeld 2025, Corollary 4.7).
        """
        if self.at_most > 1:
            return Repeat(Poisson(self.mechanism, self.rate), self.span)
        ever = -math.expm1(self.rounds * math.log1p(-self.rate)) if self.rate < 1 else 1.0
        chance = min(1.0, ever * self.span / self.rounds * (1 + 1e-12))  # up: a larger rate costs more
        return Poisson(Submodels(self.mechanism, self.span), chance) if self.span else NOTHING

    def costlier_runs(self) -> list[Mechanism]:
        """List the charge without the cap and, where that is not exact, the charge of always meeting it.

        A choice of more rounds never costs less (docs/research/k-of-t.md).
        """
        most = Allocation(self.mechanism, self.at_most, self.rounds).after(self.span)
        return [self.charged_as(), most] if self.at_most > 1 else [self.charged_as()]

    def participation(self) -> Participation:
        """Return the binomial law of H with all larger numbers at the cap; of a beginning, a part of it."""
        if self.rate in (0.0, 1.0):
            always = int(self.rate) * self.at_most
            return _first_rounds(self.mechanism, np.eye(1, always + 1, always)[0], self.rounds, self.span)
        h = np.arange(self.rounds + 1)
        logs = log_choose(self.rounds, h) + h * math.log(self.rate) + h[::-1] * math.log1p(-self.rate)
        chances = np.exp(logs)
        capped = np.append(chances[: self.at_most], chances[self.at_most :].sum())
        off = rounding_of_chances(self.rounds, self.rate)
        return _first_rounds(self.mechanism, capped, self.rounds, self.span, off)

    def chance_to_take_part(self) -> Fraction:
        """Return at most r q times the chance in a round."""
        return min(Fraction(1), self.span * Fraction(self.rate) * self.mechanism.chance_to_take_part())


def _first_rounds(mechanism: Mechanism, chances: Array, rounds: int, released: int, off: float = 0.0) -> Participation:
    """Return the choice among released rounds of a uniform set of h of all rounds.

    It is uniform, of a hypergeometric size. Poisson sampling inside the rounds makes it smaller: a uniform set, thinned
    by coins, is uniform given its size.
    """
    if released < rounds:
        h, j = np.arange(len(chances)), np.arange(min(len(chances) - 1, released) + 1)[:, None]
        there = (j <= h) & (h - j <= rounds - released)
        outside = np.where(there, h - j, 0)
        logs = log_choose(released, j) + log_choose(rounds - released, outside) - log_choose(rounds, h)
        chances = np.array(_mixed_chances(logs, there, chances))
        off += rounding_of_chances(rounds)
    found = Participation(mechanism, tuple(chances.tolist()), released, off)
    while isinstance(found.mechanism, Poisson) and 0 < found.mechanism.rate < 1:
        rate, h = found.mechanism.rate, np.arange(len(found.chances))
        logs = log_choose(h, np.minimum(h[:, None], h)) + h[:, None] * math.log(rate)
        thinned = _mixed_chances(logs + (h - h[:, None]) * math.log1p(-rate), h[:, None] <= h, np.array(found.chances))
        rounding = found.rounding + rounding_of_chances(len(h), rate)
        found = Participation(found.mechanism.mechanism, thinned, found.rounds, rounding)
    return found


def _mixed_chances(logs: Array, there: NDArray[np.bool_], chances: Array) -> tuple[float, ...]:
    """Return the chances of j = 0, 1, .., given those of j under each h (``logs``, by j and h) and those of h."""
    mixed = np.where(there, np.exp(np.where(there, logs, -np.inf)), 0.0) @ chances
    return tuple(np.trim_zeros(mixed, "b").tolist())


# The number of rounds as a sum of independent coins.


def _coin_chances(k: int, rounds: int, released: int) -> Array:
    """Return probabilities of independent coins whose sum has the law of a person's rounds among the released ones.

    They are the roots of a Jacobi polynomial: E[C(H, j)] = C(k, j) C(r, j) / C(T, j) makes the product of (x - p_i)
    proportional to 2F1(-n, T - n + 1; |r - k| + 1; x), n = min(k, r). Where k + r > T the coins of those not drawn are
    turned over.

    Returns:
        Shape (min(k, released),).
    """
    if min(k, released) == 1:
        return np.array([max(k, released) / rounds])
    if k + released > rounds:
        turned = (k, rounds, rounds - released) if k <= released else (rounds - k, rounds, released)
        hidden = 1 - _coin_chances(*turned)
        return np.concatenate([np.ones(min(k, released) - len(hidden)), hidden])
    n, alpha, beta = min(k, released), abs(released - k), rounds - k - released
    if n == 0:
        return np.zeros(0)
    total, i = alpha + beta, np.arange(1.0, n)
    first = (beta - alpha) / (total + 2)
    diagonal = np.concatenate([[first], (beta - alpha) * total / ((2 * i + total) * (2 * i + total + 2))])
    numerator = 4 * i * (i + alpha) * (i + beta) * (i + total)
    beside = np.sqrt(numerator / ((2 * i + total) ** 2 * (2 * i + total + 1) * (2 * i + total - 1)))
    if n <= 32:  # no slow import
        eigenvalues = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, -1))
    else:
        from scipy.linalg import eigvalsh_tridiagonal

        eigenvalues = eigvalsh_tridiagonal(diagonal, beside)
    return np.clip((1 - eigenvalues) / 2, 0.0, 1.0)


def coin_groups(k: int, rounds: int, released: int, most: int = 12) -> list[tuple[float, int, int]]:
    """Return the coins of a prefix and the sizes of their groups, at most ``most`` distinct ones.

    Sizes are in proportion to the probabilities (the best at order 2). More coins than ``most`` share the largest
    probability and the smallest size of their neighbours, which costs more.

    Args:
        k: how many rounds of the whole run a person takes part in.
        rounds: of the whole run.
        released: how many of them are out.
        most: number of distinct groups.

    Returns:
        Triples (probability, size, number of such groups).
    """
    exact = np.sort(_coin_chances(k, rounds, released))
    if not len(exact):
        return []
    # Up, by what eigenvalues of a matrix of norm 1 may be off: a larger rate costs more.
    off = 8 * UNIT * (len(exact) + 4) if len(exact) > 1 else 0.0
    coins = np.minimum(exact * (1 + 8 * UNIT) + off, 1.0)
    low, high = 0.0, released / coins[-1] * 2
    for _ in range(4):  # the largest multiple of the coins that fits, to one part in 20,000
        tried = np.linspace(low, high, 13)
        fits = np.maximum(1, np.floor(tried[:, None] * coins)).sum(axis=1) <= released
        last = int(np.flatnonzero(fits)[-1])
        low, high = tried[last], tried[min(last + 1, 12)]
    sizes = np.maximum(1, np.floor(low * coins)).astype(int)
    sizes[np.argsort(sizes - low * coins, kind="stable")[: released - sizes.sum()]] += 1
    chunks = np.array_split(np.arange(len(coins)), min(most, len(coins)))
    return [(float(coins[chunk].max()), int(sizes[chunk].min()), len(chunk)) for chunk in chunks]


@lru_cache(maxsize=1024)
def best_coin_groups(k: int, rounds: int, released: int) -> list[tuple[float, int, int]]:
    """Return the groups of this prefix or, where groups are small, of a longer one.

    A longer prefix costs at least as much, but may divide better. The second moment, sum of p^2 / size, decides.
    """
    ahead = 31 if released < 3 * k <= 600 else 0
    candidates = [coin_groups(k, rounds, r) for r in range(released, min(rounds, released + ahead) + 1)]
    return min(candidates, key=lambda groups: sum(n * p * p / size for p, size, n in groups))
