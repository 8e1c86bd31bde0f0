"""Every check-in scheme draws what it charges for, and attacks by what it draws.

A new scheme meets these tests by its name in ``CHECK_INS``; its keys have examples. Each scheme meets the contract
that ships with fedamp, whose oracle is a simulation. Beside it, the charged expression is read from its JSON.
"""

import itertools
import math
from collections import Counter, defaultdict
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedamp.accounting import (
    Allocation,
    Compose,
    Gaussian,
    Poisson,
    RandomisedResponse,
    Repeat,
    TruncatedPoisson,
    WithoutReplacement,
    epsilon_over_rounds,
    from_json,
)
from fedamp.errors import ScenarioError
from fedamp.extensions.batches.check_in import BatchesCheckIn, TruncatedPoissonCheckIn
from fedamp.federation.check_in import (
    AllCheckIn,
    Attendance,
    BalancedCheckIn,
    CappedPoissonCheckIn,
    CheckIn,
    PoissonCheckIn,
    StratifiedCheckIn,
)
from fedamp.federation.choices import AnyCheckIn
from fedamp.federation.plan import make_plan
from fedamp.testing import CheckInContract
from tests.federations import small

# A right scheme fails a check with this chance; seeds are fixed.
UNLIKELY = 1e-4

ROUNDS = 9


def example(section: type[CheckIn]) -> CheckIn:
    """A section with the first example of every key."""
    keys = {name: field.examples[0] for name, field in section.model_fields.items() if field.examples}
    return section(scheme=get_args(section.model_fields["scheme"].annotation)[0], **keys)


SCHEMES = get_args(get_args(AnyCheckIn)[0])


@pytest.fixture(params=map(example, SCHEMES), ids=str)
def scheme(request) -> CheckIn:
    return request.param


ALL, POISSON = AllCheckIn(), PoissonCheckIn(scheme="poisson", rate=0.3)


def balanced(k: int) -> BalancedCheckIn:
    return BalancedCheckIn(scheme="balanced", k=k)


def stratified(k: int) -> StratifiedCheckIn:
    return StratifiedCheckIn(scheme="stratified", k=k)


def capped(rate: float, at_most: int) -> CappedPoissonCheckIn:
    return CappedPoissonCheckIn(scheme="capped-poisson", rate=rate, at_most=at_most)


def sized(scheme: CheckIn, units: int) -> CheckIn:
    """The scheme for so many units; a size is two fifths of any number of them: about half of the cohorts are cut."""
    more = {"size": 2 * units // 5} if hasattr(scheme, "size") else {}
    return scheme.model_copy(update=more).fitted_to((), units)


def attendance_matrix(scheme: CheckIn, units: int, seed: int, rounds: int = ROUNDS) -> np.ndarray:
    """Boolean array [units, rounds]: who takes part when."""
    scheme = sized(scheme, units)
    matrix = np.zeros((units, rounds), dtype=bool)
    for index, cohort in enumerate(scheme.cohorts(rounds, units, seed)):
        assert (np.diff(cohort) > 0).all()
        matrix[cohort, index] = True
    return matrix


# --- the contract -----------------------------------------------------------------------------------------------------


class _Sized(CheckInContract):
    @classmethod
    def fitted(cls, units: int) -> CheckIn:
        return sized(cls.scheme, units)


def _suite(scheme: CheckIn) -> type[CheckInContract]:
    """The contract that ships with fedamp, for a scheme of the core."""
    base = _Sized if hasattr(scheme, "size") else CheckInContract
    classes, rounds = getattr(scheme, "classes", 1), 9 if hasattr(scheme, "separation") else 6  # four rounds apart
    members = {"scheme": scheme, "classes": classes, "rounds": rounds}
    return type(f"Test{type(scheme).__name__}", (base,), members)


globals().update({f"Test{section.__name__}": _suite(example(section)) for section in SCHEMES})


def test_what_is_drawn_is_what_is_charged(scheme):
    matrix, charged = (
        attendance_matrix(scheme, 4000, seed=5),
        sized(scheme, 4000).charge(Gaussian(1.0), ROUNDS).to_json(),
    )
    classes = charged.get("classes", 1)
    for number in range(classes):
        own = matrix[number::classes, number::classes]
        assert own.sum() == matrix[number::classes].sum()  # no other round
        rounds = own.shape[1]
        assert classes == 1 or rounds >= charged["rounds"] // classes
        alone = {**charged, "kind": "Allocation", "rounds": rounds} if classes > 1 else charged
        check_blocks(own, charged_blocks(alone), charged.get("gap", 1))


def check_blocks(matrix: np.ndarray, laws: list[np.ndarray], gap: int = 1) -> None:
    """Whether units take part as the laws of consecutive blocks say, uniformly given the number."""
    units, first = len(matrix), 0
    for law in laws:
        rounds = len(law) - 1
        block = matrix[:, first : first + rounds]
        first += rounds
        counts = np.bincount(block.sum(1), minlength=rounds + 1)
        assert not counts[law == 0].any()
        usual = law * units > 5
        statistic = ((counts - law * units)[usual] ** 2 / (law * units)[usual]).sum()
        assert usual.sum() == 1 or stats.chi2(usual.sum() - 1).sf(statistic) > UNLIKELY
        drawn = Counter(tuple(np.flatnonzero(row)) for row in block)
        for size in range(rounds + 1):
            every = itertools.combinations(range(rounds), size)
            sets = [each for each in every if all(b - a >= gap for a, b in itertools.pairwise(each))]
            assert sum(drawn[each] for each in sets) == counts[size]
            if len(sets) > 1 and counts[size] > 5 * len(sets):
                assert stats.chisquare([drawn[each] for each in sets]).pvalue > UNLIKELY
    assert first == matrix.shape[1]


def charged_blocks(tree: dict) -> list[np.ndarray]:
    """Consecutive blocks of rounds of a charged expression: the law of a unit's number of check-ins in each block.

    Given the number, all sets of rounds of that size are equally probable.
    """
    kind, inner = tree["kind"], tree.get("mechanism", {})
    number = np.arange(tree.get("rounds", tree.get("times", 0)) + 1)
    if kind == "Compose":
        return [block for part in tree["mechanisms"] for block in charged_blocks(part)]
    if kind in ("Allocation", "Spaced"):
        return [(number == tree["k"]).astype(float)]
    if kind == "CappedPoisson":
        coins = stats.binom(tree["rounds"], tree["rate"]).pmf(number)
        return [np.bincount(np.minimum(number, tree["at_most"]), coins, minlength=len(number))]
    if kind == "Poisson":  # of a whole run
        [law] = charged_blocks(inner)
        return [tree["rate"] * law + (1 - tree["rate"]) * (np.arange(len(law)) == 0)]
    assert kind == "Repeat", tree
    if inner["kind"] == "Allocation":
        return charged_blocks(inner) * tree["times"]
    rates = {
        "Poisson": lambda: inner["rate"],
        "WithoutReplacement": lambda: inner["batch"] / inner["population"],
        "TruncatedPoisson": lambda: share_of_cut(inner["rate"], inner["largest"], inner["population"]),
    }
    return [stats.binom(tree["times"], rates.get(inner["kind"], lambda: 1)()).pmf(number)]


def share_of_cut(rate: float, largest: int, units: int) -> float:
    """The share of rounds in which a unit takes part, if of more than ``largest`` sampled ones so many stay."""
    drawn = np.arange(units + 1)
    return float(np.minimum(drawn, largest) @ stats.binom(units, rate).pmf(drawn)) / units


def test_the_charge_spans_all_rounds_grows_with_them_and_survives_json(scheme):
    charged = sized(scheme, 100).charge(Gaussian(1.5), ROUNDS)
    assert (charged.span, charged.relation) == (ROUNDS, scheme.relation)
    spent = epsilon_over_rounds(charged, 1e-5)
    assert len(spent) == ROUNDS
    assert (np.diff(spent) >= 0).all()
    assert spent[-1] <= charged.epsilon(1e-5).upper * (1 + 1e-9)  # relative: sums come out in another order
    assert from_json(charged.to_json()) == charged
    plain = Repeat(Gaussian(1.5, relation=scheme.relation), scheme.most_check_ins(ROUNDS, ROUNDS))
    assert charged.unamplified().epsilon(1e-5).upper == pytest.approx(plain.epsilon(1e-5).upper, rel=1e-6)


def test_a_shortened_scheme_keeps_the_rate(scheme):
    scheme = sized(scheme, 100)
    short = scheme.for_fewer_rounds(ROUNDS, 5)
    short.check_rounds(5)
    # k is a whole number: half a check-in in five rounds.
    assert short.expected_cohort(5, 100) == pytest.approx(scheme.expected_cohort(ROUNDS, 100), abs=100 * 0.5 / 5)
    assert scheme.for_fewer_rounds(ROUNDS, ROUNDS) == scheme


def test_independent_rounds_are_charged_one_after_the_other(scheme):
    if not scheme.rounds_are_independent:
        return
    scheme = sized(scheme, 20_000)
    halves = Compose((scheme.charge(Gaussian(1.0), 4), scheme.charge(Gaussian(1.0), ROUNDS - 4)))
    whole = scheme.charge(Gaussian(1.0), ROUNDS)
    # The same law composed in another order: only rounding differs.
    assert halves.epsilon(1e-5).upper == pytest.approx(whole.epsilon(1e-5).upper, rel=1e-3)
    # A unit's earlier rounds say nothing about the next: correlations of 20,000 pairs, five deviations.
    matrix = attendance_matrix(scheme, 20_000, seed=6).astype(float)
    for one, other in itertools.combinations(range(4), 2):
        assert abs(np.cov(matrix[:, one], matrix[:, other])[0, 1]) < 5 * 0.25 / np.sqrt(20_000)


def test_attendance_answers_in_any_order(scheme):
    attendance = Attendance(sized(scheme, 50), ROUNDS, 50, seed=4)
    in_order = [attendance.cohort_of(round_) for round_ in range(1, ROUNDS + 1)]
    for round_ in (ROUNDS, 3, 3, 7, 1):
        assert np.array_equal(attendance.cohort_of(round_), in_order[round_ - 1])
    with pytest.raises(ValueError, match=rf"round must be in 1\.\.{ROUNDS}, got {ROUNDS + 1}"):
        attendance.cohort_of(ROUNDS + 1)


@pytest.mark.parametrize("cohort", [[3, 3], [4, 3], [-1, 3], [3, 50]], ids=["twice", "order", "below", "above"])
def test_a_cohort_that_names_a_unit_twice_or_no_unit_is_refused(cohort):
    """A unit that trains twice in a round adds twice what is charged."""

    class Wrong(AllCheckIn):
        def cohorts(self, rounds, units, seed):
            yield np.arange(units)
            yield np.array(cohort)

    attendance = Attendance(Wrong(), 2, 50, seed=4)
    assert len(attendance.cohort_of(1)) == 50
    with pytest.raises(
        ValueError, match=r"check_in.scheme all: the cohort of round 2 has ids .* below 50 in ascending"
    ):
        attendance.cohort_of(2)


# --- what the contract cannot know ------------------------------------------------------------------------------------


@given(
    st.integers(1, 30).flatmap(lambda rounds: st.tuples(st.just(rounds), st.integers(1, rounds))), st.integers(0, 40)
)
@settings(max_examples=60)
def test_k_of_any_number_of_rounds(rounds_k, units):
    rounds, k = rounds_k
    assert (attendance_matrix(balanced(k), units, rounds, rounds).sum(axis=1) == k).all()
    lengths = stratified(k).block_lengths(rounds)
    assert (sum(lengths), max(lengths) - min(lengths) <= 1) == (rounds, True)
    for block in np.split(attendance_matrix(stratified(k), units, k, rounds), np.cumsum(lengths)[:-1], axis=1):
        assert (block.sum(axis=1) == 1).all()


def test_batches_are_charged_for_substitution_and_fit_the_units():
    batches = BatchesCheckIn(scheme="batches", size=3)
    assert batches.fitted_to((), 30).charge(Gaussian(1.5), 4) == Repeat(WithoutReplacement(Gaussian(1.5), 3, 30), 4)
    for forgotten in (lambda: batches.charge(Gaussian(1.5), 4), lambda: batches.known_cost(Gaussian(1.5))):
        with pytest.raises(ValueError, match="population must be"):  # no charge without the number of units
            forgotten()
    plan = make_plan(small("check_in={scheme: batches, size: 20}", "rounds=3"), 60)
    cost, delta = plan.charge, plan.scenario.privacy.delta
    assert (plan.adjacency.split(":")[0], cost.mechanism.relation) == ("substitution", "substitution")
    two_apart = Repeat(Gaussian(plan.noise_multiplier / 2), 3).epsilon(delta).upper
    assert cost.unamplified_epsilon.upper == pytest.approx(two_apart, rel=1e-6)
    assert cost.unamplified_epsilon_by_round[-1] == pytest.approx(two_apart, rel=1e-6)
    with pytest.raises(ScenarioError, match=r"check_in.size must be at most the number of units \(19\), got 20"):
        make_plan(plan.scenario, 19)


def test_cohorts_are_cut_to_a_random_choice_and_charged_with_the_number_of_units():
    scheme = TruncatedPoissonCheckIn(scheme="truncated-poisson", rate=0.3, size=20)
    sizes = [len(cohort) for cohort in scheme.cohorts(200, 60, seed=3)]
    drawn = [len(cohort) for cohort in PoissonCheckIn(scheme="poisson", rate=0.3).cohorts(200, 60, seed=3)]
    assert sizes == np.minimum(drawn, 20).tolist()
    assert max(drawn) > 20 > min(drawn)
    fitted = scheme.fitted_to((), 60)
    assert fitted.charge(Gaussian(1.5), 4) == Repeat(TruncatedPoisson(Gaussian(1.5), 0.3, 20, 60), 4)
    with pytest.raises(ValueError, match="population must be"):  # no charge without the number of units
        scheme.charge(Gaussian(1.5), 4)
    for refused in ("privacy.canaries=2", "privacy.group_size=2"):  # another unit may take one's place
        with pytest.raises(ScenarioError, match="truncated-poisson"):
            small("check_in={scheme: truncated-poisson, rate: 0.3, size: 20}", refused)
    with pytest.raises(ScenarioError, match=r"check_in.size must be at most the number of units \(60\), got 61"):
        make_plan(small("check_in={scheme: truncated-poisson, rate: 0.3, size: 61}"), 60)


def test_a_node_that_sees_its_check_ins_is_charged_as_if_it_saw_all():
    hosts = "federation={hosts: {a: 0-29, b: 30-59}}"
    schemes = ("{scheme: batches, size: 20}", "{scheme: balanced, k: 1}")
    batches, balanced = (make_plan(small(hosts, f"check_in={each}", "rounds=3"), 60) for each in schemes)
    assert (batches.protection, balanced.protection) == ("none", "dummies")
    assert batches.charge.nodes_epsilon.upper == pytest.approx(batches.charge.unamplified_epsilon.upper, rel=1e-6)
    assert balanced.charge.nodes_epsilon == balanced.charge.planned_epsilon


# --- clients that decline ---------------------------------------------------------------------------------------------


EPSILONS, RIGHT = (0.0, 0.3, 1.0, 2.0), 0.8


def deltas_of_declining(k: int, rounds: int, declines) -> np.ndarray:
    """delta at every epsilon, the larger of both directions, by all outputs: a scheduled unit that does not decline
    tells the truth about a bit with chance 0.8; in any other round the bit is 1 with that chance.
    """
    sets, outputs = list(itertools.combinations(range(rounds), k)), list(itertools.product((0, 1), repeat=rounds))

    def chance(each, output):
        there = [i in each and not declines(each, i, output[:i]) for i in range(rounds)]
        return math.prod(RIGHT if bit != here else 1 - RIGHT for bit, here in zip(output, there, strict=True))

    inside = np.array([np.mean([chance(each, output) for each in sets]) for output in outputs])
    outside = np.array([chance((), output) for output in outputs])
    pairs = ((inside, outside), (outside, inside))
    return np.array([max(np.maximum(p - math.exp(e) * q, 0).sum() for p, q in pairs) for e in EPSILONS])


@pytest.mark.parametrize(("k", "rounds"), [(1, 3), (2, 4), (3, 4), (3, 5)])
def test_k_of_t_covers_any_declining(k, rounds):
    """A scheduled unit declines by a table of its whole schedule and all earlier releases."""
    random = np.random.default_rng(10 * k + rounds)
    nobody = deltas_of_declining(k, rounds, lambda *_: False)
    run = Allocation(RandomisedResponse(RIGHT), k, rounds)
    assert (nobody <= [run.delta(epsilon).upper for epsilon in EPSILONS]).all()
    for share in random.uniform(size=60):
        table = defaultdict(lambda share=share: random.random() < share)
        # Sums of at most 320 products, of rounding 2e-16 each.
        assert (deltas_of_declining(k, rounds, lambda *known, t=table: t[known]) <= nobody + 1e-12).all()


@pytest.mark.slow
def test_declining_gets_no_credit_because_it_may_be_for_the_whole_run():
    """One coin of 0.8 for the run costs more than coins of 0.9 a round would, which are heads more often."""
    run = Allocation(Gaussian(1.0), 10, 100)
    coins_of_the_server = Allocation(Poisson(Gaussian(1.0), 0.9), 10, 100)
    assert Poisson(run, 0.8).epsilon(1e-5).lower > coins_of_the_server.epsilon(1e-5).upper + 0.1
    assert run.epsilon(1e-5).lower > Poisson(run, 0.8).epsilon(1e-5).upper
