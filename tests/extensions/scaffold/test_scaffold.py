"""SCAFFOLD: against the paper's own formulas, and what each client's records can change."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedamp
from fedamp.client import app
from fedamp.client.clipping import clip_and_sum, clipped_each
from fedamp.client.worker import TrainingNode
from fedamp.engines import flower
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DeploymentError, InputError
from fedamp.extensions.personal.layers import PersonalLayers
from fedamp.extensions.scaffold.server import WithVariate
from fedamp.extensions.scaffold.variates import ClientVariates
from fedamp.federation.optimizers import Averaged, Sgd
from fedamp.server.setup import prepare
from fedamp.testing import OptimizerContract
from tests.server.plays import play_until_killed

CLIENTS, CLIP, RATE, STEPS = 10, 0.2, 0.5, 3
DRAWN = np.random.default_rng(4)
INPUTS = DRAWN.normal(size=(50, 5)).astype(np.float32)
OWNERS = np.arange(50) // 5
LABELS = (DRAWN.integers(0, 2, 50) + OWNERS) % 3  # clients differ, so that they drift


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "train.npz", x=INPUTS, y=LABELS, client=OWNERS)
    return tmp_path


def scenario(folder, **changes):
    content = {
        "name": "drift",
        "seed": 3,
        "known_seed": True,
        "data": {"name": "npz", "path": str(folder), "classes": 3, "partition": {"scheme": "natural"}},
        "model": {"name": "logistic"},
        "rounds": 8,
        "check_in": {"scheme": "balanced", "k": 4},
        "client": {"steps": STEPS, "learning_rate": RATE, "scaffold": True},
        "server": {"learning_rate": 0.7},
        "privacy": {"clip": CLIP, "noise_multiplier": 0, "delta": 1e-3, "precision": 0.05},
        "engine": {"kind": "serial"},
    }
    return fedamp.load(content, **changes)


def in_the_papers_words(asked):
    """Algorithm 1 of Karimireddy et al. 2020, option II, with clipped differences y - x and a fixed cohort."""
    prepared = prepare(asked)
    plan, network = prepared.plan, nn.Linear(5, 3)
    x = [torch.from_numpy(each.copy()) for each in prepared.state.parameters.values()]
    c, own = [torch.zeros_like(each) for each in x], [[torch.zeros_like(each) for each in x] for _ in range(CLIENTS)]
    for round_ in range(1, asked.rounds + 1):
        moved, changed = ([torch.zeros_like(each) for each in x] for _ in range(2))
        for client in plan.attendance.cohort_of(round_).tolist():
            records, labels = (torch.from_numpy(each[client == OWNERS]) for each in (INPUTS, LABELS))
            y = [each.clone() for each in x]
            for _ in range(STEPS):
                for parameter, value in zip(network.parameters(), y, strict=True):
                    parameter.data = value.clone()
                loss = nn.functional.cross_entropy(network(records), labels)
                gradients = torch.autograd.grad(loss, list(network.parameters()))
                y = [v - RATE * (g - mine + c_) for v, g, mine, c_ in zip(y, gradients, own[client], c, strict=True)]
            change = [one - other for one, other in zip(y, x, strict=True)]
            norm = torch.sqrt(sum((each**2).sum() for each in change))
            change = [each * min(1.0, CLIP / float(norm)) for each in change]
            after = [mine - c_ - d / (STEPS * RATE) for mine, c_, d in zip(own[client], c, change, strict=True)]
            moved = [one + d for one, d in zip(moved, change, strict=True)]
            changed = [one + new - old for one, new, old in zip(changed, after, own[client], strict=True)]
            own[client] = after
        x = [v + 0.7 * d / plan.expected_cohort for v, d in zip(x, moved, strict=True)]
        # |S| is secret: the paper's sum of -c over the cohort has the expected cohort in place of |S|.
        lacking = plan.expected_cohort - len(plan.attendance.cohort_of(round_))
        c = [c_ + (d - lacking * c_) / CLIENTS for c_, d in zip(c, changed, strict=True)]
    return dict(zip(prepared.state.parameters, x, strict=True))


@pytest.mark.usefixtures("few_tries")
def test_the_model_is_that_of_the_paper_s_algorithm(folder, tmp_path):
    """About half of the updates are longer than the clip. Float32 of eight rounds: 1e-5."""
    asked = scenario(folder)
    expected = in_the_papers_words(asked)
    found = fedamp.run(asked, out=tmp_path / "run", anyway=True).model().state_dict()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-5), name


def rounds_of(folder, name):
    """Three rounds of a node with all clients, and with client 7 as one that does not count: sums, and variates."""
    prepared = prepare(scenario(folder))
    start, counted, sums = prepared.state.parameters, np.arange(CLIENTS) != 7, list[dict[str, np.ndarray]]()
    shapes = {name: value.shape for name, value in start.items()}
    units, places = rows(range(CLIENTS), [bytes(31) + bytes([each]) for each in range(CLIENTS)]), list[PersonalLayers]()
    for who in (True, counted):
        file = folder / f"{name} {len(places)}"
        places.append(PersonalLayers(file, shapes))
        task, each = prepared.task.model_copy(update={"variates": str(file)}), units.copy()
        each["counted"] = who
        node = TrainingNode(task, prepared.plan.scenario.data.load(0, folder), local=ClientVariates)
        for round_ in (1, 2, 3):
            variate = {name: np.full(shape, 0.01 * round_, np.float32) for name, shape in shapes.items()}
            sums.append(node.train(RoundOrder("", round_, (CLIP,), each, start, broadcast=variate)).sums)
    kept = [[each.of(client, 4) for client in range(CLIENTS)] for each in places]
    assert kept[1][7] is None
    return sums[:3], sums[3:], kept[0]


@pytest.mark.usefixtures("few_tries")
def test_a_client_s_records_change_its_own_contribution_alone(folder):
    """Neighbouring data, hostile records, and variates over three rounds. All others are the same to the bit."""
    before = rounds_of(folder, "before")
    for records in (3e38, -1e4, 0.0):
        changed = INPUTS.copy()
        changed[OWNERS == 7] = records
        np.savez(folder / "train.npz", x=changed, y=LABELS, client=OWNERS)
        after = rounds_of(folder, records)
        for whole, others, others_before in zip(after[0], after[1], before[1], strict=True):
            assert all(np.array_equal(others[name], others_before[name]) for name in others)
            own = [whole[name] - others[name] for name in whole]
            assert np.sqrt(sum((each**2).sum() for each in own)) <= CLIP
        for client in range(CLIENTS):
            first, second = before[2][client], after[2][client]
            same = second is not None and all(np.array_equal(first[name], second[name]) for name in first)
            assert same == (client != 7)
        assert after[2][7] is None or all(np.isfinite(each).all() for each in after[2][7].values())


@pytest.mark.slow
@pytest.mark.usefixtures("few_tries")
def test_a_killed_run_ends_as_an_unbroken_one(folder, tmp_path):
    """Killed after round 6 or 7 of 8, where the last checkpoint is of round 5: the rounds after it are played again."""
    asked = scenario(folder, **{"federation.checkpoint_every": 5, "privacy.noise_multiplier": 0.3})
    whole = fedamp.run(asked, out=tmp_path / "whole").model().state_dict()
    play_until_killed(asked, tmp_path / "killed", 7)
    assert (tmp_path / "killed" / "variates.bin").stat().st_mode & 0o777 == 0o600
    again = fedamp.run(asked, out=tmp_path / "killed", resume=True).model().state_dict()
    assert all(torch.equal(again[name], value) for name, value in whole.items())


@pytest.mark.slow
def test_workers_of_ray_keep_the_same_variates(folder, tmp_path):
    pytest.importorskip("ray")
    noisy = {"privacy.noise_multiplier": 0.3, "rounds": 6, "check_in.k": 3}
    serial = fedamp.run(scenario(folder, **noisy), out=tmp_path / "serial").model().state_dict()
    on_ray = scenario(folder, **noisy, engine={"kind": "ray", "workers": 2})
    found = fedamp.run(on_ray, out=tmp_path / "ray").model().state_dict()
    assert all(torch.equal(found[name], value) for name, value in serial.items())


@pytest.mark.usefixtures("few_tries")
def test_it_costs_nothing_and_leaves_nothing(folder, tmp_path):
    noisy = {"privacy.noise_multiplier": 1.5, "known_seed": False, "rounds": 4, "check_in.k": 1}
    run = fedamp.run(scenario(folder, **noisy), out=tmp_path / "run", anyway=True)
    assert all(check.verdict != "fail" for check in run.verify())
    plain, own = (fedamp.privacy(scenario(folder, **noisy, **{"client.scaffold": has})) for has in (False, True))
    assert own["epsilon"] == plain["epsilon"]
    assert not (tmp_path / "run" / "variates.bin").exists()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"client.momentum": 0.5}, "client.momentum"),
        ({"client.optimizer": "adam"}, "client.optimizer"),
        ({"client.steps": None, "client.epochs": 2}, "client.epochs"),
        ({"client.learning_rate": [[1, 0.5], [3, 0.1]]}, "client.learning_rate"),
        ({"client.scaffold": 3}, "client.scaffold=3"),
    ],
)
def test_local_training_of_another_kind_is_refused(folder, changes, key):
    with pytest.raises(InputError, match=f"{key}.* expected: "):
        scenario(folder, **changes)


@pytest.mark.usefixtures("few_tries")
def test_a_node_that_keeps_nothing_refuses_the_order(folder, tmp_path, monkeypatch):
    """Also custom training, and a node of a deployment, which writes no file that its server names."""
    prepared = prepare(scenario(folder))
    order = prepared.strategy(prepared.state)._order(1, rows([1, 2], bytes(32)), -1)
    assert set(order.broadcast) == set(order.arrays)
    again = RoundOrder.of(order.content())
    assert set(again.broadcast) == set(order.broadcast)
    assert set(again.arrays) == set(order.arrays)
    assert len(order.sealed()) > len(replace(order, broadcast={}).sealed())
    node = app.node_of(prepared.task.to_json(), "", "cpu", None)
    assert node.train(order).failed == 2
    with pytest.raises(DeploymentError, match="custom training does not read"):
        app.sum_of_units(order, lambda client: order.arrays)
    task = prepared.task.model_copy(update={"variates": str(tmp_path / "victim")})
    monkeypatch.setattr(flower, "in_supernode", lambda: True)
    with pytest.raises(DeploymentError, match="the task names a file that this node would write"):
        app.node_of(task.to_json(), "", "cpu", None)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("options", [{}, {"normalised": True}, {"by_layer": True}])
def test_each_clipped_update_is_the_one_that_is_added(options):
    draw = torch.Generator().manual_seed(1)
    updates = {name: torch.randn(4, *shape, generator=draw) for name, shape in (("a.w", (3, 2)), ("b.w", (5,)))}
    updates["a.w"][2] = torch.nan
    updates["b.w"][3] /= 1e4
    updates["a.w"][3] /= 1e4
    each = clipped_each(updates, [["a.w", "b.w"]], [0.7], **options)
    for unit in range(4):
        alone = clip_and_sum(
            {name: value[[unit]].clone() for name, value in updates.items()}, [["a.w", "b.w"]], [0.7], **options
        )
        for name, total in alone.sums.items():
            assert torch.allclose(each[name][unit].double(), total, atol=1e-6)


class TestVariate(OptimizerContract):
    """The server's variate is a function of noisy sums, coordinate by coordinate."""

    optimizer = WithVariate(Averaged(Sgd(0.5, 0.8), 0.9), 0.1)
