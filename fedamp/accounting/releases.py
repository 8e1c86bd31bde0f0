"""Releases of one participation, and releases after one another: what all other mechanisms are made of.

A release knows its own law and moments. ``Compose`` and ``Repeat`` multiply the likelihood ratios of their parts. No
choice is hidden here: a reader goes on with :mod:`fedamp.accounting.hidden` for sampling, submodels and rounds.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from typing import Annotated

import numpy as np

from fedamp.accounting.arithmetic import UNIT, Array, combined_copies, log_sum, normal_mass
from fedamp.accounting.bounds import (
    Bounds,
    CountOrZero,
    NotEvaluable,
    OnePer,
    ProbabilityField,
    Relation,
    ScaleField,
    check_number,
    check_scale_or_zero,
    check_sequence,
    check_weights,
)
from fedamp.accounting.law import ClosedForm, Detail, Law, normal_grid, one_of
from fedamp.accounting.mechanism import (
    Mechanism,
    MomentsOf,
    OfOne,
    Release,
    check_mechanisms,
    closed_form_of,
    law_of_product,
    moments_of,
    numerical_law,
    outcomes_of,
)
from fedamp.accounting.outcomes import LARGEST_LOG, Outcomes, rounding_of_logs
from fedamp.accounting.renyi import (
    MixtureMoments,
    Moments,
    ProductMoments,
    integrated_moments,
    integrated_order,
    shifted_moments,
    unbounded_moments,
)
from fedamp.accounting.sampling import CHARGE


@dataclass(frozen=True, repr=False)
class Gaussian(Release):
    """Add Gaussian noise to a sum of contributions, each of 2-norm at most 1 (the clipping norm).

    Release: f + v + z, z ~ N(0, s^2 I).

    Let c be the largest change of a contribution: 1, or 2 under substitution. Then (Balle, Wang 2018, Theorem 8)

        delta(epsilon) = Phi(c / 2s - epsilon s / c) - e^epsilon Phi(-c / 2s - epsilon s / c),

    and the Rényi divergence of order a is a c^2 / (2 s^2) (Mironov 2017, Corollary 3).

    Args:
        noise_multiplier: s, standard deviation of the noise over the largest norm of a contribution, 1e-50 to 1e50.
        relation: which data sets are neighbours; default: zero-out.

    Example:
        >>> print(Gaussian(2.0).epsilon(1e-5))
        1.994 (at least 1.993)
    """

    noise_multiplier: ScaleField
    text = "Gaussian noise of multiplier {0.noise_multiplier:g}"
    is_exact = is_symmetric = is_mean = True

    def law(self, detail: Detail) -> Law:
        """X = exp(z / s - 1 / (2 s^2)), z standard normal under Q."""
        return Law.gaussian(self.noise_multiplier / self.largest_change, points=detail.points, reach=detail.reach)

    def moments(self) -> Moments:
        """log E[X^a] = a (a - 1) / (2 s^2)."""
        return GaussianMoments(self)

    def closed_form(self) -> ClosedForm:
        """Nothing is hidden: one choice, of signal-to-noise ratio 1 / s."""
        signal = np.full(1, self.signal_to_noise())
        return ClosedForm(signal, signal, np.ones(1), np.zeros(1), 4 * UNIT)

    def product_factors(self, times: int = 1) -> tuple[float, dict[Mechanism, int]]:
        """Return a Gaussian factor: 1 / s^2 of repetitions adds up."""
        return times * self.largest_change**2 / self.noise_multiplier**2, {}

    def signal_to_noise(self) -> float:
        """Return the squared change of a contribution over s^2."""
        return self.largest_change**2 / self.noise_multiplier**2

    def under_substitution(self) -> Mechanism:
        return replace(self, relation=Relation.SUBSTITUTION)

    def exact_group(self, size: int) -> Mechanism:
        """Contributions of K people add up to a norm of at most K."""
        return replace(self, noise_multiplier=self.noise_multiplier / size)


class GaussianMoments(MomentsOf[Gaussian]):
    """Moments of a Gaussian release."""

    @property
    def noise_per_change(self) -> float:
        """Standard deviation of the noise over the largest change of a contribution."""
        return self.event.noise_multiplier / self.event.largest_change

    def _quadrature_nodes(self, order: int, step: float = 0.25) -> tuple[Array, Array]:
        """Return log masses and log ratios of a grid that holds E[X^order]."""
        # E[X^a] is largest around z = a / s.
        z = np.arange(-10.0, order / self.noise_per_change + 10.0, step)
        return -z * z / 2 + np.log(
            step / np.sqrt(2 * np.pi)
        ), z / self.noise_per_change - 0.5 / self.noise_per_change**2

    def _central_moments(self, highest: int) -> Array:
        return integrated_moments(1 / self.noise_per_change, highest, 4000.0, self._quadrature_nodes)

    def finite_law(self) -> tuple[Array, Array, float]:
        """Return the law by quadrature, more accurate than the numerical law.

        The mass left of the nodes counts as X = 0.
        """
        if self.noise_per_change < 0.04:
            return super().finite_law()
        log_masses, log_ratios = self._quadrature_nodes(
            2, 0.25 * min(1.0, self.noise_per_change)
        )  # exp(-u X) falls within a few s
        return np.append(log_masses, math.log(1e-22)), np.append(log_ratios, -np.inf), 0.0

    def _raw_moments(self, highest: int) -> Array:
        """log E[X^a] = a (a - 1) c^2 / (2 s^2), exactly."""
        return shifted_moments(1 / self.noise_per_change, highest)


@dataclass(frozen=True, repr=False)
class Laplace(Release):
    """Add Laplace noise to a number; contributions are numbers of size at most 1.

    Release: f + v + z, z of density exp(-|z| / b) / (2 b).

    Epsilon is at most 1 / b at any delta, or 2 / b under substitution (Dwork, McSherry, Nissim, Smith 2006). X is
    constant left of 0 and right of 1.

    Args:
        scale: b, over the largest absolute contribution, 1e-50 to 1e50.
        relation: which data sets are neighbours; default: zero-out.

    Example:
        >>> print(Laplace(2.0).epsilon(1e-5))
        0.5 (at least 0.4999)
    """

    scale: ScaleField
    text = "Laplace noise of scale {0.scale:g}"
    is_exact = is_symmetric = True

    def law(self, detail: Detail) -> Law:
        """log X = (|z| - |z - 1|) / b."""
        return Law.laplace(self.scale / self.largest_change, points=detail.points)

    def certain_loss(self) -> Fraction:
        """|log X| is at most the change over b."""
        return Fraction(self.largest_change) / Fraction(self.scale)

    def under_substitution(self) -> Mechanism:
        return replace(self, relation=Relation.SUBSTITUTION)

    def exact_group(self, size: int) -> Mechanism:
        """Contributions of K people add up to at most K in size."""
        return replace(self, scale=self.scale / size)


@dataclass(frozen=True, repr=False)
class RandomisedResponse(Release):
    """Release one bit about all the data, true with a probability and flipped otherwise (Warner 1965).

    Release: a bit b with chance p, else 1 - b.

    It is one bit however many people's data change. If every person gives a bit, a group of K people goes through K of
    these: ``Repeat``. Epsilon is at most log(p / (1 - p)).

    Args:
        probability: p, of the true bit, in [1/2, 1).
        relation: which data sets are neighbours; default: zero-out.

    Example:
        >>> print(RandomisedResponse(0.75).epsilon(1e-5))
        1.099 (at least 1.098)
    """

    probability: ProbabilityField
    text = "randomised response, true with probability {0.probability:g}"
    is_exact = is_symmetric = True

    def check(self) -> None:
        """Refuse a probability outside [1/2, 1) (ValueError)."""
        if not 0.5 <= self.probability < 1:
            raise ValueError(f"probability must be in [0.5, 1), got {self.probability!r}")

    def law(self, detail: Detail) -> Law:
        """X is p / (1 - p) with Q-mass 1 - p, and (1 - p) / p with Q-mass p."""
        true, false = np.log(self.probability), np.log1p(-self.probability)
        log_weights, log_ratios = np.array([true, false]), np.array([false - true, true - false])
        return Law.from_points(np.exp(log_ratios), np.exp(log_weights), points=detail.points)

    def all_outcomes(self) -> Outcomes:
        true, false = math.log(self.probability), math.log1p(-self.probability)
        log_ratio = np.array([true - false, false - true])
        return Outcomes(np.array([false, true]), log_ratio, 0.0, rounding_of_logs(false))

    def certain_loss(self) -> Fraction:
        """|log X| is log(p / (1 - p)), rounded up."""
        return Fraction(abs(math.log(self.probability) - math.log1p(-self.probability)) * (1 + 8 * UNIT))

    def under_substitution(self) -> Mechanism:
        return replace(self, relation=Relation.SUBSTITUTION)

    def exact_group(self, size: int) -> Mechanism:
        """One bit stays one bit, flipped if any member changes it."""
        return self

    def with_own_bits(self, size: int, chosen: bool = False) -> Mechanism:
        """People who choose different bits turn one each."""
        return Repeat(self, size) if chosen else self


@dataclass(frozen=True, repr=False)
class FiniteOutcomes(Release):
    """Release one of finitely many outcomes, with known probabilities for the worst neighbours.

    Release: i with chance present_i, or absent_i.

    Outcomes that are possible with the contribution alone give it away: their probability is part of delta at every
    epsilon.

    Args:
        present: probability of each outcome with the person's contribution; they sum to 1.
        absent: with its replacement; of the same length.
        relation: which data sets are neighbours; default: zero-out.

    Example:
        >>> print(FiniteOutcomes((0.5, 0.5), (0.25, 0.75)).delta(0.0))
        0.2501 (at least 0.2499)
    """

    present: Annotated[Sequence[float], OnePer("present")]
    absent: Annotated[Sequence[float], OnePer("present")]
    is_exact = True

    @property
    def in_words(self) -> str:
        return f"one of {len(self.present)} outcomes"

    def law(self, detail: Detail) -> Law:
        """X is present_i / absent_i with Q-mass absent_i."""
        present, absent = np.array(self.present), np.array(self.absent)
        both = absent > 0
        infinite = float(present[~both].sum())
        return Law.from_points(present[both] / absent[both], absent[both], infinite=infinite, points=detail.points)

    def moments(self) -> Moments:
        return FiniteMoments(self)

    def all_outcomes(self) -> Outcomes:
        out, inside = np.array(self.absent), np.array(self.present)
        with np.errstate(divide="ignore"):
            log_out, log_in = np.log(out[out > 0]), np.log(inside[out > 0])
        return Outcomes(log_out, log_in - log_out, math.fsum(inside[out == 0]), rounding_of_logs(LARGEST_LOG))

    def certain_loss(self) -> Fraction:
        """Return the largest |log(present_i / absent_i)|, rounded up; none if an outcome is impossible on one side."""
        pairs = list(zip(self.present, self.absent, strict=True))
        if not all((p > 0) == (q > 0) for p, q in pairs):
            return super().certain_loss()
        logs = [(math.log(p), math.log(q)) for p, q in pairs if p]
        return Fraction(max(abs(p - q) - 4 * UNIT * (p + q) for p, q in logs) * (1 + 4 * UNIT))


class FiniteMoments(MomentsOf[FiniteOutcomes]):
    """Moments of a release with finitely many outcomes, some of which may give the data away."""

    def _negative_moments(self, highest: int) -> Array:
        """Return infinity where an outcome is impossible with the person in."""
        law = self._law().upper
        if law.zero:
            return unbounded_moments(highest)[1:]
        return np.array([log_sum(law.log_weights(0.0) - b * law.log_ratio) for b in range(highest)])

    def _raw_moments(self, highest: int) -> Array:
        """Return infinity where an outcome gives the person away."""
        return unbounded_moments(highest) if self._law().upper.infinite else super()._raw_moments(highest)


_MOST_KNOWN = 690.0  # beyond, the probabilities of a black box leave floating point


@dataclass(frozen=True, repr=False)
class Approximate(Release):
    """A black box with a guarantee that was proved elsewhere. Nothing more is known of it.

    Release: any, with P(A) <= exp(epsilon) Q(A) + delta.

    Args:
        known_epsilon: >= 0, at most 1e50.
        known_delta: in [0, 1).
        relation: which data sets are neighbours; default: zero-out.

    Example:
        >>> print(Approximate(0.5, 1e-6).epsilon(1e-5))
        0.5 (at least 0.4999)
    """

    known_epsilon: Annotated[float, check_scale_or_zero]
    known_delta: ProbabilityField = 0.0
    text = "a black box of epsilon {0.known_epsilon:g} and delta {0.known_delta:g}"

    @property
    def releases_nothing(self) -> bool:
        return self.known_epsilon == self.known_delta == 0

    def charged_as(self) -> Mechanism:
        """Return the worst mechanism with this guarantee.

        Every other one is a function of it (Kairouz, Oh, Viswanath 2015, Theorem 3.4; Murtagh, Vadhan 2016). It has
        four outcomes: with probability delta it tells everything, else it is randomised response with p = e^epsilon /
        (1 + e^epsilon).
        """
        if self.known_epsilon > _MOST_KNOWN:  # as if it told everything
            return FiniteOutcomes((1.0, 0.0), (0.0, 1.0), relation=self.relation)
        rest, less = 1 - self.known_delta, 1 / (1 + math.exp(self.known_epsilon))
        present = (self.known_delta, rest * (1 - less), rest * less, 0.0)
        return FiniteOutcomes(present, present[::-1], relation=self.relation)

    def attained_mechanism(self) -> Mechanism:
        """Return the worst one; a release that is private at a smaller epsilon is so at a larger one."""
        return self if self.known_epsilon <= _MOST_KNOWN else replace(self, known_epsilon=_MOST_KNOWN)

    def all_outcomes(self) -> Outcomes:
        """List the outcomes of :meth:`charged_as`, for any epsilon."""
        known, chance = self.known_epsilon, self.known_delta
        rest = math.log1p(-chance) - math.log1p(math.exp(-known))
        log_out, log_ratio = np.array([rest - known, rest]), np.array([known, -known])
        if chance:
            log_out, log_ratio = np.append(log_out, math.log(chance)), np.append(log_ratio, -np.inf)
        return Outcomes(log_out, log_ratio, chance, rounding_of_logs(known + LARGEST_LOG))

    def largest_loss(self) -> tuple[Fraction, Fraction]:
        """Return epsilon, which holds but for a chance of delta."""
        return Fraction(str(self.known_epsilon)), Fraction(str(self.known_delta))

    def certain_loss(self) -> Fraction:
        return Fraction(str(self.known_epsilon)) if not self.known_delta else super().certain_loss()


@dataclass(frozen=True)
class NotPrivate(Mechanism):
    """Release a sum without noise (noise multiplier 0): epsilon is infinite, for any neighbours.

    Release: f + v.

    Example:
        >>> NotPrivate().epsilon(1e-5).upper
        inf
    """

    text = "no noise, no privacy"
    is_private = False
    is_exact = tells_everything = True

    def law(self, detail: Detail) -> Law:
        """No output with the person in can occur without: X is infinite with P-mass 1."""
        return Law.from_points([0.0], [1.0], infinite=1.0, points=detail.points)

    def closed_form(self) -> ClosedForm:
        """Return an infinite signal, with nothing hidden."""
        signal = np.full(1, np.inf)
        return ClosedForm(signal, signal, np.ones(1), np.zeros(1))

    def under_substitution(self) -> Mechanism:
        return self

    def exact_group(self, size: int) -> Mechanism:
        """A group is as exposed as one person."""
        return self


@dataclass(frozen=True, repr=False)
class GaussianMixture(Release):
    """Unit Gaussian noise around a random shift when the person (or group) is in, around 0 when not.

    Release: m_i + z with chance w_i, or z, z ~ N(0, 1).

    X = sum_i w_i exp(m_i z - m_i^2 / 2), z standard normal, increases in z. Many dimensions reduce to it if all shifts
    point the same way. That is the worst case for Rényi and hockey-stick divergences (supermodularity, as in the proof
    of Theorem 6.4 of Yin, Zaheer, Li 2026).

    Args:
        shifts: m_i >= 0, in standard deviations of the noise.
        weights: w_i >= 0, one for each shift; they sum to 1.
        relation: zero-out (default) or add/remove.

    Example:
        >>> print(GaussianMixture([0.0, 1.0], [0.75, 0.25]).delta(0.0))
        0.09574 (at least 0.09573)
    """

    shifts: Sequence[float]
    weights: Sequence[float]
    takes_substitution = False
    is_exact = is_mean = True

    def check(self) -> None:
        """Check shifts and weights, sort them, and put equal shifts together (ValueError)."""
        shifts = tuple(check_number("shifts", shift) for shift in check_sequence("shifts", self.shifts))
        if not all(0 <= shift < math.inf for shift in shifts):
            raise ValueError(f"shifts must be >= 0 and finite, got {shifts!r}")
        merged: dict[float, float] = {}
        for shift, weight in sorted(zip(shifts, check_weights("weights", self.weights, len(shifts)), strict=True)):
            if weight > 0:
                merged[shift] = merged.get(shift, 0.0) + weight
        self._set_fields(shifts=tuple(merged), weights=tuple(merged.values()))

    @property
    def in_words(self) -> str:
        return f"Gaussian noise around one of {len(self.shifts)} shifts up to {self.shifts[-1]:g}"

    def simplified(self) -> Mechanism:
        """One shift is a Gaussian release, of multiplier 1 / m; a shift of 0 releases nothing."""
        if len(self.shifts) > 1:
            return self
        return Gaussian(1 / self.shifts[0], relation=self.relation) if self.shifts[0] else NOTHING

    def log_ratio(self, z: Array) -> Array:
        """Return log X at z, shape (n,)."""
        shifts, log_weights = np.array(self.shifts), np.log(self.weights)
        chunks = np.array_split(z, max(1, len(z) * len(shifts) // 1_000_000))
        return np.concatenate([log_sum(log_weights + shifts * (c[:, None] - shifts / 2)) for c in chunks])

    def law(self, detail: Detail) -> Law:
        """X increases in z, so intervals of z are cells of X."""
        z, low, high = normal_grid(self.shifts[-1], detail.points, detail.reach)
        pairs = zip(self.shifts, self.weights, strict=True)
        mass_in = np.sum([weight * normal_mass(low - shift, high - shift) for shift, weight in pairs], axis=0)
        return Law.from_masses(self.log_ratio(z), mass_in, normal_mass(low, high), detail.points)

    def moments(self) -> Moments:
        return GaussianMixtureMoments(self)

    def closed_form(self) -> ClosedForm:
        """The shift is the hidden choice: m_i^2 is the squared signal-to-noise ratio of each."""
        signal, chance = np.square(self.shifts), np.array(self.weights)
        return ClosedForm(signal, signal, chance, np.log(chance), 4 * UNIT)


class GaussianMixtureMoments(MomentsOf[GaussianMixture]):
    """Moments of Gaussian noise around a random shift, by quadrature."""

    @property
    def largest_shift(self) -> float:
        """The largest shift, which decides how far the quadrature must reach."""
        return float(self.event.shifts[-1])

    def _quadrature_nodes(self, low: float, high: float) -> tuple[Array, Array]:
        """Return log masses and log ratios at a grid of z from ``low`` to ``high``."""
        step = min(0.25, 0.5 / max(self.largest_shift, 1e-9))
        z = np.arange(low, high, step)
        return -z * z / 2 + np.log(step / np.sqrt(2 * np.pi)), self.event.log_ratio(z)

    def _central_moments(self, highest: int) -> Array:
        nodes = lambda order: self._quadrature_nodes(-10.0, order * self.largest_shift + 10.0)  # noqa: E731
        return integrated_moments(self.largest_shift, highest, 1000.0, nodes)

    def _negative_moments(self, highest: int) -> Array:
        """Integrate at low orders; above, the largest shift alone is the worst."""
        order = integrated_order(self.largest_shift, highest, 1000.0)
        result = shifted_moments(self.largest_shift, highest)[1:].copy()
        if not order:
            return result
        log_weights, log_ratios = self._quadrature_nodes(-order * self.largest_shift - 10.0, 10.0 + self.largest_shift)
        result[:order] = [max(0.0, float(log_sum(log_weights - n * log_ratios))) for n in range(order)]
        return result


# Releases after one another.


class Product(Mechanism, is_kind=False):
    """Base of releases after one another: X is a product of independent factors (Zhu, Dong, Wang 2022, Theorem 10).

    A part may depend on the outputs of those before it. Its worst case then dominates each adaptive choice, so the
    factors count as independent.
    """

    is_mean = True

    def law(self, detail: Detail) -> Law:
        """Multiply the laws of independent factors, Gaussians put together (Zhu, Dong, Wang 2022, Theorem 10)."""
        signal, others = self.product_factors()
        return law_of_product(signal, tuple(others.items()), detail)

    def moments(self) -> Moments:
        """Log moments add up."""
        times = self.times if isinstance(self, Repeat) else 1
        return ProductMoments(partial(numerical_law, self), [(moments_of(part), times) for part in self.parts if times])

    def all_outcomes(self) -> Outcomes:
        """Multiply the outcomes of the factors; Gaussian factors have too many (NotEvaluable)."""
        signal, others = self.product_factors()
        if signal:
            raise NotEvaluable("Gaussian releases have too many outcomes")
        return Outcomes.product((outcomes_of(part), times) for part, times in others.items())

    def narrowed_bracket(self, found: Bounds, delta: float, precision: float) -> Bounds:
        """Copies of some kinds cost less than the product of their laws."""
        gaussian, others = self.product_factors()
        if not gaussian and len(others) == 1:
            [(part, times)] = others.items()
            found = part.narrowed_repeats(times, found, delta)
        return super().narrowed_bracket(found, delta, precision)

    def attained_mechanism(self) -> Mechanism | None:
        """Compose what the parts attain: the charge is exact for that (Zhu, Dong, Wang 2022, Theorem 10)."""
        return attained_in_parts(self)

    def attained_in_draws(self) -> Mechanism | None:
        return self.with_parts(lambda part: part.attained_in_draws() or NOTHING)

    def under_substitution(self) -> Mechanism:
        return self.with_parts(lambda part: part.under_substitution())

    def exact_group(self, size: int) -> Mechanism:
        """A group sees each release as a group."""
        return self.with_parts(lambda part: part.exact_group(size))

    def group_by_rounds(self, size: int) -> Mechanism:
        return self.with_parts(lambda part: part.group_by_rounds(size))

    def certain_loss(self) -> Fraction:
        """Return the sum of the parts' losses, if each holds for certain."""
        most, chance = self.largest_loss()
        return super().certain_loss() if chance else most


def attained_part(part: Mechanism) -> Mechanism:
    """Return what a part of a mechanism attains; ``NOTHING`` if nothing is known."""
    return part.attained_mechanism() or NOTHING


def attained_in_parts(event: Mechanism) -> Mechanism | None:
    """Return the mechanism of what its parts attain; None if their relations differ."""
    try:
        return event.with_parts(attained_part)
    except ValueError:
        return None


@dataclass(frozen=True)
class Compose(Product):
    """Release several mechanisms one after another; each may depend on those before.

    Release: (M_1, M_2, ..), each may depend on those before.

    X is the product of the ratios of the parts (Zhu, Dong, Wang 2022, Theorem 10). If every part is a single release,
    they make one round together (for instance the shared and the split part of a model). If some part spans several
    rounds, the rounds of the parts follow one another. Parts that one coin samples must be composed first and then
    sampled: adding two separately sampled costs understates it.

    Args:
        mechanisms: one or more, of one neighbouring relation.

    Example:
        >>> print(Compose([Gaussian(3.0), Gaussian(4.0)]).epsilon(1e-5))
        1.628 (at least 1.627)
    """

    mechanisms: Annotated[Sequence[Mechanism], check_mechanisms]

    @property
    def in_words(self) -> str:
        return "[" + "; then ".join(part.in_words for part in self.mechanisms) + "]"

    @property
    def span(self) -> int:
        """1 if all parts are single releases, else the sum over the parts."""
        spans = [part.span for part in self.mechanisms]
        return 1 if all(span == 1 for span in spans) else sum(spans)

    def _run_prefix(self, rounds: int) -> Mechanism:
        """Take the parts in order, the last one up to the rounds that are left."""
        released: list[Mechanism] = []
        for part in self.mechanisms:
            if taken := min(rounds, part.span):
                released.append(part.after(taken))
            rounds -= taken
        return Compose(tuple(released)) if released else NOTHING

    def simplified(self) -> Mechanism:
        """One part is the part itself, and parts that release nothing are left out."""
        if len(self.mechanisms) == 1:
            return self.mechanisms[0]
        if any(part.releases_nothing for part in self.mechanisms):
            return Compose(tuple(part for part in self.mechanisms if not part.releases_nothing) or (NOTHING,))
        return self

    def unamplified(self) -> Mechanism:
        return self.with_parts(lambda part: part.unamplified())

    def attained_mechanism(self) -> Mechanism | None:
        """Compose what the parts attain: the charge is exact for that (Zhu, Dong, Wang 2022, Theorem 10)."""
        try:
            return self.with_parts(attained_part)
        except ValueError:  # the parts' relations differ: of releases after one another, one
            known = map(attained_part, self.parts)
            return next((part for part in known if part.relation is not None), None)

    def closed_form(self) -> ClosedForm:
        """Signals of revealed choices add up."""
        return reduce(ClosedForm.composed_with, [closed_form_of(part) for part in self.mechanisms])

    def product_factors(self, times: int = 1) -> tuple[float, dict[Mechanism, int]]:
        """Gaussian parts add up to one; equal others are counted."""
        signal, others = 0.0, Counter[Mechanism]()
        for part in self.mechanisms:
            more, rest = part.product_factors(times)
            signal += more
            others.update(rest)
        return signal, dict(others)

    def signal_to_noise(self) -> float | None:
        """Signals of independent statistics add up; one part without a Gaussian one leaves none."""
        signals = [part.signal_to_noise() for part in self.mechanisms]
        return None if None in signals else sum(signal for signal in signals if signal is not None)

    def chance_to_take_part(self) -> Fraction:
        """Return at most the sum over the parts."""
        return min(Fraction(1), sum((part.chance_to_take_part() for part in self.mechanisms), Fraction(0)))

    def largest_loss(self) -> tuple[Fraction, Fraction]:
        """Losses and chances add up."""
        known_losses, chances = zip(*(part.largest_loss() for part in self.mechanisms), strict=True)
        return sum(known_losses, Fraction(0)), sum(chances, Fraction(0))


@dataclass(frozen=True)
class Repeat(Product, OfOne):
    """Release the same mechanism several times, one after another, with fresh randomness each time.

    Release: (M_1, .., M_t).

    X is the product of t independent copies (Zhu, Dong, Wang 2022, Theorem 10). Gaussian releases together are one, of
    noise multiplier s / sqrt(t).

    Args:
        mechanism: one release, or a run.
        times: t >= 0.

    Example:
        >>> print(Repeat(Gaussian(10.0), 100).epsilon(1e-5))
        4.378 (at least 4.377)
    """

    times: CountOrZero

    @property
    def in_words(self) -> str:
        return f"{self.times} times ({self.mechanism.in_words})" if self.times else "nothing"

    @property
    def span(self) -> int:
        return self.times * self.mechanism.span

    def _run_prefix(self, rounds: int) -> Mechanism:
        """Take whole repetitions, and the beginning of the next one."""
        whole, rest = divmod(rounds, self.mechanism.span)
        released = Repeat(self.mechanism, whole)
        return Compose((released, self.mechanism.after(rest))) if rest else released

    def simplified(self) -> Mechanism:
        """Once is the mechanism itself."""
        return self.mechanism if self.times == 1 else self

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), self.times)

    def closed_form(self) -> ClosedForm:
        return combined_copies(closed_form_of(self.mechanism), self.times, ClosedForm.composed_with)

    def product_factors(self, times: int = 1) -> tuple[float, dict[Mechanism, int]]:
        return self.mechanism.product_factors(times * self.times) if self.times else (0.0, {})

    def signal_to_noise(self) -> float | None:
        signal = self.mechanism.signal_to_noise()
        return None if signal is None else float(self.times) * signal

    def chance_to_take_part(self) -> Fraction:
        """Return at most the chance in one, times their number."""
        return min(Fraction(1), self.times * self.mechanism.chance_to_take_part())

    def largest_loss(self) -> tuple[Fraction, Fraction]:
        """Losses and chances add up."""
        one, rarely = self.mechanism.largest_loss() if self.times else (Fraction(0), Fraction(0))
        return self.times * one, self.times * rarely


def composed(parts: Iterable[tuple[Mechanism, int]]) -> Mechanism:
    """Compose mechanisms one after another, each so many times; of no mechanism ``NOTHING``.

    Args:
        parts: pairs of a mechanism and how often it is released.

    Example:
        >>> composed([(Gaussian(1.0), 2)]).span
        2
        >>> print(composed([]) == Compose([NOTHING]), NOTHING.epsilon(1e-5))
        True 0 (at least 0)
    """
    return Compose([Repeat(each, times) for each, times in parts] or [NOTHING])


NOTHING = Repeat(NotPrivate(), 0)
"""The release that says nothing, for any neighbouring relation."""


@dataclass(frozen=True)
class RandomSelection(Mechanism):
    """Release one of several mechanisms, drawn with the given weights; the draw may be public.

    Release: (j, M_j), j with chance w_j.

    X has the law of X_j with probability w_j (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2). A mechanism without privacy
    costs its whole weight in delta at every epsilon, and no Rényi divergence is finite. The weights do not depend on
    the data: with weights that do, as in choosing the best of several runs, this charge is false.

    Args:
        mechanisms: one or more, of one neighbouring relation.
        weights: w_j >= 0, one for each mechanism; they sum to 1.

    Example:
        >>> print(RandomSelection([Gaussian(1.0), Gaussian(4.0)], [0.5, 0.5]).epsilon(1e-5))
        4.213 (at least 4.212)
    """

    mechanisms: Annotated[Sequence[Mechanism], check_mechanisms]
    weights: Annotated[Sequence[float], OnePer("mechanisms")]

    @property
    def in_words(self) -> str:
        pairs = zip(self.weights, self.mechanisms, strict=True)
        return "one of (" + ", ".join(f"{weight:g}: {part.in_words}" for weight, part in pairs) + ")"

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part in self.used_mechanisms[0])

    @property
    def releases_nothing(self) -> bool:
        return all(part.releases_nothing for part in self.used_mechanisms[0])

    @property
    def used_mechanisms(self) -> tuple[tuple[Mechanism, ...], tuple[float, ...]]:
        """The mechanisms that may be drawn, and their weights."""
        used = [pair for pair in zip(self.mechanisms, self.weights, strict=True) if pair[1]]
        return tuple(part for part, _ in used), tuple(weight for _, weight in used)

    def simplified(self) -> Mechanism:
        """One mechanism that may be drawn is that mechanism."""
        used, _ = self.used_mechanisms
        return used[0] if len(used) == 1 else self

    def unamplified(self) -> Mechanism:
        return self.with_parts(lambda part: part.unamplified())

    def attained_mechanism(self) -> Mechanism | None:
        """Draw among what the parts attain, for which the charge is exact.

        See the class (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2).
        """
        return attained_in_parts(self)

    def law(self, detail: Detail) -> Law:
        """Mix the parts' laws (Yin, Zaheer, Li 2026, Theorems 5.1 and 5.2)."""
        used, weights = self.used_mechanisms
        return Law.mixture([numerical_law(part, detail) for part in used], list(weights))

    def narrowed_bracket(self, found: Bounds, delta: float, precision: float) -> Bounds:
        """Sample the costliest mechanism alone, where a person takes part in several hidden rounds.

        delta is the weighted mean of the mechanisms' (Yin, Zaheer, Li 2026, Theorem 5.1). So epsilon is at least that
        of each at delta over its weight. The costliest one has what all others leave of delta there: beyond that
        epsilon they cost less. A certificate that fails is charged before its weight counts.
        """
        used, weights = self.used_mechanisms
        wide = found.lower < (1 - precision) * found.upper and delta < min(weights)
        if not wide or not any(part.is_sampled for part in used):
            return found
        lower = [part.epsilon(delta / w, precision=precision).lower for part, w in zip(used, weights, strict=True)]
        first = int(np.argmax(lower))
        others = [w * part.delta(lower[first]).upper for part, w in zip(used, weights, strict=True)]
        del others[first]
        left = delta - math.fsum(others) * (1 + 8 * UNIT) - CHARGE * delta / weights[first]
        if left <= 0:
            return found
        last = used[first].epsilon(left / weights[first], precision=precision)
        sampled = Bounds(lower[first], max(last.upper, lower[first]), last.origin)
        return self.bracket_intersection(found, sampled)

    def moments(self) -> Moments:
        """Return the mean of the parts' moments: the law is drawn."""
        used, weights = self.used_mechanisms
        return MixtureMoments(partial(numerical_law, self), [moments_of(part) for part in used], weights)

    def all_outcomes(self) -> Outcomes:
        used, weights = self.used_mechanisms
        return Outcomes.mixture([outcomes_of(part) for part in used], weights)

    def closed_form(self) -> ClosedForm:
        """The draw may be seen, so it takes no part in the weight of hidden choices."""
        return one_of([(closed_form_of(part), weight, 0.0) for part, weight in zip(*self.used_mechanisms, strict=True)])

    def chance_to_take_part(self) -> Fraction:
        """Return the weighted mean over the parts."""
        pairs = zip(*self.used_mechanisms, strict=True)
        return sum((Fraction(weight) * part.chance_to_take_part() for part, weight in pairs), Fraction(0))

    def certain_loss(self) -> Fraction:
        """Return the largest loss of a part that may be drawn."""
        return max(part.certain_loss() for part in self.used_mechanisms[0])

    def under_substitution(self) -> Mechanism:
        return self.with_parts(lambda part: part.under_substitution())
