"""Model, records, loss and metrics that are objects of Python: by digest, in every process, checked like all others."""

import json
import os
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fedamp
from fedamp.base import given
from fedamp.data.npz import store
from fedamp.errors import InputError, RunFolderError, ScenarioError
from tests.tools import but_patience

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 6)).astype(np.float32)
Y = X[:, :3].argmax(1)
OBJECTS = {"data": (X[:240], Y[:240], np.repeat(np.arange(40), 6)), "test": (X[240:], Y[240:])}
SETTINGS = {
    "rounds": 4,
    "check_in": {"scheme": "balanced", "k": 2},
    "client": {"steps": 2, "learning_rate": 0.5},
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0, "precision": 0.05},
    "known_seed": True,
    "engine": {"kind": "serial"},
}

NOTEBOOK = """
import json
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedamp


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, inputs):
        return self.layers(inputs * SCALE if type(self).__name__ in {"Net", "Other", "Third"} else inputs)


def loss(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.1)


SCALE, x = 2.0, np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
y = x[:, :3].argmax(1)
settings = json.loads(sys.argv[1]) | {
    "model": Net,
    "data": (x[:240], y[:240], np.repeat(np.arange(40), 6)),
    "test": (x[240:], y[240:]),
    "loss": loss,
    "metrics": {"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).double().mean()},
}
if __name__ == "__main__":
"""
TWO_ENGINES = """
    assert isinstance(fedamp.run(out="here", **settings).model(), Net)
    fedamp.run(out="ray", **settings | {"engine": {"kind": "ray", "workers": 2}})
"""
AGAIN = """
    fedamp.run(out="here", resume=True, **settings)
    SCALE = 3.0
    try:
        fedamp.run(out="here", resume=True, **settings)
    except fedamp.errors.RunFolderError as error:
        print(error)
"""
SWEEP = """
    print(len(fedamp.sweep(None, {"seed": [1, 2]}, "sweep", jobs=2, **settings).finished))
"""


def process(folder: Path, *code: str) -> str:
    """What a script prints in a fresh process, with another order of sets each time."""
    file = folder / "notebook.py"
    file.write_text(NOTEBOOK + "".join(code))
    environment = {key: value for key, value in os.environ.items() if key not in ("FEDAMP_GIVEN", "PYTHONHASHSEED")}
    environment["PYTHONPATH"] = str(Path(fedamp.__file__).parents[1])
    command = [sys.executable, file.name, json.dumps(SETTINGS)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, but_patience(done.stderr)) == (0, "")
    return done.stdout


class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, inputs):
        return self.layers(inputs)


def played(out: Path, **settings):
    return fedamp.run(out=out, **{"model": Net} | OBJECTS | SETTINGS | settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return played(tmp_path_factory.mktemp("given") / "run")


@pytest.mark.slow
def test_a_script_without_files_gives_the_same_on_ray_and_here_and_can_be_resumed(tmp_path, fedamp_command):
    """Its classes are in ``__main__``. Another process gives the same objects: the digests are the same."""
    pytest.importorskip("ray")
    assert process(tmp_path, TWO_ENGINES) == ""
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("here", "ray")]
    assert models[0] == models[1]
    assert "engine ray: " in (tmp_path / "ray" / "log.txt").read_text()
    refusal = process(tmp_path, "\n" * 5, AGAIN)
    assert refusal.endswith("it differs in scenario_sha256 (changed: model)\n")
    answers = [fedamp_command(name, tmp_path / "ray") for name in ("verify", "report")]
    assert [answer.status for answer in answers] == [0, 0]


@pytest.fixture(name="fedamp_command")
def command(request, monkeypatch, tmp_path):
    """The entry point, in a process that was given nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDAMP_GIVEN", raising=False)
    return request.getfixturevalue("fedamp")


def test_a_run_is_what_it_would_be_from_files(whole, tmp_path):
    """The same records as npz, the model by import path: the same model to the bit."""
    (tmp_path / "files").mkdir()
    np.savez(tmp_path / "files" / "train.npz", **dict(zip(("x", "y", "client"), OBJECTS["data"], strict=True)))
    np.savez(tmp_path / "files" / "test.npz", **dict(zip("xy", OBJECTS["test"], strict=True)))
    data = {"name": "npz", "path": str(tmp_path / "files"), "partition": {"scheme": "natural"}, "test_is_public": True}
    files = fedamp.run(
        SETTINGS | {"name": "files", "data": data, "model": {"name": "tests.test_given:Net"}}, tmp_path / "a"
    )
    assert files.files.model.read_bytes() == whole.files.model.read_bytes()
    assert [record.accuracy for record in files.rounds] == [record.accuracy for record in whole.rounds]
    assert type(whole.model()).__name__ == "Net"


def test_the_folder_of_a_run_says_digests_and_holds_no_object(whole):
    scenario = whole.scenario
    assert scenario.data.name == "given"
    assert scenario.model.name.startswith("given:Net-")
    assert scenario.model.folder is None  # so that it can be resumed anywhere
    assert {file.suffix for file in whole.folder.rglob("*") if file.is_file()}.isdisjoint({".pickle", ".npy"})
    assert all(check.verdict != "fail" for check in whole.verify())


def test_without_the_objects_a_run_can_be_read_but_not_continued(whole, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAMP_GIVEN", str(tmp_path))
    monkeypatch.setattr(given, "_objects", {})  # as in another process
    read = fedamp.open(whole.folder)
    assert read.report(tmp_path / "report.html").is_file()
    for attempt in (
        read.model,
        lambda: fedamp.run(read.scenario, whole.folder, resume=True),
        read.scenario.plot_partition,
    ):
        with pytest.raises(InputError, match=r"not given here; expected: .*the same") as caught:
            attempt()
        assert len(str(caught.value).splitlines()) == 1


def test_models_may_be_classes_functions_or_modules_that_were_trained_before(tmp_path):
    torch.manual_seed(5)
    trained = Net(4)
    start = {name: value.detach().numpy().copy() for name, value in trained.named_parameters()}
    still = {
        "client": {"steps": 1, "learning_rate": 1e-30},
        "rounds": 2,
        "privacy": {"clip": 1e-9, "noise_multiplier": 0},
        "anyway": True,
    }
    run = played(tmp_path / "a", model=trained, **still)
    for name, value in run.model().named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), start[name], atol=1e-7)  # less than a float32's spacing
    with torch.no_grad():
        trained.layers[0].weight.zero_()  # afterwards: what was given is a copy
    assert run.model().layers[0].weight.any()
    shaped = played(
        tmp_path / "b", model=lambda input_shape, num_classes: nn.Linear(*input_shape, num_classes), rounds=2
    )
    assert shaped.summary.parameters == 6 * 3 + 3


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDAMP_HOME", str(tmp_path_factory.mktemp("home")))
        yield Path(os.environ["FEDAMP_HOME"])


def test_nobody_else_can_test_a_guess_of_the_records_on_a_digest(home, monkeypatch, tmp_path):
    """A scenario may be released: the digest must not follow from the records alone."""
    first = store(OBJECTS["data"], OBJECTS["test"])
    assert store(OBJECTS["data"], OBJECTS["test"]) == first
    assert (home / "given.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path))
    assert store(OBJECTS["data"], OBJECTS["test"]) != first


def test_digests_tell_objects_apart_and_not_their_places():
    def made(width, text="\n\n"):
        names = {"nn": nn, "width": width, "__name__": "__main__"}
        exec(text + "def model():\n    return nn.Linear(6, width)", names)
        return given.keep(names["model"], "model")

    assert made(3) == made(3, "\n" * 9)
    assert made(3) != made(4)
    ones, twos = (given.keep(lambda outputs, labels, by=by: outputs * by, "loss") for by in (1.0, 2.0))
    assert ones != twos
    assert given.keep({"b", "a", "c"}, "set") == given.keep({"c", "b", "a"}, "set")


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)


class Centred(Net):
    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(0))


class BySoftmax(Net):
    def forward(self, inputs):
        return self.layers[2](torch.softmax(self.layers[:2](inputs), 0))


class Recurrent(nn.Module):
    """Takes the records of a batch for the places of a sequence."""

    def __init__(self):
        super().__init__()
        self.layer, self.output = nn.GRU(6, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.output(self.layer(inputs)[0])


class Counted(Net):
    def forward(self, inputs):
        return super().forward(inputs / len(inputs))


class Shuffled(Net):
    """Mixes records in training alone, at random."""

    def forward(self, inputs):
        return super().forward(inputs + inputs[torch.randperm(len(inputs))] if self.training else inputs)


class CentredWhenEvaluated(Net):
    def forward(self, inputs):
        return super().forward(inputs if self.training else inputs - inputs.mean(0))


class StartsAtZero(Centred):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.layers[2].weight)


class Checkpointed(Net):
    """Computes its activations again when its own parameters are back in place."""

    def forward(self, inputs):
        return self.layers[2](checkpoint(self.layers[:2], inputs, use_reentrant=False))


HELD = Net()
HELD.held = HELD.layers(torch.zeros(1, 6))  # no copy can be made of it
LOCK = threading.Lock()
MIXES = "mixes the records of a batch: "


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": Normed}, "statistics mix records unprotected; use GroupNorm"),
        ({"model": Counting}, "changes when the model is called"),
        *(
            ({"model": each}, rf"model given:{each.__name__}-\w+ {MIXES}its answer")
            for each in (Centred, BySoftmax, Recurrent, Counted, Shuffled, CentredWhenEvaluated, StartsAtZero)
        ),
        ({"model": Checkpointed}, "its activations are computed again for the gradient; expected: no checkpoints"),
        ({"model": HELD}, "model: cannot be handed to other processes"),
        ({"model": lambda: 3}, "must return a torch.nn.Module, got int"),
        ({"model": nn.Linear(6, 4)}, r"must answer logits of shape \[batch, 3\]"),
        ({"model": lambda held=LOCK: held}, "model: cannot be handed to other processes"),
        ({"data": {"name": "digits", "clients": 9}}, "test: given without data"),
        ({"data": (X, Y[:9])}, r"data: y is of type int64 and shape \[9\]"),
        ({"data": ([[None]], [0])}, "data: x is of type object"),
        ({"data": ([[1], [2, 3]], Y)}, "data: x: ValueError: "),
        ({"data": (X,)}, r"data: got tuple; expected: \(x, y, client\)"),
        ({"loss": functional.cross_entropy}, r"answers \[\] for 2 records; expected: one loss for each record, \[2\]"),
        (
            {"loss": lambda outputs, labels: outputs @ labels},
            r"client.loss: given:loss-\w+ fails for outputs \[2, 3\]",
        ),
        (
            {"loss": lambda outputs, labels: functional.cross_entropy(outputs, labels).expand(len(outputs))},
            rf"client.loss: given:loss-\w+ {MIXES}the loss of one",
        ),
        (
            {"loss": lambda o, y: functional.cross_entropy(o - o.mean(0), y, reduction="none")},
            rf"client.loss: given:loss-\w+ {MIXES}the loss of one",
        ),
        ({"metrics": {"rate": lambda outputs, labels: 1 // 0}}, "metrics: rate fails .ZeroDivisionError"),
        ({"loss": "cross-entropi"}, "did you mean"),
        ({"metrics": {"seconds": len}}, "metrics: 'seconds'; expected: functions by names"),
        ({"engine": {"address": "10.0.0.1:6379"}}, "Python objects cannot be sent to a cluster"),
    ],
)
def test_what_cannot_be_given_is_refused_in_one_line(settings, words, tmp_path):
    with np.errstate(all="ignore"), pytest.raises(InputError, match=words) as caught:
        played(tmp_path / "run", **settings)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


class Dropped(Net):
    """Random in training, and in evaluation too."""

    def forward(self, inputs):
        return super().forward(functional.dropout(functional.dropout(inputs, 0.2, self.training), 0.1, True))


class Experts(nn.Module):
    """Each record goes to one expert alone, and a number that starts at zero lets the inputs through."""

    def __init__(self):
        super().__init__()
        self.choice, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(0.0))
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, inputs):
        shares = self.choice(inputs).softmax(1)
        answers, chosen = torch.zeros(len(inputs), 3), shares.argmax(1)
        for number, expert in enumerate(self.experts):
            (places,) = (chosen == number).nonzero(as_tuple=True)
            if len(places):
                answer = expert(inputs[places]) * shares[places, number, None]
                answers = answers.index_put((places,), answer)
        return answers + self.scale * inputs[:, :3]


@pytest.mark.parametrize("model", [Dropped, Experts])
def test_models_that_treat_each_record_by_itself_are_neither_refused_nor_scolded(tmp_path, model):
    """One with a parameter that is a single number trained nobody."""
    settings = OBJECTS | SETTINGS | {"rounds": 2, "privacy": {"clip": 0.5, "noise_multiplier": 0}}
    run = fedamp.run(out=tmp_path / "run", model=model, **settings)
    assert "gradients" not in (tmp_path / "run" / "log.txt").read_text()
    assert run.summary.clients_failed == 0
    before, after = (dict(each.named_parameters()) for each in (model(), run.model()))
    assert before.keys() == after.keys()
    assert all(bool((value != 0).any()) for value in after.values()), "scale, too"


class Spare(Net):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(6, 500)


class Detached(Net):
    def forward(self, inputs):
        return self.layers[1:](self.layers[0](inputs).detach())


class Again(Net):
    """An older kind of checkpoint, on inputs that need no gradient."""

    def forward(self, inputs):
        return self.layers[1:](checkpoint(self.layers[0], inputs, use_reentrant=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("model", "names", "numbers"),
    [
        (Spare, "spare.weight, spare.bias", "3,500"),
        (Detached, "layers.0.weight, layers.0.bias", "56"),
        (Again, "layers.0.weight, layers.0.bias", "56"),
    ],
)
def test_parameters_without_a_gradient_are_told_by_name(tmp_path, model, names, numbers):
    played(tmp_path / "run", model=model, rounds=2, anyway=True)
    said = f"gradients: none reaches {names}: noise alone moves their {numbers} numbers; expected: "
    assert said in (tmp_path / "run" / "log.txt").read_text()


OF_CLIENTS = {"on": "clients", "every": 1, "noise_multiplier": 3.0, "metrics": ["loss", "score"]}


@pytest.mark.parametrize("evaluation", [None, OF_CLIENTS])
def test_a_loss_with_numbers_of_its_own_is_evaluated_as_it_trains(tmp_path, evaluation):
    """Class weights are float32, and evaluation was in float64: the first round was trained in vain."""
    weights = torch.tensor([1.0, 5.0, 2.0])
    settings = {"loss": lambda o, y: functional.cross_entropy(o, y, weight=weights, reduction="none"), "rounds": 2}
    if evaluation:
        settings |= {"evaluation": evaluation, "privacy": {"clip": 0.5, "noise_multiplier": 1.0, "epsilon": 20}}
    run = played(tmp_path / "run", **settings)
    logits, labels = run.predict(OBJECTS["test"][0]).astype(np.float64), OBJECTS["test"][1]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(60), labels]
    assert run.rounds[-1].loss == pytest.approx((losses * weights.numpy()[labels]).mean(), rel=1e-5)  # of float32
    assert run.summary.clients_failed == 0
    assert "RuntimeError" not in (tmp_path / "run" / "log.txt").read_text()


IDS = {
    "none": ["a", None],
    "text": ["a", ""],
    "nan": [1.0, float("nan")],
    "half": np.array([1.0, 0.5]),
    "rounded": np.array([1.0, 2.0**60]),
    "rounded float32": np.array([1, 2**24], np.float32),
    "rounded float16": np.array([1, -(2**11)], np.float16),
    "rounded tensor": torch.tensor([1, 2**24 + 1]).float(),
    "rounded pandas": pd.Series([1, 2**24], dtype="float32"),
    "rounded nullable": pd.Series([1, 2**24], dtype="Float32"),
    "rounded list": [np.float32(2**24), np.float32(1)],
    "floats of two types": [np.float16(2049), np.float32(1)],
    "half a decimal": [Decimal("1.5"), Decimal(2)],
    "no decimal": [Decimal(1), Decimal("NaN")],
    "infinite decimal": [Decimal(1), Decimal("-Infinity")],
    "NA": pd.array([1, None], dtype="Int64"),
    "pandas": pd.Series(["a", None]),
    "category": pd.Series(["a", None], dtype="category"),
    "NaT": np.array(["2026-01-01", "NaT"], "datetime64[D]"),
    "pd.NaT": [pd.Timestamp(2026, 1, 1), pd.NaT],
    "masked": np.ma.masked_array([1, 2], [False, True]),
    "list": [1, [2]],
}


@pytest.mark.parametrize("kind", IDS)
def test_records_of_nobody_are_refused(kind):
    """All of them became one client, ``None`` or ``nan``."""
    with pytest.raises(InputError, match="data: client") as caught:
        store((np.zeros((2, 3)), [0, 1], IDS[kind]))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("ids", "clients"),
    [
        ([2**70, 2**70 + 1, 2**70], 2),
        ([2**63, 2**63 + 1, -1], 3),
        ([7, "7", "007"], 2),
        ([np.int64(2**60), 2**60 + 1, 3], 3),
        (np.array([2**63, 2**63 + 1, 2**63 + 1], np.uint64), 2),
        (pd.array([2**60, 2**60 + 1, 1], dtype="Int64"), 3),
        (pd.Series(["a", "b", "a"], dtype="category"), 2),
        (np.ma.masked_array([1, 2, 2], [False] * 3), 2),
        ([1.0, 2.0, 1.0], 2),
        (np.array([2**24 - 1, 2**24 - 2, -1], np.float32), 3),
        (torch.tensor([2**11 - 1, 2**11 - 2, 1]).half(), 3),
        (pd.Series([Decimal(2**70), Decimal(2**70 + 1), Decimal("7.00")]), 3),
        ([7, Decimal("7.00"), Decimal(10**75)], 2),
    ],
)
def test_clients_are_as_exact_as_they_are_given(ids, clients):
    data = {"name": "given", "digest": store((np.zeros((3, 2)), [0, 1, 1], ids)), "classes": 2}
    section = fedamp.load(
        SETTINGS | {"name": "own", "data": data | {"partition": {"scheme": "natural"}}, "model": {"name": "logistic"}}
    ).data
    assert section.load(0, Path()).num_clients == clients


def test_a_masked_number_takes_its_own_unit_away_and_no_records_are_refused():
    x = np.ma.masked_array(np.ones((3, 2)), [[False, False], [True, False], [False, False]])
    y = np.ma.masked_array([0, 1, 1], [False, False, True])
    data = {"name": "given", "digest": store((x, y, [1, 2, 3])), "classes": 2, "partition": {"scheme": "natural"}}
    scenario = fedamp.load(SETTINGS | {"name": "own", "data": data, "model": {"name": "logistic"}})
    assert scenario.data.load(0, Path()).sizes(np.arange(3)).tolist() == [1, 0, 0]
    for empty in (([], [], []), (np.zeros((0, 3)), np.zeros(0, int))):
        with pytest.raises(InputError, match=r"data: x is of type .*; expected: at least one record"):
            store(empty)


def test_a_loss_and_metrics_of_functions(whole, tmp_path):
    def same(outputs, labels):
        return functional.cross_entropy(outputs, labels, reduction="none")

    def top2(outputs, labels):
        assert len(outputs) == len(labels) == len(OBJECTS["test"][1])
        return (outputs.topk(2).indices == labels[:, None]).any(1).double().mean()

    run = played(tmp_path / "a", loss=same, metrics={"top2": top2})
    assert run.score[0] == "top2"
    assert list(run.frame())[:2] == ["loss", "top2"]
    np.testing.assert_allclose(run.frame()["loss"], whole.frame()["loss"], rtol=1e-4)  # another kernel's rounding
    only = played(tmp_path / "b", metrics={"top2": top2})
    assert only.files.model.read_bytes() == whole.files.model.read_bytes()


def test_numbers_as_labels_are_trained_by_their_squared_error(tmp_path):
    data, test = ((x, x[:, :1] * 2, *client) for x, _, *client in (OBJECTS["data"], OBJECTS["test"]))
    run = played(tmp_path / "run", data=data, test=test, model=lambda: nn.Linear(6, 1), loss="mean-squared-error")
    assert run.score[0] == "r2"
    own = played(
        tmp_path / "own", data=data, test=test, model=lambda: nn.Linear(6, 1), loss=lambda o, y: (o - y).abs()[:, 0]
    )
    assert own.score[0] == "r2"


def test_arrays_are_written_once_and_mapped(tmp_path):
    scenarios = [fedamp.load(model=Net, **OBJECTS | SETTINGS, seed=seed) for seed in (1, 2)]
    (folder,) = {given.folder() / scenario.data.digest for scenario in scenarios}
    assert sorted(file.name for file in folder.iterdir()) == [
        f"{name}.npy" for name in ("test_x", "test_y", "train_client", "train_x", "train_y")
    ]
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    table = scenarios[0].data.open(Path()).train
    assert isinstance(table.inputs.base, np.memmap) or isinstance(table.inputs, np.memmap)
    turned = np.asfortranarray(OBJECTS["data"][0])
    assert (
        fedamp.load(model=Net, **OBJECTS | {"data": (turned, *OBJECTS["data"][1:])}, **SETTINGS).data
        == scenarios[0].data
    )


@pytest.mark.slow
def test_a_sweep_gives_the_objects_to_its_processes(tmp_path):
    assert process(tmp_path, SWEEP) == "2\n"


# --- stopping --------------------------------------------------------------------------------------------------------


def stopping(record):
    if record.round == 2:
        raise fedamp.StopTraining


@pytest.mark.parametrize("callback", [lambda record: record.round < 2, stopping])
def test_a_callback_stops_the_run_which_costs_all_rounds_and_can_be_resumed(callback, whole, tmp_path):
    seen = []
    run = played(tmp_path / "run", callbacks=[callback, seen.append])
    assert run.summary.stopped_because == "interrupted"
    assert [record.round for record in run.rounds] == [record.round for record in seen] == [1, 2]
    assert run.epsilon == pytest.approx(whole.epsilon)
    assert run.epsilon > run.released_rounds_epsilon
    assert "interrupted" in str(run)
    finished = played(tmp_path / "run", resume=True)
    assert finished.files.model.read_bytes() == whole.files.model.read_bytes()


def test_another_section_is_named_when_a_run_is_resumed(whole):
    with pytest.raises(RunFolderError, match=r"it differs in scenario_sha256 \(changed: data\)"):
        played(whole.folder, data=(-X[:240], *OBJECTS["data"][1:]), resume=True)


# --- looking ---------------------------------------------------------------------------------------------------------


def test_the_picture_of_a_partition_says_whether_it_is_private():
    public = fedamp.load("digits").plot_partition()
    private = fedamp.load(model=Net, **OBJECTS | SETTINGS).plot_partition(clients=7)
    words = [
        " ".join(text.get_text() for text in picture.findobj() if hasattr(text, "get_text"))
        for picture in (public, private)
    ]
    assert ["PRIVATE" in each for each in words] == [False, True]
    assert "the first 7 of 40" in words[1]
    counts = private.axes[0].images[0].get_array()
    assert counts.shape == (7, 3)
    assert (counts.sum(1) == 6).all()


def test_a_notebook_has_one_cell_that_changes_in_place(whole, monkeypatch, tmp_path):
    """A kernel's ``display`` as IPython documents it; IPython itself is no dependency."""
    from types import ModuleType, SimpleNamespace

    shown, updated = [], []

    def display(thing, display_id):
        shown.append(thing._repr_html_())
        return SimpleNamespace(update=lambda thing: updated.append(thing._repr_html_()))

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython, module.display = lambda: SimpleNamespace(kernel=1), display
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels do
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    before, threads = sys.stdout, set(threading.enumerate())
    played(tmp_path / "run")
    assert sys.stdout is before
    assert {each.name for each in threading.enumerate() if each not in threads and "_beat" in each.name} == set()
    assert len(shown) == 1
    assert "round 0/4 after 0 s  starting" in shown[0]
    assert len(updated) == 4
    assert "round 4/4" in updated[-1]
    assert f"accuracy {whole.accuracy:.1%}" in updated[-1]


def test_runs_are_compared_as_objects_and_as_folders(whole, tmp_path):
    other = played(tmp_path / "other", seed=3)
    compared = fedamp.compare([whole, str(other.folder)])
    assert list(compared.frame()["accuracy"]) == [whole.accuracy, other.accuracy]
    assert compared.plot().axes
    with pytest.raises(InputError, match="no picture nonsense; expected here: rounds"):
        compared.plot("nonsense")
    with pytest.raises(ScenarioError, match=r"data\.clients null breaks"):
        fedamp.load(model=Net, **OBJECTS | SETTINGS | {"data": OBJECTS["data"][:2]})


def test_what_a_killed_process_was_given_goes_when_the_next_one_is_given_something(tmp_path):
    code = "import sys; from fedamp.base import given; print(given.folder().name, flush=True); sys.stdin.read()"
    environment = {key: value for key, value in os.environ.items() if key != "FEDAMP_GIVEN"} | {"TMPDIR": str(tmp_path)}
    own = tmp_path / "fedamp-given-analysis"  # of a person
    own.mkdir()

    def begin() -> tuple[subprocess.Popen, str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes)
        return process, process.stdout.readline().strip()

    (killed, left), (living, kept) = begin(), begin()
    killed.kill()
    killed.communicate()
    assert {each.name for each in tmp_path.iterdir()} == {own.name, left, kept}
    following, made = begin()
    assert {each.name for each in tmp_path.iterdir()} == {own.name, kept, made}
    for process in (living, following):
        process.communicate()
    assert list(tmp_path.iterdir()) == [own]
