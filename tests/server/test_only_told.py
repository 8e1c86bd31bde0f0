"""What only tells of a run fails alone: the run ends with its summary, whatever fails in it."""

import errno
import json
import logging

import pytest

import fedamp
import fedamp.server.evaluate
from fedamp.engines.flower import chatter_to
from fedamp.errors import FederationError
from fedamp.runs.folder import RunFolder
from fedamp.server.observers import Observer
from tests.federations import small, write_small

SHORT = ("rounds=3",)
FULL = OSError(errno.ENOSPC, "No space left on device")

TOLD = {
    "the pictures": "fedamp.report.pictures.plot_run",
    "a picture's file": "fedamp.report.style.save_all",
    "the table": "fedamp.report.tables.run_table",
    "the display, at first": "fedamp.report.progress.RunProgress.started",
    "the display": "fedamp.report.progress.RunProgress.round_done",
    "the display, at last": "fedamp.report.progress.RunProgress.closed",
    "a tracker, at first": "fedamp.extensions.trackers.observers.TensorBoard.begin",
    "a tracker": "fedamp.extensions.trackers.observers.TensorBoard.tell",
    "a tracker, at last": "fedamp.extensions.trackers.observers.TensorBoard.end",
    "what a client computes": "fedamp.server.setup.cost",
    "the engine's end": "fedamp.engines.simulation.SerialGrid.__exit__",
}


def failing(*_: object, **__: object) -> None:
    raise FULL


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.filterwarnings("always")  # they are the lines on the terminal
@pytest.mark.parametrize("told", TOLD)
def test_it_fails_alone_with_a_line(told, fedamp, tmp_path, monkeypatch):
    monkeypatch.setattr(TOLD[told], failing, raising=False)
    scenario = write_small(tmp_path, *SHORT, "trackers=[tensorboard]")
    answer = fedamp("run", scenario, "--out", tmp_path / "run")
    assert answer.status == 0
    assert summary_of(tmp_path / "run")["stopped_because"] == "finished"
    assert summary_of(tmp_path / "run")["rounds_completed"] == 3
    for told_in in (answer.err, (tmp_path / "run" / "log.txt").read_text()):
        lines = [line for line in told_in.splitlines() if "No space left on device" in line]
        assert len(lines) == 1
        assert lines[0].endswith("the run goes on without it")


NO_PRODUCT = """
import torch
from torch import nn


class Scales(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_classes))

    def forward(self, inputs):
        return inputs.flatten(1)[:, : len(self.weight)] * self.weight
"""


def test_a_model_without_a_matrix_product_has_a_summary(fedamp, tmp_path, monkeypatch):
    """Nothing of it is counted as work, and it is all of the work."""
    (tmp_path / "no_product.py").write_text(NO_PRODUCT)
    monkeypatch.chdir(tmp_path)
    scenario = write_small(tmp_path, *SHORT, "model.name=no_product:Scales")
    answer = fedamp("run", scenario, "--out", "run")
    assert (answer.status, answer.err) == (0, "")
    cost = summary_of(tmp_path / "run")["cost"]
    assert (cost["flops_per_record"], cost["flops_share"], cost["parameters_share"]) == (0, 1, 1)


@pytest.mark.filterwarnings("ignore")
def test_a_log_that_cannot_be_written_ends_nothing(tmp_path, capsys):
    with chatter_to("/dev/full", "fedamp"):
        logging.getLogger("fedamp.server").warning("a line")
    assert capsys.readouterr().err == ""


def test_a_metric_that_is_not_finite_is_left_out(tmp_path, monkeypatch):
    evaluation = fedamp.server.evaluate.ModelEvaluation(
        1.0, {"accuracy": float("nan"), "share": 0.5, "other": float("inf")}
    )
    monkeypatch.setattr("fedamp.server.evaluate.evaluate", lambda *_, **__: evaluation)
    run = fedamp.run(small(*SHORT), out=tmp_path / "run")
    assert (run.summary.final.accuracy, run.summary.final.metrics) == (None, {"share": 0.5})


def test_a_summary_that_cannot_be_written_is_an_error_and_resuming_writes_it(fedamp, tmp_path, monkeypatch):
    scenario = write_small(tmp_path, *SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_summary", failing)
        answer = fedamp("run", scenario, "--out", tmp_path / "run")
        assert answer.status == 1
        assert "No space left on device" in answer.err
    rounds = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    assert fedamp("run", scenario, "--out", tmp_path / "run", "--resume").status == 0
    assert summary_of(tmp_path / "run")["stopped_because"] == "finished"
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == rounds  # nothing was released again


# --- a person's own callbacks ----------------------------------------------------------------------------------------


class Stops(Exception):
    pass


def stops_at(round_):
    def callback(record):
        if record.round == round_:
            raise Stops("enough")

    return callback


def test_a_callback_that_raises_stops_the_run_after_the_round(tmp_path):
    whole = fedamp.run(small(*SHORT), out=tmp_path / "whole")
    with pytest.raises(FederationError, match="Stops: enough") as caught:
        fedamp.run(small(*SHORT), out=tmp_path / "run", callbacks=[stops_at(2)])
    assert isinstance(caught.value.__cause__, Stops)
    stopped = fedamp.open(tmp_path / "run")
    assert (stopped.summary.stopped_because, len(stopped.rounds)) == ("interrupted", 2)
    with pytest.raises(FederationError, match="Stops: enough"):  # after the last round
        fedamp.run(small(*SHORT), out=tmp_path / "run", resume=True, callbacks=[stops_at(3)])
    finished = fedamp.open(tmp_path / "run")
    assert finished.summary.stopped_because == "finished"
    assert finished.files.model.read_bytes() == whole.files.model.read_bytes()


def test_what_a_callback_raises_when_the_run_is_over_ends_nothing(tmp_path):
    class Closing(Observer):
        def closed(self):
            raise Stops("too late")

    run = fedamp.run(small(*SHORT), out=tmp_path / "run", callbacks=[Closing()])
    assert run.summary.stopped_because == "finished"
    assert "Closing.closed failed (Stops: too late)" in run.files.log.read_text()
