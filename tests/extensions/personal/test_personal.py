"""Parameters that stay with their client: trained from where the client left them, and in no sum, file or model."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn

import fedamp
from fedamp.client import app
from fedamp.client.worker import TrainingNode
from fedamp.engines import flower
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import DeploymentError, InputError
from fedamp.extensions.personal.layers import PersonalLayers, PersonalParameters
from fedamp.server.setup import prepare
from tests.client.federation import trained
from tests.server.plays import play_until_killed

GENERATOR = np.random.default_rng(4)
INPUTS, LABELS = GENERATOR.normal(size=(60, 5)).astype(np.float32), GENERATOR.integers(0, 3, 60)
CLIENTS = np.arange(60) // 6


@pytest.fixture
def folder(tmp_path):
    """Ten clients with five training records each, and one of each to test on."""
    test = np.arange(60) % 6 == 5
    for name, chosen in (("train", ~test), ("test", test)):
        np.savez(tmp_path / f"{name}.npz", x=INPUTS[chosen], y=LABELS[chosen], client=CLIENTS[chosen])
    return tmp_path


def scenario(folder, **changes):
    content = {
        "name": "personal",
        "seed": 3,
        "known_seed": True,
        "data": {"name": "npz", "path": str(folder), "partition": {"scheme": "natural"}, "test_is_public": True},
        "model": {"name": "mlp", "hidden": [4], "local": ["output"]},
        "rounds": 6,
        "check_in": {"scheme": "balanced", "k": 3},
        "client": {"steps": 2, "learning_rate": 0.5},
        "privacy": {"clip": 0.5, "noise_multiplier": 0.3, "delta": 1e-3, "precision": 0.05},
        "engine": {"kind": "serial"},
    }
    return fedamp.load(content, **changes)


def node_of(asked, file):
    prepared = prepare(asked)
    task = prepared.task.model_copy(update={"personal": str(file)})
    return TrainingNode(task, asked.data.load(0, file.parent), local=PersonalParameters), prepared.state.parameters


def order(round_, clients):
    return RoundOrder("", round_, (9.0,), rows(clients, [bytes(31) + bytes([each]) for each in clients]))


@pytest.mark.slow
def test_a_client_goes_on_where_it_was(folder):
    """Against torch's own SGD on one network with a head of its own; the body is the given one in each round."""
    node, start = node_of(scenario(folder), folder / "personal.bin")
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    names = ["hidden.0.weight", "hidden.0.bias", "output.weight", "output.bias"]
    values = dict(zip(names, network.parameters(), strict=True))
    for name, value in values.items():
        value.data = torch.from_numpy(start[name].copy())
    rows = (CLIENTS == 7) & (np.arange(60) % 6 != 5)
    for round_ in (1, 4):
        for name in names[:2]:
            values[name].data = torch.from_numpy(start[name].copy())
        sums, report = trained(node, start, order(round_, [7]))
        optimizer = torch.optim.SGD(network.parameters(), 0.5)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                network(torch.from_numpy(INPUTS[rows])), torch.from_numpy(LABELS[rows])
            ).backward()
            optimizer.step()
        assert report.reported == [7]
        assert sums.keys() == set(names[:2])
        for name in names[:2]:
            assert np.allclose(sums[name], values[name].detach().numpy() - start[name], atol=1e-5)
        own = PersonalLayers(folder / "personal.bin", {name: start[name].shape for name in names[2:]}).of(7, round_ + 1)
        for name in names[2:]:
            assert np.allclose(own[name], values[name].detach().numpy(), atol=1e-5)


@pytest.mark.slow
def test_nobody_else_s_own_parameters_depend_on_a_client(folder):
    """Neighbouring data: client 7 has other records. All other clients' updates and files are the same to the bit."""
    found = []
    for other in (False, True):
        if other:
            with np.load(folder / "train.npz") as arrays:
                changed = dict(arrays)
            changed["x"][changed["client"] == 7] *= -100
            np.savez(folder / "train.npz", **changed)
        file = folder / f"{other}.bin"
        node, start = node_of(scenario(folder), file)
        for round_ in (1, 2):
            trained(node, start, order(round_, list(range(10))))
        shapes = {name: start[name].shape for name in ("output.weight", "output.bias")}
        layers = PersonalLayers(file, shapes)
        found.append([layers.of(client, 3) for client in range(10)])
    for client, (first, second) in enumerate(zip(*found, strict=True)):
        same = all(np.array_equal(first[name], second[name]) for name in first)
        assert same == (client != 7)


def test_the_model_and_the_ledger_hold_nothing_of_them(folder, tmp_path):
    asked = scenario(folder)
    run = fedamp.run(asked, out=tmp_path / "run")
    start = prepare(asked).state.parameters
    released = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in released.items():
        assert np.array_equal(value, start[name]) == name.startswith("output"), name
    assert (tmp_path / "run" / "personal.bin").stat().st_mode & 0o777 == 0o600
    found = run.by_client()
    assert found.clients.tolist() == list(range(10))
    assert found.records.tolist() == [1] * 10
    module, shapes = run.model(), {name: start[name].shape for name in ("output.weight", "output.bias")}
    layers = PersonalLayers(run.folder / "personal.bin", shapes)
    for client in range(10):
        with torch.no_grad():
            module.load_state_dict({name: torch.tensor(v) for name, v in layers.of(client, 99).items()}, strict=False)
            logits = module(torch.from_numpy(INPUTS[client * 6 + 5 : client * 6 + 6]))
        loss = nn.functional.cross_entropy(logits, torch.tensor([LABELS[client * 6 + 5]]))
        assert found.loss[client] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.slow
def test_a_killed_run_ends_as_an_unbroken_one(folder, tmp_path):
    """Killed after round 5 or 6 of 6, where the last checkpoint is of round 4: the rounds after it are played again."""
    asked, out = scenario(folder, **{"federation.checkpoint_every": 4}), tmp_path / "killed"
    whole = fedamp.run(asked, out=tmp_path / "whole")
    play_until_killed(asked, out, 5)
    again = fedamp.run(asked, out=out, resume=True)
    assert np.array_equal(again.by_client().loss, whole.by_client().loss)
    assert (out / "personal.bin").read_bytes() == (tmp_path / "whole" / "personal.bin").read_bytes()


@settings(max_examples=50, deadline=None)
@given(every=st.integers(1, 4), rounds=st.lists(st.integers(1, 20), unique=True, max_size=8), lost=st.integers(0, 19))
def test_what_is_played_again_begins_as_it_did(tmp_path_factory, every, rounds, lost):
    """The rounds after the checkpoint before ``lost`` are played twice; each time a client has the same before each."""
    layers = PersonalLayers(tmp_path_factory.mktemp("own") / "file", {"a": (2,)}, every)
    begin, seen = lost // every * every, {}
    for played in (sorted(each for each in rounds if each <= lost), sorted(each for each in rounds if each > begin)):
        for round_ in played:
            before = layers.of(3, round_)
            before = None if before is None else before["a"].tolist()
            assert seen.setdefault(round_, before) == before
            layers.keep(3, round_, {"a": np.full(2, round_, np.float32)})
    assert layers.of(2, 99) is None
    last = layers.of(3, 99)
    assert (last is None) == (not [each for each in rounds if each <= lost or each > begin])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.local": ["tail"]}, "model.local: 'tail' matches no parameter; expected: such as output.bias"),
        ({"model.local": ["hidden", "output"]}, "model.local covers every parameter"),
    ],
)
def test_what_has_no_place_for_them_is_refused(folder, tmp_path, changes, words):
    def run():
        fedamp.run(scenario(folder, **changes), out=tmp_path / "run")

    with pytest.raises(InputError, match=words):
        run()


def test_a_node_of_a_deployment_writes_no_file_that_its_server_names(folder, tmp_path, monkeypatch):
    task = prepare(scenario(folder)).task.model_copy(update={"personal": str(tmp_path / "victim")})
    monkeypatch.setattr(flower, "in_supernode", lambda: True)
    with pytest.raises(DeploymentError, match="the task names a file that this node would write"):
        app.node_of(task.to_json(), "", "cpu", None)
    assert not (tmp_path / "victim").exists()


def test_records_of_nobody_are_not_evaluated_by_client(tmp_path):
    run = fedamp.run("digits", rounds=2, check_in={"k": 1}, out=tmp_path / "run", anyway=True)
    with pytest.raises(InputError, match="the test records belong to no clients"):
        run.by_client()
