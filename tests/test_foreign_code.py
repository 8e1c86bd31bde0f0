"""Who reads, shows, prices or checks a scenario of others runs none of their code; nor who reads their runs."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import fedamp
from fedamp.errors import InputError, ModelError
from fedamp.extensions.pages.board import AboutRelease
from fedamp.federation import reader
from fedamp.models.networks import build

MARK = "RAN"
CODE = """
from pathlib import Path
from torch import nn
from fedamp.federation.losses import CrossEntropy

Path({mark!r}).touch()

class Loss(CrossEntropy):
    pass

class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.output = nn.Linear(input_shape[0], num_classes)

    def forward(self, inputs):
        return self.output(inputs)
"""
SCENARIO = """
name: theirs
data: {name: npz, path: people, classes: 2, partition: {scheme: natural}}
model: {name: "theirs:Net"}
rounds: 2
check_in: {scheme: balanced, k: 1}
client: {loss: "theirs:Loss"}
privacy: {clip: 1, noise_multiplier: 1, precision: 0.05}
engine: {kind: serial}
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder with a scenario, records, two runs, and the module that the scenario names, which leaves a mark."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "people").mkdir()
    (folder / "theirs.yaml").write_text(SCENARIO)
    (folder / "theirs.py").write_text(CODE.format(mark=str(folder / MARK)))
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(24, 3)).astype(np.float32), "y": np.arange(24) % 2, "client": np.arange(24) // 2}
    np.savez(folder / "people" / "train.npz", **arrays)
    for run in ("a", "b"):
        fedamp.run(folder / "theirs.yaml", out=folder / run, anyway=True, known_seed=False)
    assert ran(folder)  # else the mark says nothing
    return folder


def ran(folder: Path) -> bool:
    """Whether the module has been imported since the last question; it would be again."""
    for name in [name for name in sys.modules if "theirs" in name.split(".") or name.startswith("_fedamp_own_")]:
        del sys.modules[name]
    sys.path_importer_cache.clear()
    found = (folder / MARK).exists()
    (folder / MARK).unlink(missing_ok=True)
    return found


HOSTS = "federation.hosts={a: 0-5, b: 6-11}"
COMMANDS = (
    "scenarios show S",
    "scenarios list",
    "scenarios schema",
    "explain client.loss",
    "privacy S",
    "privacy S --groups",
    f"privacy S --set {HOSTS}",
    "calibrate S --epsilon 2",
    "check S",
    "check S --private",
    f"check S --set {HOSTS}",
    "population new P --epsilon 9 --delta 1e-5 --data S",
    "total A B",
    "verify A",
    "verify A/ledger.json",
    "compare A B --out C",
    "report A B --out C.html",
    "release A --out R",
    "release A --out R2 --about about.yaml",
    "verify R",
    "verify R.zip",
    "population verify P A",
    "check A/scenario.yaml",
    "scenarios show A/scenario.yaml",
    "tune S --grid client.learning_rate=0.1,0.2",  # nothing judges its trials
    "sweep S --set client.learning_rate=0.1,0.2",
)


def test_no_command_that_reads_runs_the_code_of_others(theirs, fedamp, tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(theirs / "a", "A")
    shutil.copytree(theirs / "b", "B")
    Path("about.yaml").write_text("".join(f"{key}: not known\n" for key in AboutRelease.model_fields))
    for command in COMMANDS:
        words = [
            str(theirs / "theirs.yaml") if word == "S" else word for word in command.replace(", ", ",\0").split(" ")
        ]
        words = [word.replace("\0", " ") for word in " ".join(words).replace(": ", ":\0").split(" ")]
        with subtests.test(command):
            answer = fedamp(*(word.replace("\0", " ") for word in words))
            assert "failed:" not in answer.err
            assert not ran(theirs)


def test_no_function_that_reads_runs_the_code_of_others(theirs, tmp_path):
    scenario = fedamp.load(theirs / "theirs.yaml")
    str(fedamp.privacy(scenario))
    fedamp.privacy(scenario, **{"federation.hosts": {"a": "0-5", "b": "6-11"}})
    scenario._repr_html_()
    with pytest.raises(InputError, match=r"client\.loss theirs:Loss is code"):
        scenario.plot_partition()
    run = fedamp.open(theirs / "a")
    assert str(run)
    assert run._repr_html_()
    assert run.verify()
    fedamp.compare([theirs / "a", theirs / "b"]).csv()
    run.report(tmp_path / "page.html")
    assert not ran(theirs)
    run.model()  # which says that it does
    assert ran(theirs)


def test_a_check_runs_it_where_it_is_asked_to(theirs, fedamp):
    said = fedamp("check", theirs / "theirs.yaml")
    assert "theirs:Net, theirs:Loss was not tried" in said.out
    assert "client.loss theirs:Loss is code" in fedamp("scenarios", "show", theirs / "theirs.yaml").err
    assert "client.loss theirs:Loss is code" in fedamp("check", theirs / "theirs.yaml", "--private").err
    assert not ran(theirs)
    fedamp("check", theirs / "theirs.yaml", "--import", "--private")
    assert ran(theirs)


@pytest.mark.parametrize(
    "options",
    [{"attn_implementation": "theirs/kernel"}, {"lora": {"megatron_config": {"a": 1}, "megatron_core": "theirs"}}],
)
def test_a_model_of_a_library_names_no_code(options):
    pytest.importorskip("transformers")
    asked = {"name": "transformers:GPT2LMHeadModel", "vocabulary": 9, "options": options}
    model = reader.load("digits", changes={"model": asked}).model
    with pytest.raises(ModelError, match="may name code, which is not run; expected: it is left out"):
        build(model, (4,), 9)
