"""Trackers: their numbers, a resumed run, and that their failure is not the run's."""

import json
import re
import socket
import time
import urllib.request

import pytest

import fedamp
from fedamp.errors import InputError, ScenarioError
from fedamp.extensions.trackers.observers import METRICS, Mlflow, Prometheus, TensorBoard
from fedamp.runs.ledger import fingerprint
from fedamp.server.observers import Observer
from tests.documentation import ROOT
from tests.federations import small

PUBLIC = {"accuracy", "loss", "epsilon"}


def asked(*trackers: object, **changes: object):
    changes = {"rounds": 4, "federation.checkpoint_every": 1} | changes
    return fedamp.load(small(), trackers=list(trackers), **changes)


def in_two_parts(scenario, folder):
    """A run that is stopped after two of its four rounds, and resumed."""
    for record in fedamp.play(scenario, out=folder):
        if record.round == 2:
            break
    return fedamp.run(scenario, out=folder, resume=True)


def scalars(folder):
    """All values in event files, by name and round."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder)).Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


def expected(run, name):
    key = {"epsilon": "epsilon_upper"}.get(name, name)
    return [(record.round, pytest.approx(getattr(record, key), rel=1e-6)) for record in run.rounds]  # float32


def test_tensorboard_gets_each_released_round_once_also_of_a_resumed_run(tmp_path):
    run = in_two_parts(asked("tensorboard"), tmp_path / "run")
    found = scalars(tmp_path / "run" / "tensorboard")
    assert found == {name: expected(run, name) for name in PUBLIC}


def test_missing_and_infinite_numbers_are_dropped(tmp_path):
    changes = {"privacy.noise_multiplier": 0, "federation.evaluate_every": 2, "federation.validation_share": 0.5}
    fedamp.run(asked("tensorboard", **changes), out=tmp_path / "run")
    found = scalars(tmp_path / "run" / "tensorboard")
    assert found.keys() == {"accuracy", "loss", "validation_score"}  # epsilon is infinite
    assert [step for step, _ in found["validation_score"]] == [2, 4]


def test_a_tracker_is_also_a_callback_and_gets_unprotected_numbers_on_request_only(tmp_path):
    run = fedamp.run(asked(), out=tmp_path / "run", callbacks=[TensorBoard(unprotected=True)])
    found = scalars(tmp_path / "run" / "tensorboard")
    losses = [record.unprotected["training_loss"] for record in run.rounds]
    assert [value for _, value in found["unprotected/training_loss"]] == pytest.approx(losses, rel=1e-6)
    assert found["accuracy"] == expected(run, "accuracy")


class InTheWay(Observer):
    def prepared(self, prepared) -> None:
        (self.folder / "tensorboard").touch()  # where its folder would be

    def opened(self, folder) -> None:
        self.folder = folder


def test_a_tracker_that_fails_is_left_alone(tmp_path):
    run = fedamp.run(asked("tensorboard"), out=tmp_path / "run", callbacks=[InTheWay()])
    assert run.summary.stopped_because == "finished"
    assert "tracker tensorboard failed (" in (log := run.files.log.read_text())
    assert log.count("the run goes on without it") == 1


class Scraper(Observer):
    """Asks for the metrics after each round, as Prometheus would, with a reader that is not its library's."""

    def __init__(self, address: str) -> None:
        self.address, self.told = f"http://{address}/metrics", []

    def round_done(self, record) -> None:
        self.told.append((record, metrics(self.address)))


def metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(address, timeout=60) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+) (\S+)$", text, re.MULTILINE)}


@pytest.fixture
def address(monkeypatch):
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        found = f"127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("FEDAMP_METRICS", found)
    return found


def test_prometheus_reads_what_the_ledger_says_and_nothing_private(tmp_path, address):
    hosts = {"privacy.epsilon": 40.0, "federation.hosts": {"one": "0-29", "two": "30-59"}}
    scraper, began = Scraper(address), time.time()
    scenario = asked("prometheus", **hosts)
    for record in fedamp.play(scenario, out=tmp_path / "run"):
        if record.round == 2:
            break
    run = fedamp.run(scenario, out=tmp_path / "run", resume=True, callbacks=[scraper])
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert [record.round for record, _ in scraper.told] == [3, 4]
    for record, told in scraper.told:
        spent, done = ledger["releases"][record.round - 1]["epsilon_upper"], run.rounds[: record.round]
        assert told["fedamp_epsilon_spent"] == spent
        assert told["fedamp_epsilon_left"] == pytest.approx(40 - spent, rel=1e-12)
        assert (told["fedamp_rounds_total"], told["fedamp_rounds_planned"]) == (record.round, 4)
        assert told["fedamp_nodes"] == told["fedamp_nodes_answering"] == 2
        hidden = {record.scheduled, record.reported, sum(each.scheduled for each in done)}
        assert not hidden & set(told.values()), "whoever knows the other check-ins would know the last one"
        assert told["fedamp_seconds_total"] == pytest.approx(sum(each.seconds for each in done))
        assert (told["fedamp_loss"], told["fedamp_score"]) == (record.loss, record.accuracy)
        assert began < told["fedamp_told_timestamp_seconds"] < time.time()
        assert told.keys() == METRICS.keys()
        private = {name: value for name, value in record.unprotected.items() if value}  # a zero stands elsewhere, too
        assert private
        assert not set(private.values()) & set(told.values())
    with pytest.raises(OSError, match="refused"):
        metrics(scraper.address)


def test_a_node_that_is_given_up_does_not_answer_for_prometheus(tmp_path, address):
    def gone(record):
        return record.model_copy(update={"nodes_given_up": (7,) * (record.round == 2), "nodes_back": ()})

    class Altered(Prometheus):
        def round_done(self, record) -> None:
            super().round_done(gone(record))

    scraper = Scraper(address)
    fedamp.run(asked(**{"federation.nodes": 3}), out=tmp_path / "run", callbacks=[Altered(), scraper])
    assert [told["fedamp_nodes_answering"] for _, told in scraper.told] == [3, 2, 2, 2]


def test_the_page_explains_each_metric():
    listed = re.findall(r"^- `(fedamp_\w+)`: (.*)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert dict(listed) == METRICS


@pytest.mark.parametrize("place", ["0.0.0.0:9464", "10.0.0.1:9464", "localhost:9464", "127.0.0.1", "[::]:1", "::1:0"])
def test_metrics_have_loopback_addresses_only(place, tmp_path, monkeypatch):
    pytest.importorskip("prometheus_client")
    monkeypatch.setenv("FEDAMP_METRICS", place)
    with pytest.raises(InputError) as caught:
        fedamp.run(asked("prometheus"), out=tmp_path / "run")
    assert str(caught.value) == f"FEDAMP_METRICS {place}: expected: a loopback address and a port, as 127.0.0.1:9464"
    assert not (tmp_path / "run").exists()


def test_a_port_that_is_taken_ends_no_run(tmp_path, address):
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        run = fedamp.run(asked("prometheus"), out=tmp_path / "run")
    assert run.summary.stopped_because == "finished"
    assert "tracker prometheus failed (" in run.files.log.read_text()


def test_trackers_are_names_and_change_nothing_of_a_run():
    named = asked("tensorboard", "mlflow", "wandb", "prometheus")
    assert named.trackers == ("tensorboard", "mlflow", "wandb", "prometheus")
    assert fedamp.load(named.model_dump(mode="json")) == named
    assert fingerprint(named) == fingerprint(asked())


def test_sections_of_older_runs_are_names_and_their_secrets_are_not_kept():
    old = [{"name": "tensorboard", "folder": None, "unprotected": False}]
    assert asked(*old).trackers == ("tensorboard",)
    old += [{"name": "mlflow", "uri": "https://me:s3cret@host/x", "experiment": "mine", "unprotected": True}]
    with pytest.warns(UserWarning, match="trackers: experiment, unprotected, uri was removed") as told:
        read = asked(*old)
    assert read.trackers == ("tensorboard", "mlflow")
    assert "s3cret" not in read.to_yaml() + "".join(str(each.message) for each in told)


@pytest.mark.parametrize(
    ("trackers", "words"),
    [
        (["tensorbord"], "expected: "),
        (["wandb", {"name": "wandb"}], "duplicate tracker"),
        ([{"folder": "x"}], "expected: "),
    ],
)
def test_wrong_trackers_are_one_line(trackers, words):
    with pytest.raises(ScenarioError) as caught:
        asked(*trackers)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_package_is_an_error_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr("fedamp.extensions.trackers.observers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"wandb is not installed; expected: pip install 'fedamp\[wandb\]'"):
        fedamp.run(asked("wandb"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow's imports
def test_mlflow_gets_a_resumed_run_as_a_second_run_from_its_first_round(tmp_path, monkeypatch):
    client = pytest.importorskip("mlflow").MlflowClient(uri := f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run = in_two_parts(asked("mlflow"), tmp_path / "run")
    second, first = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert (first.info.status, second.info.status) == ("KILLED", "FINISHED")
    assert second.info.run_name == "run"
    assert second.data.metrics.keys() == PUBLIC
    assert second.data.params["privacy.noise_multiplier"] == "1.0"
    for name in PUBLIC:
        found = [(each.step, each.value) for each in client.get_metric_history(second.info.run_id, name)]
        assert found == expected(run, name)
    beside = fedamp.run(asked(), out=tmp_path / "b", callbacks=[Mlflow(unprotected=True)])
    assert beside.accuracy == run.accuracy
    assert any("unprotected/training_loss" in each.data.metrics for each in client.search_runs(["1"]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of W&B's imports
def test_wandb_gets_each_round_of_a_resumed_run_as_a_second_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    from wandb.proto import wandb_internal_pb2

    run = in_two_parts(asked("wandb"), tmp_path / "run")
    files = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    first, second = sorted(files, key=lambda path: path.stat().st_mtime)
    assert first.name != second.name  # another id
    told = []
    for data in leveldb_records(second.read_bytes()[7:]):  # behind W&B's own header
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        told += [items] if items else []
    assert [items["_step"] for items in told] == [1, 2, 3, 4]
    assert [items["accuracy"] for items in told] == [record.accuracy for record in run.rounds]
    assert all({key for key in items if not key.startswith("_")} == PUBLIC for items in told)


def leveldb_records(content: bytes):
    """The records of a log in LevelDB's format: blocks of 32 kB (W&B's header counted), each piece with a header."""
    at, kept = 0, b""
    while at + 7 <= len(content):
        left = 32768 - (at + 7) % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        kept += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield kept
            kept = b""
