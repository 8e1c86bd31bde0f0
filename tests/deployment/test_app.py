"""The server app with a secret seed: whose randomness it uses, what it tells whom."""

import json
import re
import stat
import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedamp.engines.engines import CLIENT_APP, FaultyGrid
from fedamp.engines.simulation import SerialGrid
from fedamp.errors import DeploymentError, FederationError, InputError, RunFolderError, UnwritableError
from fedamp.federation.running import Faults
from fedamp.server.app import app, wait_for_nodes
from fedamp.server.setup import prepare
from tests.chains import change_ledger
from tests.federations import small, write_small
from tests.orders import order_in
from tests.server.plays import ledger_of, model_of, play_in, rounds_of

KNOWN = {"known-seed": True}


def run_app(scenario: Path, out: Path, **config) -> None:
    """As Flower does, with this process for a node."""
    settings = {"scenario": str(scenario), "out": str(out), "resume": False, "known-seed": False} | config
    grid = SerialGrid(CLIENT_APP, "cpu")
    app(grid, Context(1, 1, {}, RecordDict(), settings))


SHORT = ("rounds=4", "check_in={scheme: poisson, rate: 0.4}")  # quick to account for


@pytest.fixture
def scenario(tmp_path):
    return write_small(tmp_path, *SHORT, "known_seed=false", "federation.keep_secrets=true")


def seed_of(run: Path) -> int:
    return int((run / "seed.secret").read_text())


def test_the_seed_is_the_systems_in_one_file_for_its_owner_and_nothing_else_tells(tmp_path, scenario, capfd):
    one, other = tmp_path / "one", tmp_path / "other"
    for run in (one, other):
        run_app(scenario, run)
    told = capfd.readouterr()
    assert seed_of(one) != seed_of(other)
    assert seed_of(one) > 2**64  # 128 bits; a smaller one has a chance of 2**-64
    assert model_of(one) != model_of(other)
    assert ledger_of(one)["noise_seed"] == "from the operating system"
    assert [line["scheduled"] for line in rounds_of(one)] != [line["scheduled"] for line in rounds_of(other)]
    file = one / "seed.secret"
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(one.stat().st_mode)) == (0o600, 0o700)
    contents = [path.read_bytes() for path in one.rglob("*") if path.is_file() and path != file]
    for content in [*contents, "".join(told).encode()]:
        assert file.read_text().encode() not in content
        assert f"{seed_of(one):x}".encode() not in content
    # What is printed is what is released.
    lines = told.out.splitlines()[:6]
    assert lines[0] == "small: 4 rounds, 0 of them done"
    assert all(re.fullmatch(r"round \d: accuracy 0\.\d+, epsilon \d+\.\d+", line) for line in lines[1:5])
    assert lines[5].startswith("finished after round 4")
    assert len(told.out.splitlines()) == 2 * len(lines)


def test_a_known_seed_gives_the_simulation_and_the_ledger_says_so(tmp_path, scenario):
    run_app(scenario, tmp_path / "known", **KNOWN)
    play_in(tmp_path / "simulated", small(*SHORT))
    assert model_of(tmp_path / "known") == model_of(tmp_path / "simulated")
    assert ledger_of(tmp_path / "known") == ledger_of(tmp_path / "simulated")
    assert ledger_of(tmp_path / "known")["noise_seed"].startswith("known: ")
    assert not (tmp_path / "known" / "seed.secret").exists()


def test_a_deployment_resumes_with_its_own_seed(tmp_path, scenario):
    run = tmp_path / "run"
    run_app(scenario, run)
    model, ledger, cohorts = model_of(run), ledger_of(run), [line["scheduled"] for line in rounds_of(run)]
    sorted((run / "checkpoint").iterdir())[1].unlink()  # as if it had stopped after round 3
    with pytest.raises(FederationError):
        run_app(scenario, run, resume=True)
    assert "ends at round 3, but round 4 was released" in (run / "log.txt").read_text()
    change_ledger(run, lambda content: content.update(releases=content["releases"][:3]))
    run_app(scenario, run, resume=True)
    assert ledger_of(run)["releases"][:3] == ledger["releases"][:3]
    assert [line["scheduled"] for line in rounds_of(run)] == cohorts
    assert model_of(run) != model  # other noise


def test_every_round_of_a_deployment_is_checkpointed(tmp_path):
    kept = "federation={checkpoint_every: 1000, keep_secrets: true}"
    often = write_small(tmp_path, "rounds=3", "known_seed=false", kept)
    run_app(often, tmp_path / "run")
    names = [file.stem for file in sorted((tmp_path / "run" / "checkpoint").iterdir())]
    assert names == ["round-00000002", "round-00000003"]


def test_a_run_is_resumed_only_with_its_own_seed(tmp_path, scenario):
    real, known = tmp_path / "real", tmp_path / "known"
    run_app(scenario, real)
    with pytest.raises(RunFolderError, match="has a secret seed; expected: without known-seed=true"):
        run_app(scenario, real, resume=True, **KNOWN)
    run_app(scenario, known, **KNOWN)
    with pytest.raises(RunFolderError, match="has a known seed; expected: with known-seed=true"):
        run_app(scenario, known, resume=True)
    with pytest.raises(RunFolderError, match="not an empty folder; expected: a new one with out=, or resume=true"):
        run_app(scenario, real)
    for file in (real / "checkpoint").iterdir():
        file.unlink()
    change_ledger(real, lambda content: content.update(stopped_because="interrupted"))  # one that has ended needs none
    for content in ("12345", "seven", "", None):
        (real / "seed.secret").unlink() if content is None else (real / "seed.secret").write_text(content)
        with pytest.raises((FederationError, RunFolderError)) as caught:
            run_app(scenario, real, resume=True)
        expected = r"the run failed; the reason is in .*log\.txt" if content == "12345" else "seed"
        assert re.search(expected, str(caught.value))
        assert "\n" not in str(caught.value)
    assert "seed.secret: not the seed of this run; expected: as the run left it" in (real / "log.txt").read_text()


def test_why_a_run_stopped_is_told_in_the_run_folder_alone(tmp_path, capfd):
    scenario = write_small(tmp_path, "known_seed=false", "federation={quorum: 1}")
    run = tmp_path / "run"
    with pytest.raises(FederationError) as caught:
        app(
            FaultyGrid(SerialGrid(CLIENT_APP, "cpu"), Faults(failing=0.5)),
            Context(1, 1, {}, RecordDict(), {"scenario": str(scenario), "out": str(run)}),
        )
    assert "reported" not in str(caught.value) + "".join(capfd.readouterr())
    assert "clients reported, below federation.quorum" in (run / "log.txt").read_text()
    assert caught.value.__suppress_context__


def test_a_full_disk_is_told_where_there_is_room(tmp_path, monkeypatch):
    """The log of the run is on that disk: it got `the run failed`, and no reason."""

    def play(*_: object, **__: object) -> None:
        raise UnwritableError("ledger.json: No space left on device")

    monkeypatch.setattr("fedamp.server.app.play", play)
    with pytest.raises(UnwritableError, match=r"^ledger\.json: No space left on device$"):
        run_app(write_small(tmp_path, "known_seed=false"), tmp_path / "run")


def test_how_many_units_failed_in_a_round_is_told_in_the_run_folder_alone(tmp_path):
    """A warning shows in Flower's log: it told the size of a cohort, and the node, of a round in which all failed."""
    arrays = {"x": np.full((20, 3), np.nan), "y": np.arange(20) % 2, "client": np.arange(20)}
    np.savez(tmp_path / "train.npz", **arrays)
    data = f"data={{name: npz, path: {tmp_path}, classes: 2, partition: {{scheme: natural}}}}"
    scenario = write_small(tmp_path, "known_seed=false", "rounds=2", "check_in={scheme: balanced, k: 1}", data)
    run = tmp_path / "run"
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(FederationError, match="the reason is in"):
            run_app(scenario, run)
    assert not [each for each in shown if "failed" in str(each.message)]
    line = r"round \d: each of \d+ clients failed \(node \d: (.*)\): the release is noise"
    told = re.findall(line, (run / "log.txt").read_text())
    assert set(told) == {"a unit's records cannot be trained on; the node's log says more"}


def test_nothing_is_made_for_a_wrong_scenario_or_faults_with_a_secret_seed(tmp_path, scenario):
    run = tmp_path / "run"
    faulty = write_small(tmp_path, "known_seed=false", "faults={failing: 0.2}")
    with pytest.raises(DeploymentError, match="known-seed=true"):
        run_app(faulty, run)
    faulty.write_text(faulty.read_text().replace("failing: 0.2", "failing: 2"))
    with pytest.raises(InputError):
        run_app(faulty, run, **KNOWN)
    assert not run.exists()
    run_app(write_small(tmp_path, "known_seed=false", "faults={failing: 0.2}"), run, **KNOWN)


def test_the_first_round_waits_for_the_nodes(monkeypatch):
    monkeypatch.setattr("fedamp.base.devices.load_share", lambda: 0.0)
    counts = [0, 1, 3]
    scenario, hasty = small("federation={nodes: 3}"), small("federation={nodes: 3, round_deadline: 0.1}")
    wait_for_nodes(Mock(get_node_ids=lambda: range(counts.pop(0))), scenario)
    assert counts == []
    wait_for_nodes(Mock(get_node_ids=lambda: range(2)), hasty)  # goes on without
    with pytest.raises(FederationError, match=r"no node was connected within federation\.round_deadline 0\.1 s"):
        wait_for_nodes(Mock(get_node_ids=lambda: range(0)), hasty)
    passed = [0.0]  # on a busy machine a node takes longer to start than a round may last
    monkeypatch.setattr("fedamp.base.devices.load_share", lambda: 4.2)
    monkeypatch.setattr("fedamp.server.app.monotonic", lambda: passed[0])
    monkeypatch.setattr("fedamp.server.app.sleep", lambda seconds: passed.append(passed.pop() + seconds))
    late = small("federation={nodes: 3, round_deadline: 60}")
    wait_for_nodes(Mock(get_node_ids=lambda: range(3 if passed[0] > 200 else 2)), late)
    assert 200 < passed[0] < 60 * 4


def test_what_is_said_of_missing_nodes_says_where_the_machine_is_busy(monkeypatch, caplog):
    monkeypatch.setattr("fedamp.base.devices.load_share", lambda: 0.0)
    monkeypatch.setattr("fedamp.server.app.sleep", lambda _: None)
    hasty = small("federation={nodes: 3, round_deadline: 0.1}")
    for busy in ("", "; this machine is busy"):
        monkeypatch.setattr("fedamp.base.devices.busy_words", lambda busy=busy: busy)
        caplog.clear()
        wait_for_nodes(Mock(get_node_ids=lambda: range(2)), hasty)
        assert caplog.messages == [f"2 of federation.nodes 3 are connected; the others count as zero{busy}"]
        with pytest.raises(FederationError, match=rf"round_deadline 0\.1 s{busy}$"):
            wait_for_nodes(Mock(get_node_ids=lambda: range(0)), hasty)


class Messages(SerialGrid):
    """Keeps what is sent to the node."""

    def __init__(self) -> None:
        super().__init__(CLIENT_APP, "cpu")
        self.sent = []

    def send_and_receive(self, messages, *, timeout=None):
        sent = list(messages)
        self.sent += sent
        return super().send_and_receive(sent, timeout=timeout)


def test_a_node_learns_only_what_its_clients_must_do_in_this_round(tmp_path):
    grid = Messages()
    chosen = small("seed=4242", "rounds=3", "submodels={scheme: disjoint, count: 3}", "model={name: mlp}")
    play_in(tmp_path / "run", chosen, grid=grid)
    plan = prepare(chosen).plan
    train = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert len(train) == 3
    for round_, message in enumerate(train, start=1):
        assert set(message.content) == {"arrays", "order"}
        order = order_in(message)
        assert (order.round, order.config, order.exchange, order.frozen) == (round_, {}, {}, ())
        assert sorted(order.ids) == plan.attendance.cohort_of(round_).tolist()
        told = json.loads(order.task)
        # Neither the check-in, nor the noise, nor the run's seed.
        assert not {"check_in", "schedule", "rounds", "noise_multiplier", "seed", "privacy"} & set(told)
        assert chosen.seed not in told.values()
