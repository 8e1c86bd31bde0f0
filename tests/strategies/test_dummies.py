"""Dummies: from outside all nodes do the same in every round; the model is the one without them, to the bit."""

import signal
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord

from fedamp.engines.engines import CLIENT_APP
from fedamp.engines.simulation import SerialGrid
from fedamp.engines.wire import RoundOrder, message_content
from fedamp.errors import FederationError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.cost import privacy_cost
from fedamp.federation.plan import make_plan
from fedamp.server.custom_app import AppStrategy
from fedamp.server.loop import ask
from fedamp.server.preflight import preflight
from fedamp.server.setup import prepare
from fedamp.server.traffic import traffic
from tests.client import own_apps
from tests.deployed import Deployment
from tests.federations import hosting, small

THREE = {"a": "0-19", "b": "20-39", "c": "40-59"}
ALONE = {f"n{unit}": str(unit) for unit in range(5)}
FEW = ("data={name: digits, clients: 5}", "check_in={scheme: poisson, rate: 0.3}", "federation.quorum=0")
EACH = ("data={name: digits, clients: 3}", "privacy.unit=sample", "check_in={scheme: poisson, rate: 0.01}")
MLP = "model={name: mlp, hidden: [12]}"


def played(dummies, hosts, *overrides, grid=None, rounds=4):
    """The strategy, the grid, and what reported in each round."""
    dummies = f"federation.dummies={str(dummies).lower()}"
    prepared = prepare(small(f"rounds={rounds}", hosting(hosts), dummies, *overrides))
    strategy = prepared.strategy(prepared.state)
    grid = grid or Deployment({name: {"hosts": units} for name, units in hosts.items()})
    reported = []
    for round_ in range(1, rounds + 1):
        aggregate = ask(strategy, grid, round_)
        strategy.release(round_, aggregate)
        reported.append((aggregate.reported, aggregate.failed, aggregate.loss_sum, aggregate.records))
    return strategy, grid, reported


def assert_equal_models(one, other):
    for name, array in one.state.parameters.items():
        np.testing.assert_array_equal(array, other.state.parameters[name])


@pytest.mark.few(0, 1, 2)
@pytest.mark.parametrize(
    ("hosts", "overrides"),
    [
        (THREE, ("check_in={scheme: poisson, rate: 0.5}",)),
        (THREE, ("check_in={scheme: balanced, k: 1}", MLP, "submodels={scheme: disjoint, count: 3}")),
        (THREE, ("check_in={scheme: poisson, rate: 0.5}", MLP, "submodels={scheme: dropout, keep: 0.5}")),
        ({"a": "0-599", "b": "600-1199"}, (*EACH, "client={steps: 1, learning_rate: 0.5}")),
        (ALONE, FEW),
    ],
    ids=["whole models", "submodels", "dropout", "records", "single units"],
)
def test_the_model_is_the_one_without_dummies_and_all_messages_are_alike(hosts, overrides):
    strategy, grid, reported = played(True, hosts, *overrides)
    without, sparse, expected = played(False, hosts, *overrides)
    assert_equal_models(strategy, without)
    assert reported == expected  # counts and losses, to the bit
    for messages in (grid.orders, grid.replies):
        assert all([name for name, _ in sent] == list(hosts) for sent in messages)
        sizes = {name: {len(data) for sent in messages for other, data in sent if other == name} for name in hosts}
        assert all(len(found) == 1 for found in sizes.values())
    assert set(grid.stored.values()) == set(sparse.stored.values()) == {1}


def test_a_round_in_which_nobody_checks_in_asks_all_nodes():
    rare = (FEW[0], "check_in={scheme: poisson, rate: 0.2}")
    strategy, grid, reported = played(True, ALONE, *rare, rounds=8)
    without, sparse, _ = played(False, ALONE, *rare, rounds=8)
    empty = [round_ for round_ in range(8) if reported[round_][0] == 0]
    assert empty
    assert all(len(grid.orders[round_]) == len(ALONE) for round_ in empty)
    assert len(sparse.orders) == 8 - len(empty)
    assert_equal_models(strategy, without)


def test_a_simulation_has_no_dummies():
    alone, _, reported = played(True, THREE, grid=SerialGrid(CLIENT_APP, "cpu"))
    assert not alone.dummies
    assert_equal_models(alone, played(True, THREE)[0])
    assert [each[0] for each in reported] == [len(alone.plan.attendance.cohort_of(r)) for r in range(1, 5)]


def test_dummies_do_not_make_a_quorum():
    """One node, whose units are in the cohort of round 1, never answers; the dummies of the others do."""
    plan = played(True, ALONE, *FEW, rounds=1)[0].plan
    gone = {f"n{unit}" for unit in plan.attendance.cohort_of(1)}
    assert 0 < len(gone) < len(ALONE)
    grid = Deployment({n: {"hosts": h} for n, h in ALONE.items()}, meddle=_silent_when_trained(gone))
    with pytest.raises(FederationError, match=r"none of .* reported"):
        played(True, ALONE, *FEW, grid=grid)
    assert len(grid.replies[0]) == len(ALONE)


def _silent_when_trained(gone):
    return lambda name, data: None if name in gone and len(data) > 1000 else data


@pytest.mark.parametrize(
    ("dummies", "hosts", "overrides", "expected"),
    [
        ("auto", ALONE, (), "dummies"),
        ("auto", ALONE, (FEW[0], "check_in={scheme: poisson, rate: 0.2}"), "dummies"),
        ("auto", THREE, ("check_in={scheme: poisson, rate: 0.1}",), "dummies"),  # ten times the work, and
        ("auto", THREE, ("check_in={scheme: poisson, rate: 0.09}",), "none"),  # more than that
        ("auto", THREE, ("check_in={scheme: poisson, rate: 0.09}", "federation.answer_after=9"), "answer_after"),
        ("auto", {"site": "all"}, (), "none"),
        (True, THREE, ("check_in={scheme: poisson, rate: 0.02}",), "dummies"),
        (False, ALONE, (), "none"),
    ],
)
def test_when_there_are_dummies_and_what_a_node_sends_and_receives(dummies, hosts, overrides, expected):
    clients = "data={name: digits, clients: 60}" if hosts is not ALONE else FEW[0]
    scenario = small(clients, hosting(hosts), f"federation.dummies={str(dummies).lower()}", *overrides)
    answer = traffic(scenario)
    assert answer["dummies"] is (expected != "none")
    cost = privacy_cost(scenario)
    assert cost["protection"] == expected
    told = cost["epsilon_nodes"]["upper"], cost["epsilon"]["upper"]
    assert told[0] > 1.2 * told[1] if expected == "none" else told[0] == told[1]
    [check] = [check for check in preflight(make_plan(scenario, cost["units"])) if check.name == "registered nodes"]
    work = cost["units"] / cost["expected_cohort"]
    dear = expected == "dummies" and work > 11
    assert check.verdict == ("caution" if expected == "none" or dear else "pass")
    assert ("sees who checks in" in check.found) == (expected == "none")
    assert answer["each_round"]["dummies"]["work"] == pytest.approx(work)
    assert answer["each_round"]["answer_after"]["work"] == answer["each_round"]["none"]["work"] == 1
    bounds = answer["bytes_per_node"]
    numbers = 64 * 10 + 10
    assert bounds["upper"] == pytest.approx(scenario.rounds * (4 + 8) * numbers, abs=scenario.rounds * 9000)
    assert bounds["lower"] == (bounds["upper"] if expected != "none" else 0)
    assert bounds["upper"] == scenario.rounds * answer["each_round"]["dummies"]["bytes"]
    assert bounds["upper"] >= scenario.rounds * answer["each_round"]["none"]["bytes"]


def test_a_node_that_may_claim_units_of_others_is_charged_unamplified():
    plan = make_plan(small("federation.hosts=trusted", "federation.dummies=true"), 60)
    assert plan.protection == "none"
    assert plan.charge.nodes_epsilon.lower > 1.2 * plan.charge.planned_epsilon.upper
    assert make_plan(small(), 60).charge.nodes_epsilon is None


def test_with_a_fixed_time_all_nodes_are_asked_and_only_the_cohort_trains():
    hosts = "federation.hosts={a: 0-19, b: 20-39, c: 40-59}"
    prepared = prepare(small("check_in={scheme: poisson, rate: 0.02}", hosts, "federation.answer_after=0.2"))
    grid, began = Deployment({name: {"hosts": units} for name, units in THREE.items()}), time.monotonic()
    ask(strategy := prepared.strategy(prepared.state), grid, 1)
    assert time.monotonic() - began >= 3 * 0.2  # here the nodes answer in turn
    cohort = strategy.plan.attendance.cohort_of(1).tolist()
    told = [RoundOrder.of(message_content(data)) for _, data in grid.orders[0]]
    assert [sorted(each.ids) for each in told] == [[u for u in cohort if u // 20 == node] for node in range(3)]
    assert [] in [each.ids for each in told] != [[], [], []]
    assert all(each.counted == each.ids for each in told)
    for sent in (grid.orders[0], grid.replies[0]):
        assert [name for name, _ in sent] == list(THREE)
        assert len({len(data) for _, data in sent}) == 1


def test_training_beyond_the_fixed_time_is_cut_short_and_its_unit_counts_as_zero(tmp_path):
    """Also where the loop catches all exceptions; the answer has the size of all others."""
    scenario, nodes = own("auto", check_in={"scheme": "all"})
    scenario = scenario.model_copy(update={"rounds": 1})
    federation = scenario.federation.model_copy(update={"answer_after": 0.2})
    arrays = ArrayRecord({"weight": Array(np.ones(3, np.float32))})
    strategy = AppStrategy(scenario.model_copy(update={"federation": federation}), arrays, tmp_path / "out")
    grid, before = Deployment(nodes, "tests.client.own_apps:endless_app"), signal.getsignal(signal.SIGALRM)
    with pytest.raises(FederationError, match=r"none of 10 clients reported .*federation\.answer_after 0\.2 s"):
        strategy.start(grid, arrays)
    assert len({len(data) for _, data in grid.replies[0]}) == 1
    assert signal.getsignal(signal.SIGALRM) == before


def test_a_fixed_time_must_end_before_the_round():
    with pytest.raises(ScenarioError, match=r"federation\.answer_after 600 must be below round_deadline 600"):
        small("federation.answer_after=600")


def test_the_bytes_of_a_run_are_those_that_were_told():
    strategy, grid, _ = played(True, THREE)
    sent = dict.fromkeys(THREE, 0)
    for messages in (*grid.orders, *grid.replies):
        for name, data in messages:
            sent[name] += len(data)
    assert {traffic(strategy.plan.scenario)["bytes_per_node"][end] for end in ("lower", "upper")} == set(sent.values())


def test_without_nodes_there_is_no_traffic_to_tell():
    assert traffic(small()) is None


def test_dummies_need_to_know_each_nodes_units():
    with pytest.raises(ScenarioError, match=r"federation\.dummies needs to know each node's units"):
        small("federation.hosts={site: all}", "federation.dummies=true")


def own(dummies, **changes):
    nodes = {f"n{unit}": {"partition-id": unit} for unit in range(10)}
    raw = {
        "name": "own",
        "known_seed": True,
        "data": {"name": "external", "clients": 10},
        "model": {"name": "external"},
        "rounds": 3,
        "check_in": {"scheme": "poisson", "rate": 0.4},
        "privacy": {"clip": 0.5, "noise_multiplier": 1.0, "precision": 0.05},
        "federation": {"hosts": {name: str(unit) for unit, name in enumerate(nodes)}, "quorum": 0, "dummies": dummies},
    }
    return reader.validate_scenario(raw | changes, "own"), nodes


@pytest.mark.parametrize("name", ["remembering_app", "hostile_app", "hostile_flower_app"])
def test_apps_of_ones_own_train_dummies_alike_and_count_them_nowhere(tmp_path, name):
    models, counts = [], []
    weights = {"weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)}
    for dummies in (True, False):
        scenario, nodes = own(dummies)
        arrays = ArrayRecord({name: Array(array) for name, array in weights.items()})
        strategy = AppStrategy(scenario, arrays, tmp_path / str(dummies))
        grid = Deployment(nodes, f"tests.client.own_apps:{name}")
        counts.append([])
        strategy.start(grid, arrays, train_config=ConfigRecord({"lr": 0.1}))
        counts[-1] = (strategy.collected.reported, strategy.collected.failed, len(strategy.collected.errors))
        models.append(strategy.state.parameters["weight"])
        assert {len(sent) for sent in grid.orders} == {10} or not dummies
        assert len({len(data) for sent in grid.replies for _, data in sent}) == 1
    np.testing.assert_array_equal(*models)
    assert counts[0] == counts[1]


def test_all_units_of_a_node_train_in_every_round(tmp_path):
    arrays = ArrayRecord({"weight": Array(np.ones(3, np.float32))})
    strategy = AppStrategy(own(True)[0], arrays, tmp_path / "out")
    own_apps.TRAINED.clear()
    strategy.start(Deployment(own(True)[1], "tests.client.own_apps:noting_app"), arrays)
    assert sorted(own_apps.TRAINED) == [(round_, client) for round_ in (1, 2, 3) for client in range(10)]
    assert strategy.collected.reported == len(strategy.plan.attendance.cohort_of(3)) < 10


def test_a_node_that_was_started_again_misses_a_round_and_is_queried_again():
    """It has lost the secret by which it knows the server; another node's order would look the same to it."""
    prepared = prepare(small("check_in={scheme: all}", "rounds=4", hosting(THREE)))
    strategy = prepared.strategy(prepared.state)
    grid = Deployment({name: {"hosts": units} for name, units in THREE.items()})
    reported = []
    for round_ in range(1, 5):
        if round_ == 2:
            next(iter(grid.contexts.values())).state.clear()
        aggregate = ask(strategy, grid, round_)
        strategy.release(round_, aggregate)
        reported.append(aggregate.reported)
    assert reported == [60, 40, 60, 60]
