"""What a program sets for its whole process changes no number of fedamp's, and is as it was afterwards."""

import io
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch

import fedamp
from tests.test_given import OBJECTS, SETTINGS, Net

SMALL = SETTINGS | {"rounds": 2} | OBJECTS


@contextmanager
def set_to(change, before, value):
    """A setting of the process."""
    change(value)
    yield
    change(before)


MATMUL = torch.set_float32_matmul_precision
STATES = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "errors of NumPy": lambda: np.errstate(all="raise"),
    "float64": lambda: set_to(torch.set_default_dtype, torch.float32, torch.float64),
    "another device": lambda: set_to(torch.set_default_device, None, "meta"),
    "another device around": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "coarse products": lambda: set_to(MATMUL, "highest", "medium"),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "threads": lambda: set_to(torch.set_num_threads, torch.get_num_threads(), 3),
}


def state():
    precision = torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()
    types = torch.get_default_dtype(), torch.get_default_device(), torch.is_autocast_enabled("cpu")
    return np.geterr(), precision, modes, types, torch.get_num_threads(), Path.cwd()


def answers(folder):
    """What a run, played round by round and at once, its reader and the accountant say."""
    played = [record.loss for record in fedamp.play(out=folder / "played", model=Net, **SMALL)]
    run = fedamp.run(out=folder / "run", anyway=True, **SMALL | {"model": {"name": "mlp", "hidden": [8]}})
    predicted = fedamp.open(folder / "played").predict(OBJECTS["test"][0]).tolist()
    checks = [(check.name, check.verdict) for check in run.verify()]
    cost = fedamp.privacy(**SMALL | {"model": Net, "data": OBJECTS["data"]})["epsilon"]
    return played, run.rounds[-1].loss, [value.tolist() for value in run.model().parameters()], predicted, checks, cost


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return answers(tmp_path_factory.mktemp("usual"))


@pytest.mark.filterwarnings("ignore::UserWarning")  # that the small run is hopeless, and of torch about anomalies
@pytest.mark.parametrize("name", STATES)
def test_no_number_follows_from_the_state_of_the_process(usual, tmp_path, name):
    with STATES[name]():
        before = state()
        assert answers(tmp_path) == usual
        assert state() == before


def test_between_rounds_and_in_callbacks_a_program_may_move(tmp_path, monkeypatch):
    """Half a run stayed where it was, charged and without a summary."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def moves(record):
        monkeypatch.chdir(tmp_path / "elsewhere")

    for record in fedamp.play(out="played", model=Net, **SMALL):
        assert torch.get_default_dtype() == torch.float32, record
        moves(record)
        assert Path.cwd().name == "elsewhere"
    monkeypatch.chdir(tmp_path)
    run = fedamp.run(out="run", anyway=True, callbacks=moves, model=Net, **SMALL)
    assert Path.cwd() == tmp_path
    for folder in (run.folder, tmp_path / "played"):
        assert fedamp.open(folder).rounds[-1].round == 2


def contents(files):
    return [Path(file).read_bytes() for file in files]


LOOKS = {
    "LaTeX": {"text.usetex": True},
    "sizes": {"figure.autolayout": True, "figure.dpi": 1000, "lines.linewidth": 40, "font.size": 3},
    "sketched": {"path.sketch": (1, 100, 2), "svg.fonttype": "none", "axes.facecolor": "black", "legend.loc": "center"},
}


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_pictures_are_drawn_as_matplotlib_is_delivered(tmp_path, look):
    folders = [
        fedamp.run(out=tmp_path / name, anyway=True, model=Net, **SMALL | {"seed": seed}).folder
        for name, seed in (("one", 1), ("two", 2))
    ]
    usual = contents(fedamp.compare(folders).save_pictures(tmp_path / "usual"))
    with mpl.rc_context(LOOKS[look]):
        before = dict(mpl.rcParams)
        compared = fedamp.compare(folders)
        compared.plot().savefig(io.BytesIO())
        assert contents(compared.save_pictures(tmp_path / "again")) == usual
        assert compared.save_pictures(tmp_path, ("pdf",), paper=True)
        assert "data:image/svg+xml" in compared._repr_html_()
        fedamp.load("digits").plot_partition(clients=3).savefig(io.BytesIO())
        assert dict(mpl.rcParams) == before
