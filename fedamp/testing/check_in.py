"""The contract of check-in schemes: the draw, the charge and the audit follow one law.

A scheme draws cohorts (``cohorts``), gives the charged expression (``charge``), and the likelihood ratio of an audit
(``log_likelihood_ratio``). The suite draws many units, counts their sets of rounds, and lets an attacker who knows
these frequencies test for participation. It knows nothing of the expression but its answers.

Statistical tests use fixed seeds. A right scheme fails each of them with probability below 1e-4, and then always.
"""

import itertools
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedamp.accounting import Gaussian, RandomisedResponse, Repeat, epsilon_over_rounds, from_json
from fedamp.federation.check_in import CheckIn
from fedamp.testing.contract import UNLIKELY, Contract, words_of_keys
from fedamp.testing.privacy import ERRORS, HiddenSets

DELTAS = (0.1, 1e-3)
"""The deltas at which the attack on Gaussian noise is compared with the charge.

They are larger than those of a run, so that a simulation of 60,000 outputs sees them.
"""
PRECISION = 0.05
"""Relative precision of what the accountant samples; the simulation is no finer."""


class CheckInContract(Contract):
    """The tests of a check-in scheme.

    The scheme must meet all of them: (a) the charge covers the best attack on Gaussian noise and on flipped bits, also
    if the run stops early; (b) no unit takes part more often than is charged without amplification; (c) the draw
    follows from the seed alone, units of a class are drawn alike, and independence is as declared; (d) the audit's
    likelihood ratio is that of the draw.

    Attributes:
        scheme: the scheme, with its keys.
        rounds: number of rounds of the simulated federations, 4 to 12: the sets of rounds are listed.
        units: number of units that are simulated, at least 20,000; their sets of rounds estimate the law.
        classes: units i, i + classes, .. are drawn alike; 1: all are. Their public class may decide their rounds.

    Example:
        >>> from fedamp.federation.check_in import BalancedCheckIn
        >>> class TestBalanced(CheckInContract):
        ...     scheme = BalancedCheckIn(scheme="balanced", k=2)
        >>> TestBalanced().test_the_draw_follows_from_the_seed_alone()
    """

    scheme: ClassVar[CheckIn]
    rounds: ClassVar[int] = 6
    units: ClassVar[int] = 20_000
    classes: ClassVar[int] = 1

    @classmethod
    def subject(cls) -> type | None:
        """Return the class of the scheme, which is noted as passed once all tests have."""
        return type(cls.scheme)

    @classmethod
    def keys_in_words(cls) -> str:
        """Return the keys of the scheme, and the number of rounds."""
        return ", ".join([*words_of_keys(cls.scheme), f"rounds {cls.rounds}"])

    @classmethod
    def fitted(cls, units: int) -> CheckIn:
        """Return the scheme for a number of units; for other numbers a suite may change a key here."""
        return cls.scheme.fitted_to((), units)

    @classmethod
    def taken(cls, units: int, seed: int, rounds: int | None = None) -> NDArray[np.bool_]:
        """Draw who takes part when. Each cohort must hold sorted ids, each once.

        Args:
            units: number of units.
            seed: of the draw.
            rounds: number of rounds; default: that of the suite.

        Returns:
            Truth values [units, rounds].

        Raises:
            AssertionError: a cohort is missing, unsorted, or has a repeated or foreign id.
        """
        rounds = rounds or cls.rounds
        matrix = np.zeros((units, rounds), dtype=bool)
        cohorts = list(itertools.islice(cls.fitted(units).cohorts(rounds, units, seed), rounds + 1))
        assert len(cohorts) == rounds, "there is a cohort for each round"
        for index, cohort in enumerate(cohorts):
            assert (np.diff(cohort) > 0).all(), "ids of a cohort are sorted, each once"
            assert len(cohort) == 0 or (cohort[0] >= 0 and cohort[-1] < units), "ids are below the number of units"
            matrix[cohort, index] = True
        return matrix

    @classmethod
    def hidden_sets(cls, seed: int, rounds: int | None = None) -> list[HiddenSets]:
        """Draw the sets of rounds of the units of each class: one :class:`HiddenSets` for each class.

        Args:
            seed: of the draw.
            rounds: number of rounds; default: that of the suite.
        """
        drawn, opposite = cls.taken(cls.units, seed, rounds), cls.fitted(cls.units).relation == "substitution"
        return [HiddenSets.of(drawn[first :: cls.classes], opposite) for first in range(cls.classes)]

    def test_the_simulation_is_large_enough(self) -> None:
        """Fewer units, or fewer rounds, would hardly show a charge that is too small."""
        assert self.units >= CheckInContract.units, f"units must be at least {CheckInContract.units}, got {self.units}"
        assert 4 <= self.rounds <= 12, f"rounds must be in 4..12, got {self.rounds}"

    # --- the charge covers what is drawn ------------------------------------------------------------------------------

    @pytest.mark.parametrize("noise_multiplier", [0.7, 1.5])
    def test_the_charge_covers_an_attack_on_gaussian_noise(self, noise_multiplier: float) -> None:
        """At the charged epsilon no attack has a larger delta.

        The attacker sees a number with noise in each round, and knows the law of the hidden rounds.
        ``noise_multiplier`` is little noise, where the choice of rounds is nearly visible, and much.
        """
        self._attack(noise_multiplier, self.rounds)

    def test_the_charge_covers_an_attack_in_a_run_of_one_round_less(self) -> None:
        """Blocks of rounds need not divide the rounds of a run; a charge that rounds down is too small then.

        A scheme may refuse such runs (``check_rounds``).
        """
        try:
            self.scheme.check_rounds(self.rounds - 1)
        except ValueError:
            return
        self._attack(0.7, self.rounds - 1)
        taken = self.taken(self.units, 4, self.rounds - 1).cumsum(axis=1).max(axis=0)
        fitted, rounds = self.fitted(self.units), self.rounds - 1
        most = [fitted.most_check_ins(first, rounds) for first in range(1, rounds + 1)]
        assert (taken <= most).all(), f"in {rounds} rounds units took part {taken} times, {most} are charged"

    def _attack(self, noise_multiplier: float, rounds: int) -> None:
        """Attack runs of so many rounds, as :meth:`test_the_charge_covers_an_attack_on_gaussian_noise` tells."""
        charged = self.fitted(self.units).charge(Gaussian(noise_multiplier), rounds)
        epsilons = np.array([charged.epsilon(delta, precision=PRECISION).upper for delta in DELTAS])
        for sets in self.hidden_sets(1, rounds):
            for delta, epsilon, found in zip(DELTAS, epsilons, sets.gaussian(noise_multiplier, epsilons), strict=True):
                assert found.at_least <= delta, (
                    f"an attack has delta {found.value:.3g} at epsilon {epsilon:.4g}, which is charged for {delta:g}"
                )

    def test_the_charge_covers_an_attack_on_flipped_bits_and_claims_no_more_than_the_truth(self) -> None:
        """The bracket of delta contains the truth, for a bit in each round that is true with probability 0.75.

        All outputs are listed, so that both ends of the bracket are compared with the law that was drawn. The lower end
        is compared only where rounds are independent. A bit has no opposite contribution, so substitution is left out.
        """
        fitted = self.fitted(self.units)
        if fitted.relation == "substitution":
            return  # a bit has no opposite contribution
        charged, epsilons = fitted.charge(RandomisedResponse(0.75), self.rounds), np.array([0.1, 0.5, 1.0, 2.0])
        worst = [sets.bits(0.75, epsilons) for sets in self.hidden_sets(seed=2)]
        for number, epsilon in enumerate(epsilons):
            bracket = charged.delta(float(epsilon))
            least = max(each[number].at_least for each in worst)
            assert least <= bracket.upper, (
                f"an attack has delta {least:.3g} at epsilon {epsilon:g}, which is charged {bracket.upper:.3g}"
            )
            if not self.fitted(self.units).rounds_are_independent:
                continue
            most = max(each[number].at_most for each in worst)
            assert bracket.lower <= most, (
                f"no attack has a delta above {most:.3g} at epsilon {epsilon:g}; the charge claims {bracket.lower:.3g}"
            )

    def test_the_charge_of_the_first_rounds_covers_them(self) -> None:
        """A run that stops early has released a beginning: the charge ``after`` its rounds covers them.

        A charge that spans other rounds is charged as a whole from the first round on, and has no beginnings to test.
        """
        fitted, noise = self.fitted(self.units), 1.0
        charged = fitted.charge(Gaussian(noise), self.rounds)
        if charged.span != self.rounds:
            return
        for first in sorted({1, self.rounds // 2, self.rounds - 1} - {0}):
            epsilons = np.array([charged.after(first).epsilon(delta, precision=PRECISION).upper for delta in DELTAS])
            for sets in self.hidden_sets(seed=3):
                found = sets.first(first).gaussian(noise, epsilons)
                covered = all(each.at_least <= delta for each, delta in zip(found, DELTAS, strict=True))
                assert covered, f"an attack on the first {first} rounds has a larger delta than their charge"

    def test_the_charge_grows_with_the_rounds_and_survives_a_ledger(self) -> None:
        """Later rounds never lower epsilon, more noise does, and the expression read from JSON is the same one."""
        fitted = self.fitted(self.units)
        charged = fitted.charge(Gaussian(1.5), self.rounds)
        assert charged.relation == fitted.relation
        assert from_json(charged.to_json()) == charged
        if charged.span == self.rounds:
            spent = epsilon_over_rounds(charged, 1e-5, precision=PRECISION)
            assert (np.diff(spent) >= 0).all()
            assert spent[-1] <= charged.epsilon(1e-5, precision=PRECISION).upper * (1 + 1e-9)
        noisier = fitted.charge(Gaussian(2.0), self.rounds)
        assert noisier.epsilon(1e-5, precision=PRECISION).lower <= charged.epsilon(1e-5, precision=PRECISION).upper

    def test_nobody_takes_part_more_often_than_is_charged_without_amplification(self) -> None:
        """``most_check_ins`` bounds the draws of any first rounds; ``unamplified`` charges that many.

        Releases of all units beside the rounds cost ``known_cost``, so it is at least what a known round costs.
        """
        fitted = self.fitted(self.units)
        taken = self.taken(self.units, seed=4).cumsum(axis=1).max(axis=0)
        most = [fitted.most_check_ins(rounds, self.rounds) for rounds in range(1, self.rounds + 1)]
        assert (taken <= most).all(), f"units took part {taken} times, {most} are charged"
        one, known = Gaussian(1.5).epsilon(1e-5), fitted.known_cost(Gaussian(1.5)).epsilon(1e-5)
        assert known.upper >= one.lower, f"known_cost says {known} of a release that costs {one}"
        plain = Repeat(fitted.known_cost(Gaussian(1.5)), most[-1]).epsilon(1e-5)
        charged = fitted.charge(Gaussian(1.5), self.rounds)
        unamplified = charged.unamplified().epsilon(1e-5)
        assert unamplified.upper >= plain.lower * (1 - 1e-6), (
            f"without amplification {unamplified} is charged; {most[-1]} known rounds cost {plain}"
        )
        assert charged.epsilon(1e-5, precision=PRECISION).lower <= plain.upper, "hiding rounds costs nothing"

    # --- the draw -----------------------------------------------------------------------------------------------------

    def test_the_draw_follows_from_the_seed_alone(self) -> None:
        """The same seed gives the same cohorts; another seed gives other ones exactly if the scheme hides something."""
        one, same, other = (self.taken(200, seed) for seed in (1, 1, 2))
        assert (one == same).all()
        assert (one != other).any() == self.scheme.is_hidden

    def test_every_unit_is_drawn_by_the_law_of_its_class(self) -> None:
        """A unit that takes part more often than others of its class would pay more than is charged."""
        units, seeds = 24 * self.classes, 400
        often = np.sum([self.taken(units, seed) for seed in range(seeds)], axis=0)
        for first in range(self.classes):
            own = often[first :: self.classes]
            shares = own.mean(axis=0) / seeds
            spread = seeds * shares * (1 - shares)
            varied = spread > 0
            assert (own[:, ~varied] == own[:1, ~varied]).all()
            statistic = ((own - own.mean(axis=0))[:, varied] ** 2 / spread[varied]).sum(axis=0)
            assert (stats.chi2(len(own) - 1).sf(statistic) > UNLIKELY).all()

    def test_units_are_independent_of_each_other(self) -> None:
        """Sizes of cohorts vary as the sum of independent coins does; dependence would change their spread."""
        if not self.scheme.units_are_independent:
            return
        units, seeds = 120 * self.classes, 300
        sizes = np.zeros((seeds, self.rounds))
        for seed in range(seeds):
            sizes[seed] = self.taken(units, seed)[:: self.classes].sum(axis=0)
        shares = self.taken(self.units, seed=5)[:: self.classes].mean(axis=0)
        for size, share in zip(sizes.T, shares, strict=True):
            spread = stats.binom(120, share).std()
            assert abs(size.mean() - 120 * share) <= ERRORS * (
                spread / np.sqrt(seeds) + 120 * 0.5 / np.sqrt(self.units)
            )
            low, high = stats.chi2(seeds - 1).ppf([UNLIKELY / 2, 1 - UNLIKELY / 2]) / (seeds - 1)
            # The share is drawn, too: where it is near 0 or 1 its own error matters.
            assert spread < 0.1 or 0.9 * low < size.var(ddof=1) / spread**2 < 1.1 * high

    def test_independent_rounds_are_independent(self) -> None:
        """Where ``rounds_are_independent``, rounds of a unit have no covariance beyond the simulation's error."""
        if not self.scheme.rounds_are_independent:
            return
        taken = self.taken(self.units, seed=6)[:: self.classes].astype(float)
        for one, other in itertools.combinations(range(min(self.rounds, 5)), 2):
            covariance = abs(np.cov(taken[:, one], taken[:, other])[0, 1])
            assert covariance <= ERRORS * 0.25 / np.sqrt(len(taken)), f"rounds {one + 1} and {other + 1}"

    def test_the_expected_cohort_is_the_average_cohort(self) -> None:
        """``expected_cohort`` is the average size: it is the denominator of the mean update, a public number."""
        expected = self.fitted(self.units).expected_cohort(self.rounds, self.units)
        taken = self.taken(self.units, seed=7)
        error = taken.sum(axis=1).std() / self.rounds * np.sqrt(self.units)
        average = taken.sum() / self.rounds
        assert abs(average - expected) <= ERRORS * error + 1e-6 * expected, (
            f"cohorts have {average:.4g} of {self.units} units on average, expected_cohort says {expected:.4g}"
        )

    # --- the audit ----------------------------------------------------------------------------------------------------

    def test_the_likelihood_ratio_of_an_audit_is_the_mean_over_the_draws(self) -> None:
        """``log_likelihood_ratio`` is the log of the mean of exp(sum of the ratios of the rounds taken part in).

        The mean is over units of the first class, at six random rows of ratios.
        """
        ratios = np.random.default_rng(1).normal(scale=0.4, size=(6, self.rounds))
        drawn = np.exp(self.taken(self.units, seed=8)[:: self.classes] @ ratios.T)
        error = drawn.std(axis=0) / np.sqrt(len(drawn)) + 1e-12
        found = np.exp(self.fitted(self.units).log_likelihood_ratio(ratios))
        assert found.shape == (len(ratios),)
        assert (np.abs(drawn.mean(axis=0) - found) < ERRORS * error).all(), (
            f"likelihood ratios are {found.round(3)}, the draws have {drawn.mean(axis=0).round(3)}"
        )
