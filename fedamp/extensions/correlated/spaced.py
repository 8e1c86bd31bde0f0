"""Correlated noise, where a person's rounds are hidden and meet: classes of rounds, spaced rounds, balls in bins.

The noise of the rounds is C^-1 z, C lower triangular and Toeplitz, with the column 1, c_1, c_2, .. So one participation
shows in several rounds: it adds a column of C to the white noise z. A person's columns that do not overlap are
orthogonal, and cost what independent rounds cost. docs/research/correlated-noise.md has the proofs.

The kinds come first, then how they are sampled, then the inner loops. :mod:`fedamp.accounting` has the kinds by their
names, and :mod:`fedamp.extensions.correlated.section` adds the noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations, pairwise, product
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedamp.accounting.arithmetic import (
    BUFFERS,
    EXPONENT,
    UNIT,
    Array,
    compiled,
    log_sum,
)
from fedamp.accounting.bounds import (
    CountField,
    NotEvaluable,
    Relation,
    UpTo,
    check_count,
    check_scale_or_zero,
    check_sequence,
)
from fedamp.accounting.hidden import Allocation, BegunRounds, Poisson
from fedamp.accounting.mechanism import Fact, Hidden, Mechanism
from fedamp.accounting.releases import Gaussian, Repeat
from fedamp.accounting.sampling import Factor, logs_in_range


@dataclass(frozen=True)
class Cyclic(Hidden):
    """Hide in which k rounds of a public class of rounds a person takes part.

    Release: (M_1, .., M_T), the person in k of those of one class.

    Round t is of the class t modulo ``classes``.

    The classes are for banded noise (docs/research/correlated-noise.md): with at most as many bands as classes, the
    rows of different participations do not meet. One participation over all its rows is one release of ``mechanism``.
    The cost is that of a class with the fewest rounds, rounds // classes: more of them hide the same choice better.

    Args:
        mechanism: one participation, for zero-out or add/remove.
        k: how many rounds a person takes part in, 0 to rounds // classes.
        rounds: T, of the whole run, >= 1.
        classes: 1 to ``rounds``.

    Raises:
        ValueError: k rounds do not fit into a class.

    Example:
        >>> print(Cyclic(Gaussian(1.0), 1, 20, 4).epsilon(1e-5))
        2.821 (at least 2.82)
    """

    k: Annotated[int, UpTo("rounds")]
    rounds: CountField
    classes: Annotated[int, UpTo("rounds", smallest=1)]
    text = "{0.of_a_class.in_words}, in one of {0.classes} public classes of {0.rounds} rounds"
    own_facts = (Fact.ROWS_MEET, Fact.REPRESENTED)

    def check(self) -> None:
        """Check that k rounds fit into the smallest class (ValueError)."""
        check_count("k", self.k, 0, self.rounds // self.classes, "rounds // classes")

    @property
    def of_a_class(self) -> Mechanism:
        """The charged run: over the rounds of a class with the fewest."""
        return Allocation(self.mechanism, self.k, self.rounds // self.classes)

    @property
    def span(self) -> int:
        return self.rounds

    def representative(self) -> Mechanism:
        """Return the run over the rounds of a class with the fewest (ours: docs/research/correlated-noise.md)."""
        return self.of_a_class

    def rounds_begun(self, rounds: int) -> int:
        """Return the most rounds of a class among the first ``rounds`` of all, 0 to rounds // classes."""
        return min(-(-rounds // self.classes), self.rounds // self.classes)

    def _run_prefix(self, rounds: int) -> Mechanism:
        """A participation of which some rows are out costs at most what all of them cost."""
        return self.of_a_class.after(self.rounds_begun(rounds))

    def simplified(self) -> Mechanism:
        """One class is a free choice of rounds."""
        return self.of_a_class if self.classes == 1 else self

    def unamplified(self) -> Mechanism:
        return self.of_a_class.unamplified()


class Correlated(BegunRounds, is_kind=False):
    """Base of hidden rounds with noise C^-1 z, C the lower triangular Toeplitz matrix of the coefficients.

    With fewer coefficients than the gap of a person's rounds (bands) the columns of different participations do not
    meet. With more, the sequence 1, c_1, c_2, .. must never rise, which bounds how columns overlap.

    Attributes:
        gap: the fewest rounds from one participation to the next.
        coefficients: c_1, c_2, .., each >= 0.
        rounds: of the whole run.
        released: how many rounds are out, 0 to ``rounds``; None: all.
    """

    gap: int
    coefficients: tuple[float, ...]
    is_mean = True
    own_facts: ClassVar[tuple[Fact, ...]] = (Fact.ROWS_MEET,)

    def check(self) -> None:
        """Check the coefficients: bands, or a sequence that never rises (ValueError)."""
        given = check_sequence("coefficients", self.coefficients)
        coefficients = tuple(check_scale_or_zero("coefficients", each) for each in given)
        self._set_fields(coefficients=coefficients)
        rise = any(later > sooner for sooner, later in pairwise((1.0, *coefficients)))
        if not self.is_banded and (rise or len(coefficients) >= self.rounds):
            enough = f"the bands ({len(coefficients) + 1}), or the rounds with coefficients that never rise from 1"
            raise ValueError(f"gap must be at least {enough}; got {self.gap} and {self.rounds}")

    @property
    def choice_in_words(self) -> str:
        """The hidden rounds of a person, in words."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        beginning = "" if self.released is None else f"the first {self.released} rounds of "
        noise = f"with noise over {len(self.coefficients) + 1} rounds"
        return f"{beginning}{self.choice_in_words}, {noise} ({self.mechanism.in_words})"

    @property
    def is_banded(self) -> bool:
        """Whether the rows of different participations do not meet."""
        return len(self.coefficients) < self.gap

    @property
    def most_released(self) -> int:
        """The most rounds of a person among those released."""
        raise NotImplementedError

    @property
    def known_signal(self) -> float:
        """Squared length of the columns of a person with known rounds, at most, over that of one column.

        Rounds as early, and as close, as can be are the worst (docs/research/correlated-noise.md).
        """
        column, starts = (1.0, *self.coefficients), [i * self.gap for i in range(self.most_released)]
        rows = [math.fsum(column[t - s] for s in starts if 0 <= t - s < len(column)) for t in range(self.span)]
        return math.fsum(row * row for row in rows) / math.fsum(each * each for each in column)

    def unamplified(self) -> Mechanism:
        return self.charged_as().unamplified()

    def charged_as(self) -> Mechanism:
        """Charge the rounds as if they were known.

        Rounds as early and as close as can be are the worst (ours: docs/research/correlated-noise.md). Sampling credits
        the hidden choice.

        Raises:
            NotEvaluable: the rows of different participations meet, and releases are not Gaussian.
        """
        if self.is_banded:
            return Repeat(self.mechanism, self.most_released)
        signal, others = self.mechanism.unamplified().product_factors()
        if others:
            raise NotEvaluable("only Gaussian releases are charged beside noise without bands")
        signal = (signal * self.known_signal + BUFFERS**2) * (1 + 1e-12)
        return Gaussian(signal**-0.5, relation=self.relation or Relation.ZERO_OUT)

    def attained_in_draws(self) -> Mechanism:
        """Only sampling knows lower ends."""
        return self

    @property
    def is_hidden_factor(self) -> bool:
        """Whether its releases are Gaussian."""
        if self.releases_nothing:
            return False
        signal, others = self.mechanism.product_factors()
        return signal > 0 and not others

    def sampled_factors(self, times: int) -> tuple[Factor, Factor]:
        """Return one factor, exact for upper and for lower ends."""
        one = self.sampled_rounds(self.mechanism.product_factors()[0] ** -0.5, times)
        return one, one

    def sampled_rounds(self, noise_multiplier: float, copies: int = 1) -> "SpacedRounds":
        """Return the factor of X, with sets one by one where bands do not keep them apart and they are few.

        Args:
            noise_multiplier: of one participation.
            copies: number of independent factors.
        """
        return ListedRounds(self, noise_multiplier, copies)

    def begun_factors(self, whole: Factor, rounds: Sequence[int]) -> Mapping[int, Factor]:
        """Return none: beginnings of listed sets do not share draws."""
        return {}


@dataclass(frozen=True)
class Spaced(Correlated):
    """Hide in which k rounds a person takes part, any two at least a gap apart, under correlated noise.

    Release: (f_t + v_t) + C^-1 z, v_t = 0 but in a uniform set of k rounds, any two at least a gap apart.

    The set is uniform and hidden among all such sets. The hidden choice amplifies Gaussian releases
    (docs/research/correlated-noise.md); with others it counts as known.

    Args:
        mechanism: one participation, for zero-out or add/remove.
        k: how many rounds a person takes part in, 0 to ``rounds``.
        rounds: of the whole run, >= 1; k of them ``gap`` apart have to fit.
        gap: the fewest rounds from one participation to the next, 1 to ``rounds``.
        coefficients: c_1, c_2, .. of the noise, each >= 0. Up to gap - 1 are bands: rows of different participations do
            not meet. With more, up to rounds - 1, the sequence 1, c_1, c_2, .. never rises, and releases are Gaussian.
        released: how many rounds are out, 0 to ``rounds``; default: all.

    Raises:
        ValueError: the rounds do not fit, or the coefficients are neither bands nor a sequence that never rises.

    Example:
        >>> two_of_six = Spaced(Gaussian(2.0), 2, 6, 3, (0.5,))
        >>> two_of_six.number_of_sets, two_of_six.is_banded
        (6, True)
        >>> print(two_of_six.unamplified())
        2 times (Gaussian noise of multiplier 2), zero-out
    """

    k: Annotated[int, UpTo("rounds")]
    rounds: CountField
    gap: Annotated[int, UpTo("rounds", smallest=1)]
    coefficients: tuple[float, ...]
    released: int | None = None
    own_facts = (Fact.ROWS_MEET, Fact.LAW_IS_FAR)

    def check(self) -> None:
        """Check that the rounds fit (ValueError)."""
        if not self.number_of_sets:
            raise ValueError(f"{self.k} rounds {self.gap} apart do not fit into {self.rounds} rounds")

    @property
    def choice_in_words(self) -> str:
        return f"{self.k} hidden rounds of {self.rounds}, at least {self.gap} apart"

    @property
    def number_of_sets(self) -> int:
        """The number of sets of rounds that a person may have."""
        return spaced_sets(self.rounds, self.k, self.gap)

    @property
    def most_released(self) -> int:
        """At most k, and as many as fit into the released rounds."""
        return min(self.k, -(-self.span // self.gap))

    def simplified(self) -> Mechanism:
        """The first round alone is sampled by a coin; without correlation, one round or a gap of 1 is an allocation."""
        signal, others = self.mechanism.product_factors()
        if self.released == 1 and self.k and self.is_banded and signal and not others:  # one row of a column
            noise = math.hypot(1.0, *self.coefficients) * signal**-0.5
            chance = Fraction(spaced_sets(self.rounds - self.gap, self.k - 1, self.gap), self.number_of_sets)
            return Poisson(Gaussian(noise, relation=self.relation or Relation.ZERO_OUT), float(chance))
        if self.coefficients:
            return self
        if 1 in (self.k, self.gap):
            return Allocation(self.mechanism, self.k, self.rounds).after(self.span)
        if self.number_of_sets == 1 and self.released is None:
            return self.charged_as()  # with correlated noise the last columns may be cut off: less
        return self

    def sampled_rounds(self, noise_multiplier: float, copies: int = 1) -> "SpacedRounds":
        """Return the Markov chain over spaced sets, or listed sets where they are few and columns meet."""
        kind = SpacedRounds if self.is_banded or self.number_of_sets > _MOST_SETS else ListedRounds
        return kind(self, noise_multiplier, copies)

    def begun_factors(self, whole: Factor, rounds: Sequence[int]) -> Mapping[int, Factor]:
        """Return the same chain cut after each beginning; without bands none."""
        if not isinstance(whole, SpacedRounds) or isinstance(whole, ListedRounds) or not self.is_banded:
            return {}
        return {number: replace(whole, event=replace(whole.event, released=number)) for number in rounds}

    def like_with_law(self) -> Mechanism:
        """Return about as many free rounds without a gap; for searches."""
        return Allocation(self.mechanism, self.k, -(-self.rounds // self.gap))


@dataclass(frozen=True)
class BallsInBins(Correlated):
    """Hide the first round s of a person, from which the others follow: s + gap, s + 2 gap, ..

    Release: (f_t + v_t) + C^-1 z, v_t = 0 but in the rounds of one residue modulo the gap.

    The first round s is one of the first ``gap`` rounds, uniform and hidden (Chua et al. 2025). Noise is correlated.

    Args:
        mechanism: one participation, for zero-out or add/remove.
        rounds: of the whole run, >= 1.
        gap: rounds from one participation to the next, 1 to ``rounds``.
        coefficients: c_1, c_2, .. of the noise, those of :class:`Spaced`.
        released: how many rounds are out, 0 to ``rounds``; default: all.

    Example:
        >>> BallsInBins(Gaussian(1.0), 6, 3, (0.5,)).most_released
        2
    """

    rounds: CountField
    gap: Annotated[int, UpTo("rounds", smallest=1)]
    coefficients: tuple[float, ...]
    released: int | None = None

    @property
    def choice_in_words(self) -> str:
        return f"every {self.gap}th of {self.rounds} rounds from a hidden one on"

    @property
    def most_released(self) -> int:
        """One in each gap of the released rounds."""
        return -(-self.span // self.gap)

    def simplified(self) -> Mechanism:
        """One participation without correlation is one hidden round."""
        if self.gap == self.rounds and not self.coefficients:
            return Allocation(self.mechanism, 1, self.rounds).after(self.span)
        return self


def spaced_sets(rounds: int, k: int, gap: int) -> int:
    """Return the number of sets of ``k`` of ``rounds`` rounds that are at least ``gap`` apart.

    It is C(rounds - (k - 1) (gap - 1), k).

    Example:
        >>> spaced_sets(6, 2, 3)
        6
    """
    return math.comb(max(rounds - (k - 1) * (gap - 1), 0), k) if k else 1


# How they are sampled.

_HIGHEST = 8  # order: 256 moves of a state at most
_MOST_TUPLES = 4_000_000  # of listed sets: 32 MB
_MOST_ROUNDS = 1000  # without bands
_MOST_SETS = 2000  # that are listed
_MOST_STATES = 16_000_000  # numbers in a table: 128 MB


class Far(NamedTuple):
    """Sums of products of columns at least a gap apart, over sigma^2.

    Each is a pair: the middle of the most and the least, and half their difference.

    Attributes:
        inside: over the pairs of a set.
        between: over the pairs of two sets.
    """

    inside: tuple[float, float]
    between: tuple[float, float]


@dataclass(frozen=True)
class SpacedRounds:
    """One factor of X: hidden rounds of correlated noise.

    X is the mean, over all sets S of k rounds at least ``gap`` apart, of the product of w_s over S,

        w_s = exp(<c_s, z> / sigma - |c_s|^2 / (2 sigma^2)),

    c_s column s of C, cut after the released rows. Columns of a set are orthogonal if C has bands.

    Those of t sets that are drawn for X^t are not. Their joint law is that of a Markov chain. Its state says how long
    ago each of the t sets had its last round, and how many it has left. Without bands, columns that are a gap apart or
    more overlap as well; sets differ little in how much, and the difference is charged as ``Far``.

    Attributes:
        event: the run.
        noise_multiplier: sigma, of one participation.
        copies: how many independent factors like this one there are.
    """

    event: Spaced
    noise_multiplier: float
    copies: int = 1
    chances: ClassVar[tuple[float, ...]] = (0.0, 1.0)

    @property
    def rounds(self) -> int:
        """How many rounds are released."""
        return self.event.span

    def tilted_factor(self, order: float, drift: float = 0.0) -> "_Schedules | _ListedTuples":
        """Return the factor under X^order, and under X^order G^drift."""
        return _Schedules.under_tilt(replace(self, copies=1), order, drift)

    @cached_property
    def noise_column(self) -> Array:
        """A column of C over sigma, of length 1 / sigma, shape (bands,)."""
        column = np.array([1.0, *self.event.coefficients])
        return np.asarray(column / (np.linalg.norm(column) * self.noise_multiplier))

    @cached_property
    def column_overlaps(self) -> Array:
        """<c_s, c_(s - d)> / sigma^2 at [s, d], d = 0..gap, shape (rounds, gap + 1)."""
        rounds, gap, released = self.event.rounds, self.event.gap, self.event.span
        padded = np.pad(self.noise_column, (0, gap + 1))
        terms = np.array([self.noise_column * padded[d : d + len(self.noise_column)] for d in range(gap + 1)])
        sums = np.pad(np.cumsum(terms, axis=1), ((0, 0), (1, 0)))
        rows = np.clip(released - np.arange(rounds), 0, len(self.noise_column))
        return np.ascontiguousarray(sums[:, rows].T)

    @cached_property
    def far_overlaps(self) -> Far:
        """Overlaps of columns that are a gap apart or more; 0 with bands.

        The sum over pairs is at most the largest sum, over a set, of the largest sums over another one:
        docs/research/correlated-noise.md, "Noise without bands".
        """
        event = self.event
        if event.is_banded:
            return Far((0.0, 0.0), (0.0, 0.0))
        if event.rounds > _MOST_ROUNDS:
            raise NotEvaluable(f"noise without bands is charged for up to {_MOST_ROUNDS} rounds")
        places = np.subtract.outer(np.arange(event.span), np.arange(event.rounds))
        column = np.pad(self.noise_column, (0, event.rounds))
        cut = np.where(places >= 0, column[np.maximum(places, 0)], 0.0)
        apart = np.abs(np.subtract.outer(np.arange(event.rounds), np.arange(event.rounds)))
        products = np.where(apart >= event.gap, cut.T @ cut, 0.0)
        early = np.arange(event.k) * event.gap  # as coefficients never rise, no set has more inside
        inside = float(products[np.ix_(early, early)].sum())
        own = np.where((apart > 0) & (apart < event.gap), -np.inf, -products)
        own[np.diag_indices(event.rounds)] = event.rounds  # more than all others, so that a round is in its own set
        least_inside = -float(_largest_sums(_largest_sums(own, event) - event.rounds, event))
        between, least = (
            float(_largest_sums(_largest_sums(products, event), event)),
            -float(_largest_sums(_largest_sums(-products, event), event)),
        )
        ends = (inside / 2, max(least_inside, 0.0) / 2), (between, max(least, 0.0))
        inner, outer = (((most + few) / 2, (most - few) / 2 + 1e-9 * most) for most, few in ends)
        return Far(inner, outer)

    @cached_property
    def round_shares(self) -> Array:
        """The chance of each round to be one of a person's, 0 for rounds that are not released, shape (rounds,)."""
        event = self.event
        found = np.zeros(event.rounds)
        for s in range(event.span):
            before, behind, left = max(s + 1 - event.gap, 0), max(event.rounds - s - event.gap, 0), event.k - 1
            ways = (
                spaced_sets(before, c, event.gap) * spaced_sets(behind, left - c, event.gap) for c in range(event.k)
            )
            found[s] = sum(ways) / event.number_of_sets
        return found

    @cached_property
    def mean_drift(self) -> tuple[Array, Array, float]:
        """Three numbers about the mean m of all sets' columns over sigma.

        They are m, shape (released,); <c_s, m> / sigma, shape (rounds,); and the mean of |c_s|^2 over all sets' rounds,
        summed, over sigma^2.
        """
        released = self.event.span
        mean = np.convolve(self.round_shares, self.noise_column)[:released]
        along = np.zeros(self.event.rounds)
        along[:released] = np.correlate(np.pad(mean, (0, len(self.noise_column) - 1)), self.noise_column, "valid")
        return mean, along, float(self.round_shares @ self.column_overlaps[:, 0])

    @cached_property
    def common_direction(self) -> Array:
        """Noise d over |d|^2 that moves log X by 1 whatever the set: <c_s, d> = 1 / k; zeros: there is none.

        After fewer rounds than all, sets differ in how many rounds they have; without bands X is a bound.
        """
        event, column = self.event, self.noise_column
        found = np.zeros(event.span + len(column))
        for s in range(event.span - 1, -1, -1) if event.is_banded and event.span == event.rounds else ():
            found[s] = (1 / event.k - column[1:] @ found[s + 1 : s + len(column)]) / column[0]
        return np.asarray(found[: event.span] / max(float(found @ found), 1e-300))

    @cached_property
    def common_spread(self) -> float:
        """Standard deviation of log X along ``common_direction``."""
        return float(np.linalg.norm(self.common_direction))

    @property
    def shift_rounding(self) -> float:
        """Bound on what is lost of log X as a linear function, and on the error of its shift, in units."""
        column = self.noise_column
        off = 160 * len(column) * self.event.k * float(column.sum()) + self.event.rounds**1.5 * self.common_spread
        return float(EXPONENT * off) if self.common_spread else 0.0

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X: sums of exponentials, and without bands the buffers and ``Far``."""
        units = 2 * self.event.rounds + (8 * len(self.noise_column) + 8) * EXPONENT * self.event.k + 64
        units += self.shift_rounding
        return (0.0 if self.event.is_banded else BUFFERS) + self.far_overlaps.inside[1] + units * UNIT

    @property
    def draw_width(self) -> int:
        """Numbers of one draw: rows, and the columns that are added to them."""
        return 2 * self.event.rounds

    @property
    def draw_steps(self) -> int:
        """Steps of the recursions a draw."""
        return self.event.rounds * (self.event.k + len(self.noise_column) + 60) + 100

    def fingerprint(self) -> bytes:
        """Return bytes that tell factors apart, so that each has its own random numbers."""
        return f"{self.event.to_json()} {self.copies}".encode() + np.float64(self.noise_multiplier).tobytes()

    def log_ratios(self, rows: Array) -> tuple[Array, Array]:
        """Return log X, and log G = the sum of the shares times log w_s.

        Args:
            rows: z, shape (draws, released).

        Raises:
            NotEvaluable: ratios leave the range in which the stated rounding holds.
        """
        event = self.event
        scale = math.exp(-math.log(event.number_of_sets) / event.k)
        padded, halves = np.pad(rows, ((0, 0), (0, len(self.noise_column) - 1))), self.column_overlaps[:, 0] / 2
        means, logs, largest = spaced_means(
            padded, self.noise_column, halves, self.round_shares, scale, event.k, event.gap, event.span
        )
        return logs_in_range(means, largest) - self.far_overlaps.inside[0], logs


def _largest_sums(weights: Array, event: Spaced) -> Array:
    """Return the largest sum of weights over a person's possible rounds.

    Args:
        weights: shape (.., rounds); one answer for each row.
        event: says which rounds are possible.
    """
    sums = np.full((event.rounds + 1, event.k + 1, *weights.shape[:-1]), -np.inf)
    sums[:, 0] = 0.0
    for s in range(event.rounds):
        sums[s + 1, 1:] = np.maximum(sums[s, 1:], weights[..., s] + sums[max(s + 1 - event.gap, 0), :-1])
    return np.asarray(sums[-1, -1])


class _Moves(NamedTuple):
    """Moves of t sets in a round.

    A set is of one of 1 + k gap kinds: it has no round yet, or some number of rounds left and had its last one ``age``
    + 1 rounds ago (``gap`` - 1 stands for that and more). A state is a multiset of t kinds, because the sets are alike.

    Attributes:
        ages, left: shape (states, t), of a state's kinds. Moves from state i are ``starts[i]`` to ``starts[i + 1]``,
            the first: no set takes the round.
        targets, taken: shape (moves,): the state after each, and how many sets take the round.
    """

    ages: NDArray[np.int64]
    left: NDArray[np.int64]
    starts: NDArray[np.int64]
    targets: NDArray[np.int32]
    taken: NDArray[np.int8]


@lru_cache(maxsize=8)
def _set_moves(k: int, gap: int, order: int) -> _Moves:
    """List the moves of ``order`` sets; the first kinds come first, so that a state's rank is a sum of binomials."""
    kind, states = np.arange(1 + k * gap), np.zeros((1, 0), int)
    for size in range(1, order + 1):  # multisets in an order in which those of the first kinds come first
        firsts = [states[: math.comb(each + size - 1, size - 1)] for each in kind]
        states = np.concatenate([np.pad(f, ((0, 0), (0, 1)), constant_values=i) for i, f in enumerate(firsts)])
    age, left = np.where(kind > 0, (kind - 1) % gap, gap - 1), np.where(kind > 0, k - 1 - (kind - 1) // gap, k)
    older, taking = np.where((kind > 0) & (age < gap - 1), kind + 1, kind), 1 + (k - left) * gap
    place = np.arange(order)
    rank = np.array([[math.comb(each + i, i + 1) for i in range(order)] for each in kind.tolist()])
    may, moves = ((age == gap - 1) & (left > 0))[states], []
    for mask in product((False, True), repeat=order):
        sources = np.flatnonzero(may[:, list(mask)].all(axis=1))
        after = np.sort(np.where(mask, taking[states[sources]], older[states[sources]]), axis=1)
        moves.append((sources, rank[after, place].sum(axis=1), np.full(len(sources), sum(mask))))
    sources, targets, taken = (np.concatenate(each) for each in zip(*moves, strict=True))
    order_of_sources = np.argsort(sources, kind="stable")
    starts = np.searchsorted(sources[order_of_sources], np.arange(len(states) + 1))
    targets, taken = targets[order_of_sources].astype(np.int32), taken[order_of_sources].astype(np.int8)
    return _Moves(age[states], left[states], starts, targets, taken)


class _Tables(NamedTuple):
    """Tables of the chain of t sets.

    Attributes:
        weight: shape (released + 1, states): of all that may follow before each round, up to a factor ``scale`` of
            each. c sets that take round s weigh ``near[which[s], state]^c alone[s, c]``: what they share with sets that
            had a round shortly before, and with one another.
        log_total: of the weight of everything.
    """

    weight: Array
    scale: Array
    near: Array
    which: NDArray[np.int64]
    alone: Array
    log_total: float


@lru_cache(maxsize=2)
def _chain_tables(factor: SpacedRounds, order: int, drift: float) -> _Tables:
    """Fill the tables of a factor from the last released round back.

    Later rounds weigh 1, so each set has as many ways to go on as there are.

    Raises:
        NotEvaluable: there are too many states, or weights leave the range of floating point.
    """
    event, gap, overlaps = factor.event, factor.event.gap, factor.column_overlaps
    if (event.rounds + 1) * math.comb(event.k * gap + order, order) > _MOST_STATES:
        raise NotEvaluable(f"{order} spaced schedules have too many states")
    moves, count = _set_moves(event.k, gap, order), np.arange(order + 1)
    kinds, which = np.unique(overlaps[:, 1:], axis=0, return_inverse=True)
    beside = np.where(np.arange(gap) < gap - 1, kinds, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.exp([each[moves.ages].sum(axis=1) for each in beside])
        alone = np.multiply.outer(drift * factor.mean_drift[1], count) if drift else 0.0
        alone = np.exp(alone + np.multiply.outer(overlaps[:, 0], count * (count - 1) / 2))
        weight, scale = np.zeros((event.span + 1, len(moves.left))), np.ones(event.span)
        ways = np.zeros((event.k + 1, gap))
        for left, age in np.ndindex(ways.shape):  # the next round is ``gap`` - 1 - age rounds ahead at least
            ways[left, age] = spaced_sets(max(event.rounds - event.span - (gap - 1 - age), 0), left, gap)
        most = float(ways.max())
        weight[-1] = (ways[moves.left, moves.ages] / most).prod(axis=1)
        chain_weights(weight, scale, near, which.ravel(), alone, moves.starts, moves.targets, moves.taken)
    whole = float(weight[0, 0])
    if not 1e-200 < whole < math.inf:
        raise NotEvaluable("weights of spaced schedules leave the range of floating point")
    log_total = math.log(whole) + float(np.log(scale).sum()) + order * math.log(most)
    return _Tables(weight, scale, near, which.ravel(), alone, log_total)


class _Schedules(NamedTuple):
    """Spaced rounds under X^t, t whole, and under X^t G^drift.

    The tables are those of both laws; the other fields are those of ``_Tilted``.
    """

    factor: SpacedRounds
    order: int
    drift: float
    tables: tuple[_Tables, _Tables]
    log_moment: float
    drifted_moment: float
    relative: float
    variation: float

    @classmethod
    def under_tilt(cls, factor: SpacedRounds, order: float, drift: float) -> "_Schedules":
        """Make both tables, and their moments.

        ``log_moment`` is log E_Q[X^order], or with ``Far`` what stands for it in the middle of the density.

        Raises:
            NotEvaluable: the order is not whole, or above 8.
        """
        if order != int(order) or order > _HIGHEST:
            raise NotEvaluable(f"spaced schedules are drawn at whole orders up to {_HIGHEST} only")
        event, t = factor.event, int(order)
        tables = _chain_tables(factor, t, 0.0), _chain_tables(factor, t, drift)
        log_moment, drifted = (
            each.log_total - t * math.log(event.number_of_sets) + t * (t - 1) / 2 * factor.far_overlaps.between[0]
            for each in tables
        )
        if drift:
            mean, _, squares = factor.mean_drift
            drifted += drift * (drift * float(mean @ mean) - squares) / 2
        size = (t**2 + drift * (t + drift)) * event.k / factor.noise_multiplier**2
        steps = 8 * event.rounds * (2**t + 4 + t**2) + 64 * (
            size + t * math.log(event.number_of_sets) + EXPONENT * drift
        )
        relative = steps * UNIT + t * (t - 1) / 2 * factor.far_overlaps.between[1]
        return cls(factor, t, drift, tables, log_moment, drifted, relative, 16 * steps * UNIT)

    def draw(self, rng: np.random.Generator, drifted: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Draw log X, its common shift, and log G = the sum of the shares times log w_s."""
        rows = rng.standard_normal((len(drifted), self.factor.rounds))
        for which, drift in ((~drifted, 0.0), (drifted, self.drift)):
            if which.any():
                moved = rows[which] + drift * self.factor.mean_drift[0] if drift else rows[which]
                add_columns(moved, self._draw_rounds(rng, len(moved), drift), self.factor.noise_column)
                rows[which] = moved
        log_ratio, log_mean = self.factor.log_ratios(rows)
        return log_ratio, (rows * self.factor.common_direction).sum(axis=1), log_mean

    def _draw_rounds(self, rng: np.random.Generator, draws: int, drift: float) -> NDArray[np.int8]:
        """Draw how many of the t sets take each round, shape (draws, rounds)."""
        event, tables = self.factor.event, self.tables[drift > 0]
        moves = _set_moves(event.k, event.gap, self.order)
        uniforms = rng.random((event.span, draws))
        drawn: NDArray[np.int8] = taken_rounds(uniforms, *tables[:-1], moves.starts, moves.targets, moves.taken)
        return drawn

    def draw_beginnings(self, rng: np.random.Generator, draws: int, ends: NDArray[np.int64]) -> tuple[Array, Array]:
        """Draw log X after each of the first ``ends`` rounds, and the log weight of later rows.

        The weight is the mean over later rows of the ratios of the t sets that are drawn
        (docs/research/correlated-noise.md, "After each round"); both are of shape (draws, n).
        """
        factor, event = self.factor, self.factor.event
        rows = rng.standard_normal((draws, factor.rounds))
        taken, signal, squares = self._draw_rounds(rng, draws, 0.0), np.zeros(rows.shape), np.zeros(rows.shape)
        add_columns(signal, taken, factor.noise_column)
        add_columns(squares, taken, factor.noise_column**2)
        later = np.cumsum(np.pad((signal**2 - squares) / 2, ((0, 0), (0, 1)))[:, ::-1], axis=1)[:, ::-1]
        scale = math.exp(-math.log(event.number_of_sets) / event.k)
        ways = [[spaced_sets(n, c, event.gap) * scale**c for c in range(event.k + 1)] for n in range(event.rounds + 1)]
        means, largest = spaced_beginnings(
            rows + signal, factor.noise_column, scale, np.array(ways, float), event.k, event.gap, ends
        )
        return logs_in_range(means, largest), later[:, ends]


@dataclass(frozen=True)
class ListedRounds(SpacedRounds):
    """X as a mean over few sets, each with its signal."""

    event: Correlated  # type: ignore[assignment]

    def tilted_factor(self, order: float, drift: float = 0.0) -> "_ListedTuples":
        return _ListedTuples(self, order, drift)

    @cached_property
    def set_signals(self) -> Array:
        """C 1_S over sigma for each set, shape (sets, released)."""
        event, column = self.event, np.pad(self.noise_column, (0, self.event.rounds))
        if isinstance(event, Spaced):
            moved = np.arange(event.k) * (event.gap - 1)
            sets = [np.array(each, int) + moved for each in combinations(range(event.rounds - moved[-1]), event.k)]
        else:
            sets = [np.arange(first, event.rounds, event.gap) for first in range(event.gap)]
        if len(sets) > _MOST_SETS or event.rounds > _MOST_ROUNDS:
            raise NotEvaluable(f"up to {_MOST_SETS} sets of up to {_MOST_ROUNDS} rounds are listed")
        found = np.zeros((len(sets), event.span))
        for signal, rounds in zip(found, sets, strict=True):
            for s in rounds[rounds < event.span]:
                signal[s:] += column[: event.span - s]
        return found

    @cached_property
    def common_direction(self) -> Array:
        """The shortest noise d, over |d|^2, that moves log X by 1 whatever the set; zeros: there is none."""
        signals = self.set_signals
        found = np.linalg.lstsq(signals, np.ones(len(signals)), rcond=None)[0]
        linear = np.abs(signals @ found - 1).max() < 1e-10
        return np.asarray(found / (found @ found) if linear else np.zeros(len(found)))

    @property
    def shift_rounding(self) -> float:
        return EXPONENT * (1e-10 / UNIT + self.event.span**1.5 * self.common_spread) if self.common_spread else 0.0

    @property
    def ratio_rounding(self) -> float:
        """Bound on the relative error of X.

        It covers sums of ``span`` products of up to ``EXPONENT``, their exponentials, and the mean.
        """
        units = (4 * self.event.span + 8) * EXPONENT + len(self.set_signals) + self.shift_rounding
        return (0.0 if self.event.is_banded else BUFFERS) + units * UNIT

    @property
    def draw_width(self) -> int:
        return self.event.span + len(self.set_signals)

    @property
    def draw_steps(self) -> int:
        return self.set_signals.size // 16 + 8 * len(self.set_signals) + 100

    def log_ratios(self, rows: Array) -> tuple[Array, Array]:
        """Return log X of z in ``rows``, shape (draws, released), twice."""
        logs = rows @ self.set_signals.T - (self.set_signals**2).sum(1) / 2
        if not np.abs(logs).max() < EXPONENT:
            raise NotEvaluable("likelihood ratios leave the range of floating point")
        found = np.asarray(log_sum(logs) - math.log(len(self.set_signals)))
        return found, found


class _ListedTuples:
    """Listed rounds under X^t, t whole.

    The t sets have chances in proportion to exp of their signals' products; the attributes are those of ``_Tilted``.
    """

    def __init__(self, factor: ListedRounds, order: float, drift: float) -> None:
        signals, t = factor.set_signals, int(order)
        if drift or order != t or len(signals) ** t > _MOST_TUPLES:
            raise NotEvaluable("few sets are drawn at whole orders, as long as their tuples are few")
        self.factor, self.signals, self.order = factor, signals, t
        products, logs = signals @ signals.T, np.zeros((len(signals),) * t)
        for one, other in combinations(range(t), 2):
            logs += products.reshape([len(signals) if axis in (one, other) else 1 for axis in range(t)])
        self._below = np.cumsum(np.exp(logs.ravel() - logs.max()))
        self.log_moment = float(logs.max() + math.log(self._below[-1]) - t * math.log(len(signals)))
        self.drifted_moment = self.log_moment
        self._below /= self._below[-1]
        self.relative = (4 * (signals.shape[1] + 8) * (float(logs.max()) + 1) + logs.size) * UNIT
        self.variation = 2 * self.relative

    def draw(self, rng: np.random.Generator, drifted: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
        """Draw log X, its common shift, and log X again, because listed sets have no drift."""
        draws, signals = len(drifted), self.signals
        drawn = np.minimum(np.searchsorted(self._below, rng.random(draws), side="right"), len(self._below) - 1)
        rows = rng.standard_normal((draws, signals.shape[1]))
        for _ in range(self.order):
            drawn, last = np.divmod(drawn, len(signals))
            rows += signals[last]
        log_ratio, again = self.factor.log_ratios(rows)
        return log_ratio, (rows * self.factor.common_direction).sum(axis=1), again

    def draw_beginnings(self, rng: np.random.Generator, draws: int, ends: NDArray[np.int64]) -> tuple[Array, Array]:
        """Refuse: beginnings of listed sets do not share draws (NotEvaluable)."""
        raise NotEvaluable("beginnings of listed sets do not share draws")


# Inner loops, compiled like those of :mod:`fedamp.accounting.arithmetic`.


@compiled(nogil=True)
def chain_weights(weight, scale, near, which, alone, starts, targets, taken):  # type: ignore[no-untyped-def]
    """Fill ``weight`` from its last row back, by the moves and tables of a chain of sets.

    ``scale`` gets the powers of two that keep its rows in range.
    """
    powers = np.ones(alone.shape[1])
    for s in range(len(scale) - 1, -1, -1):
        beside, more, now, after, largest = near[which[s]], alone[s], weight[s], weight[s + 1], 0.0
        for i in range(len(now)):
            total = after[targets[starts[i]]]
            if starts[i + 1] > starts[i] + 1:
                for c in range(1, len(powers)):
                    powers[c] = powers[c - 1] * beside[i]
                for move in range(starts[i] + 1, starts[i + 1]):
                    total += powers[taken[move]] * more[taken[move]] * after[targets[move]]
            now[i] = total
            largest = max(largest, total)
        while scale[s] < largest < np.inf:
            scale[s] *= 2.0
        for i in range(len(now)):
            now[i] /= scale[s]


@compiled(nogil=True)
def taken_rounds(uniforms, weight, scale, near, which, alone, starts, targets, taken):  # type: ignore[no-untyped-def]
    """Draw how many of the sets of a chain take each round, by its moves and tables.

    Args:
        uniforms: shape (rounds, draws).

    Returns:
        Shape (draws, rounds).
    """
    rounds, draws = uniforms.shape
    state, found = np.zeros(draws, np.int64), np.zeros((draws, rounds), np.int8)
    for s in range(rounds):  # outside, so that a round's table stays close
        beside, more, now, after = near[which[s]], alone[s], weight[s], weight[s + 1]
        for d in range(draws):
            i = state[d]
            move, last = starts[i], starts[i + 1] - 1
            left = uniforms[s, d] * now[i] * scale[s] - after[targets[move]]
            while left >= 0 and move < last:
                move += 1
                left -= beside[i] ** taken[move] * more[taken[move]] * after[targets[move]]
            state[d] = targets[move]
            found[d, s] = taken[move]
    return found


@compiled(nogil=True)
def add_columns(rows, taken, column):  # type: ignore[no-untyped-def]
    """Add ``taken[d, s]`` times the column that starts at row s to each of the ``rows``."""
    draws, released = rows.shape
    for d in range(draws):
        for s in range(released):
            if taken[d, s]:
                for j in range(min(len(column), released - s)):
                    rows[d, s + j] += taken[d, s] * column[j]


@compiled(nogil=True)
def spaced_beginnings(rows, column, scale, ways, k, gap, ends):  # type: ignore[no-untyped-def]
    """Return means over spaced sets after the first ``ends`` rounds (ascending); see ``spaced_means``.

    ``ways[n, c]`` is the number of sets of c of n rounds, times ``scale``^c. The sums have all columns that end before
    a beginning does; the others are cut, and later rounds have their number of ways.

    Returns:
        Means, shape (draws, n), and the largest number on the way.
    """
    draws, rounds, bands = len(rows), len(ways) - 1, len(column)
    means, largest = np.empty((draws, len(ends))), 0.0
    halves = np.zeros(bands + 1)
    for j in range(bands):
        halves[j + 1] = halves[j] + column[j] ** 2 / 2
    released = ends[-1]
    sums, whole = np.zeros((released + 1, k + 1)), np.zeros(released)
    sums[:, 0] = 1.0
    for d in range(draws):
        for s in range(released - bands + 1):
            log_weight = -halves[bands]
            for j in range(bands):
                log_weight += column[j] * rows[d, s + j]
            whole[s] = scale * np.exp(log_weight)
            for c in range(1, k + 1):
                sums[s + 1, c] = sums[s, c] + whole[s] * sums[max(s + 1 - gap, 0), c - 1]
        for i in range(len(ends)):
            end, total = ends[i], 0.0
            for c in range(k + 1):
                total += sums[max(end - gap + 1, 0), c] * ways[rounds - end, k - c]
            for s in range(max(end - gap + 1, 0), end):
                weight = whole[s]
                if s + bands > end:
                    log_weight = -halves[end - s]
                    for j in range(end - s):
                        log_weight += column[j] * rows[d, s + j]
                    weight = scale * np.exp(log_weight)
                for c in range(1, k + 1):
                    total += weight * sums[max(s + 1 - gap, 0), c - 1] * ways[max(rounds - s - gap, 0), k - c]
            means[d, i] = total
            largest = max(largest, total)
    return means, largest


@compiled(nogil=True)
def spaced_means(rows, column, halves, shares, scale, k, gap, released):  # type: ignore[no-untyped-def]
    """Return the mean over all spaced sets of the products of w_s = exp(<c_s, row> - halves[s]).

    Rounds that are not released have w_s = 1. scale^k is the inverse of the number of sets.

    Returns:
        Means, shape (draws,); the sums of shares times log w_s, shape (draws,); the largest number on the way.
    """
    draws, rounds = len(rows), len(shares)
    means, logs, largest = np.empty(draws), np.zeros(draws), 0.0
    sums = np.zeros((rounds + 1, k + 1))
    sums[:, 0] = 1.0
    for d in range(draws):
        for s in range(rounds):
            weight = scale
            if s < released:
                log_weight = -halves[s]
                for j in range(len(column)):
                    log_weight += column[j] * rows[d, s + j]
                logs[d] += shares[s] * log_weight
                weight *= np.exp(log_weight)
            before = max(s + 1 - gap, 0)
            for c in range(1, k + 1):
                sums[s + 1, c] = sums[s, c] + weight * sums[before, c - 1]
        means[d] = sums[rounds, k]
        for c in range(k + 1):
            largest = max(largest, sums[rounds, c])
    return means, logs, largest
