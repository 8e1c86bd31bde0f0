"""Code of other people that changes what it is given, what it was built from, or the process that imports it."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedamp
from fedamp.client.task import StackSize
from fedamp.client.worker import TrainingNode
from fedamp.errors import InputError, ModelError
from fedamp.federation.losses import CrossEntropy, Functions
from fedamp.federation.training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import build
from fedamp.server.evaluate import evaluate
from tests.client.federation import Records, order_of, task_of, trained

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


class Net(torch.nn.Module):
    """Honest; those below change what they are given, but only with more records than are tried out."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.output = torch.nn.Linear(input_shape[0], num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(inputs - 5)


class ChangesInputs(Net):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.output(inputs.sub_(5)) if len(inputs) > 2 else super().forward(inputs)


class ChangesWeights(Net):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(inputs)
        if len(inputs) > 2:
            self.output.weight.data.zero_()
        return outputs


class ChangesOutputs(CrossEntropy):
    def each(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = super().each(outputs, labels)
        if len(labels) > 2:
            outputs.data.zero_()
        return losses


@pytest.mark.parametrize("units", [1, 8], ids=["alone", "together"])
def test_what_a_try_out_misses_changes_no_further_step_and_no_other_unit(units: int, subtests) -> None:
    generator, here = np.random.default_rng(3), "tests.models.test_inspection:"
    sizes = np.array([3, 7, 5])
    inputs, labels = generator.normal(size=(3, 7, 5)).astype(np.float32), generator.integers(0, 3, (3, 7))

    def sums(model: str, loss: str = "cross-entropy") -> dict[str, np.ndarray]:
        client = LocalTraining(steps=3, learning_rate=0.5, loss=loss)
        task = task_of(model=Model(name=here + model), client=client, stack=StackSize(units=units))
        node = TrainingNode(task, Records(inputs.copy(), labels.copy(), sizes))
        start = {"output.weight": np.eye(3, 5, dtype=np.float32), "output.bias": np.zeros(3, np.float32)}
        found, report = trained(node, start, order_of([0, 1, 2], task, clips=(10.0,)))
        assert report.failed == 0
        assert (start["output.weight"] == np.eye(3, 5)).all()
        return found

    honest = sums("Net")
    for model in (("ChangesInputs",), ("ChangesWeights",), ("Net", f"{here}ChangesOutputs")):
        with subtests.test(model):
            for name, value in sums(*model).items():
                np.testing.assert_allclose(value, honest[name], rtol=0, atol=1e-5)  # of numbers of size 1, in float32


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
