"""The lower end of few of very many hidden rounds, in blocks of rounds; docs/research/k-of-t.md, Propositions 8 and 9.

A block of rounds has the mean of their ratios, a finite law. A person may take part in up to two rounds of a block,
whose product has a mean given that of the block. Blocks are drawn from a law that is fitted to the losses that count.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from fedamp.accounting import arithmetic
from fedamp.accounting.arithmetic import EXPONENT, UNIT, Array, combined_copies, log_choose, log_sum, rounding_of_cells
from fedamp.accounting.bounds import NotEvaluable
from fedamp.accounting.law import Law, Pairing, Points, cell_means, choose_edges, contract_cells, paired_points
from fedamp.accounting.sampling import (
    CHARGE,
    QUESTIONS,
    SEED,
    STEPS,
    FiniteRound,
    HiddenRounds,
    Moment,
    Pilot,
    Proposal,
    SampledRun,
    certify_deltas,
    half_width,
    inversion_table,
    logs_in_range,
    pilot_at_delta,
)


class Pairs(NamedTuple):
    """A block of ``size`` rounds.

    Attributes:
        law: of the mean of their ratios, below it in convex order.
        products: shape (n,): the mean product of two different ratios, given each point of the law.
        rounding: bound on the relative error of masses and products.
        size: >= 1.
    """

    law: Points
    products: Array
    rounding: float
    size: int

    @classmethod
    def of(cls, law: Law, size: int) -> "Pairs":
        """Make the pairs of a block of rounds of this law; NotEvaluable: some of their ratios are 0 or infinite."""
        one = law.mean(1)
        if one.lower.zero or one.lower.infinite:
            raise NotEvaluable("blocks of rounds whose ratio may be 0 or infinite have no lower end")
        alone = cls(one.lower, np.zeros(one.lower.log_ratio.size), one.rounding, 1)
        return combined_copies(alone, size, partial(_together, law.points))

    def weighed(self) -> Points:
        """With the products' mean, times Q-mass, in the place of P-mass."""
        return Points(self.law.log_ratio, self.products * self.law.mass_out, self.law.mass_out)


def _together(points: int, a: Pairs, b: Pairs) -> Pairs:
    """Two blocks as one, on a grid of ``points``. Two rounds are in one of them, or one is in each."""
    size, ways = a.size + b.size, (a.size + b.size) * (a.size + b.size - 1)
    mean = Pairing((a.size / size, b.size / size), (a.size / size, b.size / size, 0.0))
    across = mean._replace(coefficients=(0.0, 0.0, 2 * a.size * b.size / ways))
    inside = mean._replace(coefficients=(a.size * (a.size - 1) / ways, b.size * (b.size - 1) / ways, 0.0))
    edges = choose_edges(a.law, b.law, mean, points)
    cells = paired_points(a.law, b.law, mean, edges)
    weighed = a.weighed(), b.weighed()
    if a is b:
        weighed = 2 * weighed[:1]
    total = paired_points(a.law, b.law, across, edges).mass_in + paired_points(*weighed, inside, edges).mass_in
    known = np.isfinite(cell_means(cells))
    products = np.where(cells.mass_out > 1e-290, total / np.maximum(cells.mass_out, 1e-290), 0.0)
    return Pairs(
        contract_cells(cells), products[known], a.rounding + b.rounding + 3 * rounding_of_cells(len(edges)), size
    )


@dataclass(frozen=True, eq=False)
class HiddenBlocks(HiddenRounds):
    """Hidden rounds in ``rounds`` blocks, each of ``pairs.size`` of them, from below: a person with three rounds in a
    block takes part in two of them, and with four in no round at all. ``round`` is a block's, ``chances`` of rounds.
    """

    pairs: Pairs = field(kw_only=True)

    @cached_property
    def ratios(self) -> Array:
        """The mean ratio of a block, ascending."""
        return np.exp(self.pairs.law.log_ratio)

    @cached_property
    def log_masses(self) -> Array:
        """The log Q-masses of the ratios."""
        return self.pairs.law.log_weights(0.0)

    @cached_property
    def features(self) -> Array:
        """Terms of the log of a fitted density, at each ratio; shape (4, n)."""
        odds = self.expected_share * self.ratios
        logs = np.log1p(odds) - math.log1p(self.expected_share)
        return np.stack([logs, logs**2, logs**3, np.minimum(odds, 1.0)])

    def log_at(self, places: Array) -> Array:
        """log X where blocks have these of the ``ratios``; shape (draws, blocks) to (draws,)."""
        shares, tails, rest = self._weights
        means, largest = arithmetic.block_means(places, self.ratios, self.pairs.products, shares, tails)
        return logs_in_range(means + rest, largest)

    @cached_property
    def _weights(self) -> tuple[Array, Array, float]:
        """Weights of 0 to 3 rounds in a block, of each number of rounds in all, and of four in any block."""
        size, sizes, most = self.pairs.size, np.flatnonzero(self.chances), len(self.chances)
        odds, alike, tails = 1 / max(size / self.expected_share - 1, 1e-9), np.eye(1, most)[0], np.zeros(most)
        shares = np.array([math.comb(size, taken) * odds**taken for taken in range(4)])
        logs = np.log(np.array(self.chances)[sizes]) - log_choose(size * self.rounds, sizes) - sizes * math.log(odds)
        tails[sizes] = np.exp(logs + self.rounds * math.log(shares.sum()))
        shares /= shares.sum()
        for _ in range(self.rounds):
            alike = np.convolve(alike, shares)[:most]
        return shares, tails, max(0.0, 1.0 - float(alike @ tails) - self.ratio_rounding)

    @property
    def ratio_rounding(self) -> float:
        rounds, rate = self.pairs.size * self.rounds, self.expected_share / self.pairs.size
        outside = 16 * (math.lgamma(rounds + 1) + rounds + 1) - 8 * self.most_rounds * math.log(rate)
        units = 8 * self.rounds + (4 * EXPONENT + 4) * self.most_rounds + outside
        return units * UNIT + 4 * self.most_rounds * self.pairs.rounding + self.chance_rounding

    def fingerprint(self) -> bytes:
        return super().fingerprint() + self.pairs.products.tobytes()


_ORDERS = 2.0 ** np.arange(0.5, 11.0, 0.5)  # of the laws that are tried before one is fitted, as many times as
_LOOKS, _NEAR = 2, 0.01  # how often one is fitted, and how near to the one before
_MOST = 1e4  # times delta: larger values of a draw count as that much
_WORK = 1e9  # steps that all draws together may take


class FittedProposal(Proposal):
    """H(P, Q) from below: blocks are independent, by a density that is the exponential of a sum of ``features`` times
    the numbers of ``fit``. Values are cut at exp(``log_most``).
    """

    def __init__(self, run: SampledRun, log_most: float, *fit: float) -> None:
        (factor,) = run.factors
        assert isinstance(factor, HiddenBlocks)
        self.run, self.factor, self.parameters = run, factor, (log_most, *fit)
        self.name, self.moment, self.log_most = "fitted blocks", Moment(1.0, 0.0), log_most
        logs = np.array(fit) @ factor.features
        norm = float(log_sum(logs + factor.log_masses))
        self._log_density, self._table = logs - norm, inversion_table(np.exp(logs + factor.log_masses - norm))
        size = float(np.abs(logs).max()) + abs(norm) + 1
        self.relative = factor.rounds * ((64 + 16 * size) * UNIT + 3 * factor.pairs.rounding)
        self.variation = factor.rounds * factor.round.table_rounding

    def log_bound(self, epsilon: float) -> float:
        return self.log_most

    def draw_places(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array, Array]:
        """Which of the ratios the blocks have, shape (draws, blocks); and what ``draw`` returns."""
        places, size = rng.random((draws, self.factor.rounds)), self.factor.ratios.size
        counts = np.full((draws, 1), self.factor.rounds, np.int32)
        below, starts = self._table
        log_b = -arithmetic.invert_uniforms(
            places, self._log_density, np.arange(float(size)), below[None], starts[None], counts
        )
        log_a = log_b + self.factor.log_at(places)
        cut = np.maximum(log_a - self.log_most, 0.0)
        return places, log_a - cut, log_b - cut

    def draw(self, rng: np.random.Generator, draws: int) -> tuple[Array, Array]:
        return self.draw_places(rng, draws)[1:]

    def fitted(self, epsilon: float, rng: np.random.Generator, draws: int) -> "FittedProposal":
        """The same, close to the law of losses beyond ``epsilon``: of the greatest likelihood (cross-entropy), and not
        far from what it was.
        """
        places, log_a, log_b = self.draw_places(rng, draws)
        values = np.where(log_a > log_b + epsilon, np.exp(log_a) - np.exp(log_b + epsilon), 0.0)
        features, blocks = self.factor.features, self.factor.rounds
        if not 0 < values.sum() < math.inf:
            raise NotEvaluable("the draws meet no loss beyond epsilon")
        aim = np.bincount(places.ravel().astype(np.intp), np.repeat(values, blocks), features.shape[1])
        aim = aim / aim.sum()
        before = found = np.array(self.parameters[1:])
        for _ in range(60):  # Newton's method, with steps of limited size
            logs = found @ features + self.factor.log_masses
            masses = np.exp(logs - log_sum(logs))
            means, products = features @ masses, (features * masses) @ features.T
            spread = products - np.outer(means, means)
            near = _NEAR * np.diag(np.diag(spread))
            step = np.linalg.solve(spread + near, features @ aim - means + near @ (before - found))
            found = found + step / max(1.0, float(np.abs(step @ features)[aim > 0].max()) / 2)
        return FittedProposal(self.run, self.log_most, *found.tolist())


def lower_epsilon(
    law: Law, chances: tuple[float, ...], rounds: int, rounding: float, size: int, delta: float, precision: float
) -> float:
    """Return a lower end of epsilon of hidden rounds, some ``precision`` below it.

    Args:
        law: of one round.
        chances, rounds, rounding: as ``chances``, ``rounds`` and ``chance_rounding`` of ``HiddenRounds``.
        size: rounds of a block, >= 2.
        delta, precision: as of ``SampledProfile.epsilon``.

    Raises:
        NotEvaluable: a ratio may be 0 or infinite, a draw takes too long, or draws meet no loss.
    """
    pairs, blocks = Pairs.of(law, size), -(-rounds // size)
    mean = FiniteRound(pairs.law, pairs.rounding)
    run = SampledRun((HiddenBlocks(mean, chances, blocks, 1, rounding, pairs=pairs),))
    if run.draw_steps > _WORK / 2_000:
        raise NotEvaluable("a draw of all blocks takes too long")
    look = int(min(4096, max(512, _WORK / 20 / run.draw_steps)))
    failure, log_most = CHARGE * delta / QUESTIONS, math.log(_MOST * delta)
    log_term = math.log(len(STEPS) / failure)
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([SEED, 0])))
    pilots = list[Pilot]()
    with suppress(NotEvaluable):  # of a high order, likelihood ratios leave floating point
        for order in _ORDERS.tolist():
            pilots.append(pilot_at_delta(FittedProposal(run, log_most, order, 0.0, 0.0, 0.0), delta, look // 2))
            if pilots[-1].epsilon == 0 < max(each.epsilon for each in pilots):
                break
    for _ in range(_LOOKS):
        pilot = min(pilots, key=attrgetter("spread"))
        assert isinstance(pilot.proposal, FittedProposal)
        with suppress(NotEvaluable):
            pilots.append(pilot_at_delta(pilot.proposal.fitted(pilot.epsilon, rng, 2 * look), delta, look))
    pilot = replace(min(pilots, key=attrgetter("spread")), bound=1.0)  # lower ends need none
    needed = pilot.draws_for(0.42 * precision * max(pilot.epsilon, 0.02) * pilot.slope, log_term)
    draws = int(min(max(needed, 4096), _WORK / run.draw_steps))
    below = np.maximum(pilot.epsilon - half_width(pilot, draws, log_term, bound=1.0) * STEPS, 0.0)
    exceeded = certify_deltas(pilot.proposal, np.zeros(0), below, draws, failure)[1] > delta
    return float(below[np.argmax(exceeded)]) if exceeded.any() else 0.0
