"""The expression that is charged is the mechanism that ran, for every pair of what a scenario can combine.

Everything is measured from the outside: what the server asks of the nodes, what they answer, and what becomes of the
model with noise, without noise, and without answers. The expression is read from its JSON, as an auditor reads it from
the ledger. Neither the plan nor the accounting is asked what it meant.
"""

import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
import pytest
import yaml
from flwr.app import ConfigRecord, Message
from scipy import stats

from fedamp.engines import flower
from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.engines.wire import RoundOrder
from fedamp.federation.choices import AnyCheckIn
from fedamp.federation.plan import make_plan
from fedamp.federation.scenario import Scenario
from fedamp.server.setup import prepare
from fedamp.strategies import PrivateStrategy
from tests.federations import small
from tests.orders import answer_in, order_in

ROUNDS, CLASSES, HIDDEN, FEATURES = 6, 20, 12, 4
CHECK_IN = {
    "all": "{scheme: all}",
    "poisson": "{scheme: poisson, rate: 0.4}",
    "balanced": "{scheme: balanced, k: 2}",
    "stratified": "{scheme: stratified, k: 2}",
    "uneven": "{scheme: stratified, k: 4}",  # 6 rounds in blocks of 2, 2, 1 and 1
    "capped": "{scheme: capped-poisson, rate: 0.5, at_most: 3}",
    "classes": "{scheme: classes, k: 2, classes: 2}",
    "spaced": "{scheme: spaced, k: 2, gap: 2}",
    "batches": "{scheme: batches, size: 15}",
    "truncated": "{scheme: truncated-poisson, rate: 0.4, size: 26}",
}
SUBMODELS = {
    "none": "{scheme: none}",
    "disjoint": "{scheme: disjoint, count: 3, shared_clip: 0.2, shared_noise_multiplier: 0.7}",
    "fresh": "{scheme: disjoint, count: 4, partition: fresh}",
    "dropout": "{scheme: dropout, keep: 0.4, shared_clip: 0.3, shared_noise_multiplier: balanced}",
    "light dropout": "{scheme: dropout, keep: 0.7}",
    "dealt": "{scheme: disjoint, count: 3, unowned: partitioned}",
    "frozen masks": "{scheme: dropout, keep: 0.4, unowned: frozen}",
    "devices": "{scheme: disjoint, count: 3, whole: 0.3}",
    "rolling": "{scheme: disjoint, count: 3, assignment: rolling}",
}
COPIES = {  # of the parts, in which a unit's contribution is hidden among so many
    "none": [1],
    "disjoint": [1, 3],
    "fresh": [1, 4],
    "dropout": [1, 2],
    "light dropout": [1, 1],
    "dealt": [3],
    "frozen masks": [2],
    "devices": [1, 1],  # as the class that trains the whole model
    "rolling": [1, 1],
}
MIXING = {"none": None, "constant": "{width: 0.05, linf_coordinates: 4}", "schedule": "{width: [[1, 0.06], [4, 0.02]]}"}
CLIP = {"number": "0.5", "auto": "auto", "adaptive": "{initial: 0.5, noise_multiplier: 2.0}"}
UNITS = {"client": 50, "sample": 100}

# A right implementation fails a single check with this chance; there are some 200 checks, and seeds are fixed.
RARE = 1e-7


def federation(
    check_in: str, unit: str, submodels: str, mixing: str, clip: str, *further: str, noise: float = 0.9
) -> Scenario:
    scheme = SUBMODELS[submodels]
    if clip == "auto":  # it is the norm of both parts
        scheme = re.sub(r"shared_clip: [\d.]+, ", "", scheme)
    overrides = [
        f"data={{name: synthetic, clients: 50, records_per_client: 2, features: {FEATURES}, classes: {CLASSES}}}",
        f"model={{name: mlp, hidden: [{HIDDEN}]}}",
        f"rounds={ROUNDS}",
        f"check_in={CHECK_IN[check_in]}",
        f"submodels={scheme}",
        "client={learning_rate: 2.0}",
        "server={learning_rate: 0.8}",
        f"privacy={{unit: {unit}, clip: {CLIP[clip]}, noise_multiplier: {noise}}}",
    ]
    return small(*overrides, *([f"mixing={MIXING[mixing]}"] if MIXING[mixing] else []), *further)


# --- what was charged: the expression, taken apart ------------------------------------------------------------------


@dataclass(frozen=True)
class ChargedPart:
    """A release of one round: its noise, and how well it is hidden."""

    noise_multiplier: float
    copies: int = 1
    width: float = 0.0
    linf_coordinates: int = 1


@dataclass(frozen=True)
class ChargedRounds:
    """Consecutive rounds: how a unit's are drawn, and what each releases.

    ``apart``: the number of classes, the least distance of two rounds of a unit, or the units of which ``k`` are drawn.
    """

    kind: str
    rounds: int
    k: int
    rate: float
    parts: tuple[ChargedPart, ...]
    apart: int = 1


def read_rounds(tree: dict) -> list[ChargedRounds]:
    if tree["kind"] == "Compose" and any(part["kind"] in ("Repeat", "Allocation") for part in tree["mechanisms"]):
        return [rounds for part in tree["mechanisms"] for rounds in read_rounds(part)]
    if tree["kind"] == "Allocation":
        return [ChargedRounds("allocation", tree["rounds"], tree["k"], 1.0, read_parts(tree["mechanism"]))]
    if tree["kind"] == "CappedPoisson":
        return [ChargedRounds("capped", tree["rounds"], tree["at_most"], tree["rate"], read_parts(tree["mechanism"]))]
    if tree["kind"] in ("Cyclic", "Spaced"):
        kind, key = {"Cyclic": ("classes", "classes"), "Spaced": ("spaced", "gap")}[tree["kind"]]
        return [ChargedRounds(kind, tree["rounds"], tree["k"], 1.0, read_parts(tree["mechanism"]), tree[key])]
    assert tree["kind"] == "Repeat", tree["kind"]
    inner, times = tree["mechanism"], tree["times"]
    if inner["kind"] == "Allocation":
        return read_rounds(inner) * times
    if inner["kind"] == "WithoutReplacement":
        return [
            ChargedRounds("batches", times, inner["batch"], 1.0, read_parts(inner["mechanism"]), inner["population"])
        ]
    if inner["kind"] == "TruncatedPoisson":
        parts, rate, units = read_parts(inner["mechanism"]), inner["rate"], inner["population"]
        return [ChargedRounds("truncated", times, inner["largest"], rate, parts, units)]
    if inner["kind"] == "Poisson":
        return [ChargedRounds("poisson", times, 0, inner["rate"], read_parts(inner["mechanism"]))]
    return [ChargedRounds("all", times, 0, 1.0, read_parts(inner))]


def read_parts(tree: dict) -> tuple[ChargedPart, ...]:
    if tree["kind"] == "Compose":
        return tuple(part for each in tree["mechanisms"] for part in read_parts(each))
    copies = 1
    if tree["kind"] in ("Submodels", "Dropout"):
        copies = tree.get("count") or max(1, int(1 / tree["keep"]))
        tree = tree["mechanism"]
    if tree["kind"] == "ModelMix":
        return (ChargedPart(tree["noise_multiplier"], copies, tree["width"], tree["linf_coordinates"]),)
    assert tree["kind"] == "Gaussian", tree["kind"]
    return (ChargedPart(tree["noise_multiplier"], copies),)


# --- what ran -------------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """One round as it can be seen from outside; models and sums by name."""

    order: RoundOrder
    sums: dict  # of all replies
    before: dict
    earlier: dict
    noisy: dict
    plain: dict  # without noise
    still: dict  # without noise and without replies
    scale: tuple[float, float]  # adaptive norm after the round, with and without noise


@dataclass
class Run:
    """A whole run."""

    prepared: object
    tree: dict
    rounds: list[Played] = field(default_factory=list)


def play(scenario, silent_scenario, grid: SerialGrid) -> Run:
    prepared = prepare(scenario)
    silent = make_plan(silent_scenario, prepared.plan.units)
    run = Run(prepared, prepared.plan.charge.mechanism.to_json())
    strategy = prepared.strategy(prepared.state)
    for round_ in range(1, ROUNDS + 1):
        state = strategy.state
        before, earlier = state.parameters, state.previous or state.parameters
        branches = [branch(prepared, silent, state) for _ in range(2)]
        (message,) = strategy.configure_train(round_, strategy.arrays(), ConfigRecord(), grid)
        (reply,) = grid.send_and_receive([message])
        strategy.aggregate_train(round_, [reply])
        for other, replies in zip(branches, ([reply], []), strict=True):
            asked = other.order_round(round_, grid)
            flower.set_message_id(asked.messages[0], message.metadata.message_id)
            aggregate = other.sum_replies(asked, replies)
            other.state, _ = other.pipeline.release(other.state, round_, aggregate, needs_quorum=False)
        plain, still = (other.state for other in branches)
        run.rounds.append(
            Played(
                order=order_in(message),
                sums=answer_in(reply, message).sums,
                before=before,
                earlier=earlier,
                noisy=strategy.state.parameters,
                plain=plain.parameters,
                still=still.parameters,
                scale=(strategy.state.clip_scale, plain.clip_scale),
            )
        )
    return run


def branch(prepared, plan, state) -> PrivateStrategy:
    return prepared.with_plan(plan).strategy(state)


@pytest.fixture(scope="module")
def grid():
    with SerialGrid(CLIENT_APP, "cpu") as grid:
        yield grid


# --- checks ---------------------------------------------------------------------------------------------------------

# The model is inputs -> hidden.0 -> output. What a hidden unit owns is split, the bias of the output is not.
SPLIT, SHARED = ("hidden.0.weight", "hidden.0.bias", "output.weight"), ("output.bias",)


def names_of(played: Played) -> list[tuple[str, ...]]:
    return [tuple(played.sums)] if len(played.order.clips) == 1 else [SHARED, SPLIT]


def flat(arrays: dict, names: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).ravel() for name in names])


def within_chance(count: int, trials: int, probability: float) -> bool:
    return stats.binomtest(count, trials, probability).pvalue > RARE


def check_schedule(run: Run, charged: list[ChargedRounds], units: int) -> None:
    """Who took part when is what the expression says about it."""
    took_part = np.zeros((units, ROUNDS), dtype=int)
    for index, played in enumerate(run.rounds):
        assert len(set(played.order.ids)) == len(played.order.ids)
        took_part[played.order.ids, index] = 1
    assert sum(rounds.rounds for rounds in charged) == ROUNDS
    first = 0
    for rounds in charged:
        block = took_part[:, first : first + rounds.rounds]
        first += rounds.rounds
        if rounds.kind == "all":
            assert block.all()
        elif rounds.kind == "batches":
            assert (rounds.apart, set(block.sum(0))) == (units, {rounds.k})
            shared = stats.hypergeom(units, rounds.k, rounds.k)  # of two cohorts: each is drawn anew
            for one, other in itertools.combinations(block.T, 2):
                assert min(shared.cdf(one @ other), shared.sf(one @ other - 1)) > RARE
        elif rounds.kind == "truncated":
            drawn = np.arange(units + 1)
            share = np.minimum(drawn, rounds.k) @ stats.binom(units, rounds.rate).pmf(drawn) / units
            assert rounds.apart == units
            assert block.sum(0).max() <= rounds.k
            assert within_chance(int(block.sum()), block.size, share)  # cohorts vary less than those of coins
        elif rounds.kind == "poisson":
            assert within_chance(int(block.sum()), block.size, rounds.rate)
        elif rounds.kind == "capped":
            assert block.sum(1).max() <= rounds.k
            reach = stats.binom(rounds.rounds, rounds.rate).sf(rounds.k - 1)
            assert within_chance(int((block.sum(1) == rounds.k).sum()), units, reach)
            check_evenly(block, np.ones_like(block, dtype=bool))
        else:
            assert (block.sum(1) == rounds.k).all()
            index = np.arange(rounds.rounds)
            if rounds.kind == "classes":  # public: unit u is of class u modulo their number
                own = index % rounds.apart == np.arange(units)[:, None] % rounds.apart
                assert not block[~own].any()
                check_evenly(block, own)
            elif rounds.kind == "spaced":
                possible = [
                    each
                    for each in itertools.combinations(range(rounds.rounds), rounds.k)
                    if min(np.diff(each), default=rounds.rounds) >= rounds.apart
                ]
                drawn = Counter(tuple(np.flatnonzero(row).tolist()) for row in block)
                assert set(drawn) <= set(possible)
                for each in possible:  # every set is as likely as any other
                    assert within_chance(drawn[each], units, 1 / len(possible))
            else:
                check_evenly(block, np.ones_like(block, dtype=bool))


def check_evenly(block: np.ndarray, own: np.ndarray) -> None:
    """Every unit takes part in each round of its ``own`` with the same probability."""
    for column, mine in zip(block.T, own.T, strict=True):
        units = int(mine.sum())
        expected = block[mine].sum() / own[mine].sum()
        assert within_chance(int(column[mine].sum()), units, expected)


def check_noise(run: Run, charged: list[ChargedRounds]) -> None:
    """Noise over the clipping norm that clients were told, in the units of the sum, is the charged multiplier."""
    of_round = [rounds for rounds in charged for _ in range(rounds.rounds)]
    for part, names in enumerate(names_of(run.rounds[0])):
        for multiplier, group in itertools.groupby(
            zip(of_round, run.rounds, strict=True), key=lambda pair: pair[0].parts[part].noise_multiplier
        ):
            noise = []
            for _, played in group:
                per_unit_of_sum = factor(played, names)
                noise.append((flat(played.noisy, names) - flat(played.plain, names)) / per_unit_of_sum)
                noise[-1] /= played.order.clips[part]
            every = np.concatenate(noise)
            # Sum of squares over the variance: chi squared.
            low, high = stats.chi2(every.size).ppf([RARE, 1 - RARE])
            assert low <= float(every @ every) / multiplier**2 <= high


def factor(played: Played, names: tuple[str, ...]) -> float:
    """By what a part's sum is multiplied before it is added to the model: learning rate over denominator."""
    change, total = flat(played.plain, names) - flat(played.still, names), flat(played.sums, names)
    result = float(change @ total) / float(total @ total)
    assert np.allclose(change, result * total, atol=1e-6)  # float32 models of size 1
    return result


def check_mixing(run: Run, charged: list[ChargedRounds]) -> None:
    """The uniform law about the midpoint is at least as wide as charged, in units of a unit's largest step."""
    of_round = [rounds for rounds in charged for _ in range(rounds.rounds)]
    for index, (rounds, played) in enumerate(zip(of_round, run.rounds, strict=True)):
        for part, names in enumerate(names_of(played)):
            midpoint = (flat(played.before, names) + flat(played.earlier, names)) / 2
            off = flat(played.still, names) - midpoint
            width = rounds.parts[part].width * factor(played, names) * played.order.clips[part]
            if width == 0:
                assert np.array_equal(flat(played.still, names), flat(played.before, names))
                continue
            distance = np.abs(flat(played.before, names) - flat(played.earlier, names))
            # A whole multiple of the charged width: what the scenario enforces, or what the models' distance holds.
            enforced = max(1, round(np.sqrt(12 * np.mean(off**2)) / width)) if index == 0 else 1
            spread = off / np.maximum(enforced * width, np.floor(distance / width * (1 + 1e-6)) * width)
            if index == 0:
                assert stats.kstest(spread + 0.5, "uniform").pvalue > RARE
            assert np.mean(spread**2) * 12 > 1 - 6 / np.sqrt(spread.size)


def check_submodels(run: Run, charged: list[ChargedRounds], scheme: str, grid: SerialGrid) -> None:
    """As many submodels as charged, disjoint, each as likely, another draw every time; what is shared is not hidden."""
    copies = [part.copies for part in charged[0].parts][: len(COPIES[scheme])]
    assert copies == COPIES[scheme]
    drawn = np.concatenate([played.order.rows["submodel"] for played in run.rounds])
    if scheme in ("disjoint", "fresh", "dealt"):
        for submodel in range(copies[-1]):
            assert within_chance(int((drawn == submodel).sum()), drawn.size, 1 / copies[-1])
        supports = [support_alone(charged, grid, run.rounds[0], submodel=j) for j in range(copies[-1])]
        for one, other in itertools.combinations(supports, 2):
            assert not (one & other).any()
        assert all(one.any() for one in supports)
        return
    if scheme == "rolling":  # everybody knows it, so nobody is hidden
        for number, played in enumerate(run.rounds):
            assert set(played.order.rows["submodel"].tolist()) <= {number % 3}
        return
    if scheme == "devices":  # the charge is of those that train all of it, and who they are is public
        clients = np.concatenate([played.order.ids for played in run.rounds])
        assert set(clients[drawn == -1]) == {
            unit for unit in set(clients) if -(-(unit + 1) * 3 // 10) > -(-unit * 3 // 10)
        }
        assert set(clients[drawn == -1]).isdisjoint(clients[drawn != -1])
        assert set(drawn[drawn != -1]) == {0, 1, 2}
        assert support_alone(charged, grid, run.rounds[0])[-HIDDEN:].all()
        return
    assert set(drawn) == {-1}
    if scheme == "none":
        support_alone(charged, grid, run.rounds[0])
        return
    if scheme == "frozen masks":
        assert all(np.array_equal(played.noisy["output.bias"], played.before["output.bias"]) for played in run.rounds)
        assert "output.bias" not in run.rounds[0].sums
    keep = 0.7 if scheme == "light dropout" else 0.4
    places = [(played, place) for played in run.rounds for place in range(len(played.order.rows))][:20]
    masks = np.stack([support_alone(charged, grid, played, place)[-HIDDEN:] for played, place in places])
    assert within_chance(int(masks.sum()), masks.size, keep)
    assert len({tuple(mask) for mask in masks}) > 10  # each unit its own


def support_alone(
    charged: list[ChargedRounds], grid: SerialGrid, played: Played, place: int = 0, submodel: int = -1
) -> np.ndarray:
    """Which coordinates of the split part a single unit of a round can change; last: its hidden units."""
    order = played.order
    # So far from zero that no hidden unit is silent by itself.
    parameters = played.before | {"hidden.0.bias": np.full(HIDDEN, 10.0, dtype=np.float32)}
    alone = order.rows[[place]].copy()
    alone["submodel"] = submodel
    message = Message(replace(order, rows=alone, arrays=parameters).content(), grid.get_node_ids()[0], "train")
    (reply,) = grid.send_and_receive([message])
    sums = answer_in(reply, message).sums
    parts = names_of(replace(played, sums=sums))
    for part, names in enumerate(parts):
        norm = np.linalg.norm(flat(sums, names))
        assert norm <= order.clips[part]
        most = order.clips[part] / np.sqrt(charged[0].parts[part].linf_coordinates)
        assert np.abs(flat(sums, names)).max() <= most
    return np.concatenate([flat(sums, parts[-1]) != 0, (sums["output.weight"] != 0).any(0)])


def check_adaptive(run: Run, charged: list[ChargedRounds], units: int) -> None:
    """The norm that clients are told moves with a noisy count, whose noise is charged (half a unit's weight)."""
    extra = charged[0].parts[len(run.rounds[0].order.clips) :]
    if run.prepared.plan.scenario.privacy.clip in (0.5, "auto"):
        assert extra == ()
        assert all(played.scale == (1.0, 1.0) for played in run.rounds)
        return
    assert [part.noise_multiplier for part in extra] == [2 * 2.0]
    told = [played.order.clips[-1] for played in run.rounds]
    assert told[0] == 0.5
    assert told[1:] == [0.5 * played.scale[0] for played in run.rounds[:-1]]
    cohort = np.mean([len(played.order.ids) for played in run.rounds])
    noise = [-np.log(played.scale[0] / played.scale[1]) / 0.2 * cohort for played in run.rounds]
    assert all(abs(value) < 6 * 2.0 for value in noise)
    assert any(noise)  # some are cut off, where nobody or everybody is below the norm


MODES = [("none", "auto"), ("none", "adaptive"), ("constant", "number"), ("schedule", "number")]


def pairwise() -> list[tuple[str, str, str, str, str]]:
    """Choices in which every pair of values occurs (check-in with submodels, unit with mode, ...)."""
    return [
        (check_in, list(UNITS)[(i // 2 + j) % 2], submodels, *MODES[(i + j) % len(MODES)])
        for i, check_in in enumerate(CHECK_IN)
        for j, submodels in enumerate(SUBMODELS)
    ]


def test_the_choices_hold_every_pair():
    values = [CHECK_IN, UNITS, SUBMODELS, MODES]
    rows = [(*row[:3], row[3:]) for row in pairwise()]
    for one, other in itertools.combinations(range(4), 2):
        assert {(row[one], row[other]) for row in rows} == set(itertools.product(values[one], values[other]))
    here = [(*row[:3], row[3:]) for row in pairwise() if played(row)]
    for place, kind in enumerate(values):
        assert {row[place] for row in here} == set(kind)


def test_every_scheme_of_check_in_is_played():
    schemes = {yaml.safe_load(text)["scheme"] for text in CHECK_IN.values()}
    assert schemes == {
        get_args(kind.model_fields["scheme"].annotation)[0] for kind in get_args(get_args(AnyCheckIn)[0])
    }


def played(choice: tuple[str, ...]) -> bool:
    """A fifth of the pairs, with each scheme, unit and mode; slow: the others."""
    return (list(CHECK_IN).index(choice[0]) - list(SUBMODELS).index(choice[2])) % 5 == 0


CHOICES = [
    pytest.param(choice, id="-".join(choice), marks=[] if played(choice) else pytest.mark.slow) for choice in pairwise()
]


@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_charged_is_what_ran(choice, grid):
    run = play(federation(*choice), federation(*choice, noise=0), grid)
    charged, units = read_rounds(run.tree), UNITS[choice[1]]
    assert len({len(rounds.parts) for rounds in charged}) == 1
    check_schedule(run, charged, units)
    check_noise(run, charged)
    check_mixing(run, charged)
    check_submodels(run, charged, choice[2], grid)
    check_adaptive(run, charged, units)


@pytest.mark.parametrize("check_in", ["classes", "spaced"])
@pytest.mark.parametrize("submodels", ["none", "disjoint"])
def test_banded_noise_is_charged_as_white_noise_over_the_longest_row(check_in, submodels, grid):
    """With C = (1, c_1, .. on its diagonals), C times the noises of the rounds is white, and a unit's rounds are so far
    apart that it moves C times their sums by its clip times the length of a column of C.
    """
    choice = (check_in, "client", submodels, "none", "number")
    gap = f"check_in={CHECK_IN[check_in].replace(': 2}', ': 3}')}"
    banded = federation(*choice, gap, "privacy.noise={scheme: banded, bands: 3, coefficients: [0.5, 0.25]}")
    run = play(banded, federation(*choice, gap, noise=0), grid)
    charged = read_rounds(run.tree)
    check_schedule(run, charged, UNITS["client"])
    assert charged[0].apart >= 3
    row = np.array([1, 0.5, 0.25])
    for part, names in enumerate(names_of(run.rounds[0])):
        noises = [
            (flat(each.noisy, names) - flat(each.plain, names)) / factor(each, names) / each.order.clips[part]
            for each in run.rounds
        ]
        white = np.stack(
            [sum(row[back] * noises[at - back] for back in range(min(at, 2) + 1)) for at in range(len(noises))]
        )
        white /= np.linalg.norm(row) * charged[0].parts[part].noise_multiplier
        low, high = stats.chi2(white.size).ppf([RARE, 1 - RARE])
        assert low <= float((white**2).sum()) <= high
        for back in range(1, 4):  # of no two rounds related: a sum of products of independent standard numbers
            products = (white[back:] * white[:-back]).ravel()
            assert abs(products.sum()) < 6 * np.sqrt(products.size)  # 6 deviations: less often than RARE


@pytest.mark.parametrize("submodels", ["none", "disjoint"])
def test_the_noise_of_secure_sums_is_charged_for_the_honest_nodes_that_stay(submodels, grid):
    choice = ("balanced", "client", submodels, "none", "number")
    secure = "aggregation={scheme: secure, nodes: 10, dropped: 0.2, colluding: 0.1}"
    run = play(federation(*choice, secure), federation(*choice, noise=0), grid)
    charged = read_rounds(run.tree)
    check_schedule(run, charged, UNITS["client"])
    more = math.sqrt(10 / 7)  # nobody drops out or colludes here: ten shares, of which seven have the charged variance
    parts = tuple(replace(part, noise_multiplier=more * part.noise_multiplier) for part in charged[0].parts)
    check_noise(run, [replace(charged[0], parts=parts)])
