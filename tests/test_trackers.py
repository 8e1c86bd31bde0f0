"""Trackers: their numbers, a resumed run, and that their failure is not the run's."""

import json

import pytest

import fedamp
from fedamp.errors import InputError, ScenarioError
from fedamp.runs.ledger import fingerprint
from fedamp.server.observers import Observer
from fedamp.server.trackers import Mlflow, TensorBoard
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


def test_trackers_are_names_and_change_nothing_of_a_run():
    named = asked("tensorboard", "mlflow", "wandb")
    assert named.trackers == ("tensorboard", "mlflow", "wandb")
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
        (["wandb", {"name": "wandb"}], "a tracker stands twice"),
        ([{"folder": "x"}], "expected: "),
    ],
)
def test_wrong_trackers_are_one_line(trackers, words):
    with pytest.raises(ScenarioError) as caught:
        asked(*trackers)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_package_is_an_error_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setattr("fedamp.server.trackers.find_spec", lambda name: None)
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
