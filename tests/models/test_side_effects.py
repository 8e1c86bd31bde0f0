"""Code of other people that changes what it is given, what it was built from, or the process that imports it."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedamp
from fedamp.errors import InputError, ModelError
from fedamp.federation.losses import CrossEntropy, Functions
from fedamp.models.networks import build
from fedamp.models.section import Model
from fedamp.server.evaluate import evaluate

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.flat, self.output = nn.Flatten(), nn.Linear(64, num_classes)

    def forward(self, inputs):
        {line}
        return self.output(self.flat(inputs))
"""


def scenario(folder: Path, **changes: object) -> dict[str, object]:
    return {
        "name": "own",
        "data": {"name": "digits", "clients": 20},
        "model": {"name": "model:Net", "folder": str(folder)},
        "rounds": 2,
        "check_in": {"scheme": "all"},
        "client": {"steps": 1, "learning_rate": 0.1},
        "privacy": {"unit": "client", "clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-5},
        "engine": {"kind": "serial"},
        **changes,
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("inputs.sub_(5)", "changes its inputs in place"),
        ("inputs = nn.functional.leaky_relu(inputs, inplace=True)", "changes its inputs in place"),
        ("self.output.weight.data.clamp_(-0.01, 0.01)", "changes its parameter output.weight"),
        ("self.output.weight.data.clamp_(-5, 5)", "changes its parameter output.weight"),
        ("self.output.bias.data.mul_(0.5)", "changes its parameter output.bias"),
    ],
)
def test_a_model_that_changes_what_it_is_given_is_refused(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "model.py").write_text(MODEL.format(line=line))
    with pytest.raises(ModelError, match=words):
        build(Model(name="model:Net", folder=str(tmp_path)), (64,), 10)


def test_an_embedding_that_shortens_its_rows_is_refused(tmp_path: Path) -> None:
    code = MODEL.format(line="pass").replace("nn.Flatten()", "nn.Embedding(5, 3, max_norm=100.0)")
    (tmp_path / "model.py").write_text(code)
    with pytest.raises(ModelError, match="max_norm"):
        build(Model(name="model:Net", folder=str(tmp_path)), (64,), 10)


class Doubling(CrossEntropy):
    name = "doubling"

    def each(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = super().each(outputs, labels.clone())
        labels.mul_(2)
        return found


def test_a_loss_that_changes_its_labels_is_refused() -> None:
    with pytest.raises(ModelError, match="changes its labels in place"):
        Doubling().check_outputs(torch.zeros(2, 10), torch.tensor([1, 2]), "mlp")


def test_a_metric_gets_what_no_other_metric_has_changed() -> None:
    def spoils(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        outputs.zero_(), labels.zero_()
        return 0.5

    def right(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        return float((outputs.argmax(1) == labels).float().mean())

    loss = Functions("cross-entropy", None, {"spoils": spoils, "right": right}).loss("given")
    outputs, labels = torch.eye(10), torch.arange(10)
    assert loss.metrics(loss.tally(outputs, labels)) == {"spoils": 0.5, "right": 1.0}


class Late(torch.nn.Module):
    """Changes what it is given, but not before it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.output = torch.nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.output.weight.data.zero_()
        return self.output(inputs.sub_(5))


def test_what_is_changed_later_is_neither_the_test_set_nor_the_released_model() -> None:
    module, inputs, labels = Late(), np.ones((6, 4), np.float32), np.array([0, 1, 2] * 2)
    released = {name: value.detach().numpy() + 1 for name, value in module.named_parameters()}
    before = {name: value.copy() for name, value in released.items()}
    evaluate(module, released, inputs, labels, loss=Doubling())
    assert (inputs == 1).all()
    assert labels.tolist() == [0, 1, 2] * 2
    assert all(np.array_equal(released[name], value) for name, value in before.items())


def test_two_folders_have_a_module_and_a_helper_of_the_same_name(tmp_path: Path) -> None:
    runs = {}
    for folder, width in (("a", 5), ("b", 6)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(f"WIDTH = {width}\n")
        code = MODEL.replace("nn.Flatten()", "nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH))")
        code = "from helper import WIDTH\n" + code.replace(
            "nn.Linear(64, num_classes)", "nn.Linear(WIDTH, num_classes)"
        )
        (tmp_path / folder / "model.py").write_text(code.format(line="import helper; assert helper.WIDTH == WIDTH"))
        asked = scenario(tmp_path / folder)
        runs[width] = fedamp.run(fedamp.load(asked), out=tmp_path / f"run-{folder}")
    for width, run in runs.items():
        assert run.model().output.in_features == width
        assert fedamp.open(run.folder).model()(torch.zeros(1, 64)).shape == (1, 10)
    assert {"model", "helper"}.isdisjoint(sys.modules)


def test_a_module_that_reads_the_command_line_or_moves_away_disturbs_nothing(tmp_path: Path) -> None:
    lines = f"import argparse, os\nargparse.ArgumentParser().parse_args()\nos.chdir({str(tmp_path.parent)!r})\n"
    (tmp_path / "model.py").write_text(lines + MODEL.format(line="pass"))
    place, arguments = os.getcwd(), list(sys.argv)
    sys.argv.append("--unknown")
    try:
        build(Model(name="model:Net", folder=str(tmp_path)), (64,), 10)
        assert (os.getcwd(), sys.argv) == (place, [*arguments, "--unknown"])
    finally:
        sys.argv[:] = arguments
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    with pytest.raises(InputError, match=r"ends:Net' cannot be imported .*SystemExit 3"):
        build(Model(name="ends:Net", folder=str(tmp_path)), (64,), 10)


def test_importing_fedamp_leaves_the_environment_alone() -> None:
    import subprocess

    code = "import os; before = dict(os.environ); import fedamp.api, fedamp.server.loop; assert os.environ == before"
    free = {key: value for key, value in os.environ.items() if not key.startswith(("FLWR_", "RAY_"))}
    subprocess.run([sys.executable, "-c", code], check=True, env=free)
