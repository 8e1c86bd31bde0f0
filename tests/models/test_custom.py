"""A person's own module: the example of the documentation, what is refused, and modules beside their scenarios."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedamp
from fedamp.errors import InputError, ModelError
from fedamp.models.custom import import_own
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters, pinned
from fedamp.models.pieces import Piece, Split
from fedamp.models.units import Units
from tests.federations import small
from tests.models.splitting import refused, split
from tests.models.test_inspection import MODEL, RIGHT, Declares

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture
def documented(beside):
    (snippet,) = re.findall(r"```python\n(# my_model.*?)```", DOCUMENT.read_text(), re.DOTALL)
    beside("my_model", snippet)
    return Model(name="my_model:TwoLayers", options={"width": 12})


def test_the_documented_module_is_built_split_and_masked(documented):
    parameters = initial_parameters(documented, (5,), 3, seed=1)
    assert {name: value.shape for name, value in parameters.items()} == {
        "encode.weight": (12, 5),
        "encode.bias": (12,),
        "decide.weight": (3, 12),
        "decide.bias": (3,),
    }
    cut = split(documented, (5,), 3, 4)
    assert cut.shared == {"decide.bias"}
    assert [cut.piece(j).module.width for j in range(4)] == [3, 3, 3, 3]
    assert Masks(build(documented, (5,), 3)).nodes == 12


def test_without_smaller_the_full_network_is_trained_under_a_mask(documented):
    parameters = {name: torch.from_numpy(value) for name, value in initial_parameters(documented, (5,), 3, 1).items()}
    whole = build(documented, (5,), 3)
    extracted = Split(whole, 4, seed=2)
    without = build(documented, (5,), 3)
    without.smaller = None
    masked = Split(without, 4, seed=2)
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    for j in range(4):
        small, full = extracted.piece(j).module, masked.piece(j).module
        small.load_state_dict(extracted.piece(j).extract(parameters))
        full.load_state_dict(masked.piece(j).extract(parameters))
        torch.testing.assert_close(full(inputs), small(inputs))  # float32, zeros added
        # whatever a masked client sends, only the coordinates of its submodel can change
        ones = {name: torch.ones_like(value) for name, value in parameters.items()}
        found = {name: torch.zeros_like(value) for name, value in parameters.items()}
        expected = {name: torch.zeros_like(value) for name, value in parameters.items()}
        masked.piece(j).embed_add(found, ones)
        extracted.piece(j).embed_add(expected, extracted.piece(j).extract(ones))
        for name in parameters:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)


OWN = """
import random

import numpy as np
import torch
from torch import nn

def linear(input_shape, num_classes, width=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(width, num_classes))

def not_a_module(input_shape, num_classes):
    return 3

def wrong_width(input_shape, num_classes):
    return nn.Linear(input_shape[0], 7)

def other_generator(input_shape, num_classes):
    module = nn.Linear(input_shape[0], num_classes)
    with torch.no_grad():
        module.bias.copy_(torch.from_numpy(np.random.default_rng().normal(size=num_classes)))
    return module

class Holding(nn.Module):
    # linear, with something beside its parameters, which the forward pass may use
    def __init__(self, input_shape, num_classes, use=lambda self, inputs: inputs, **held):
        super().__init__()
        self.linear, self.use = nn.Linear(input_shape[0], num_classes), use
        for name, value in held.items():
            self.register_buffer(name, value)

    def forward(self, inputs):
        return self.linear(self.use(self, inputs))

def scaled(input_shape, num_classes, scale=1.0):
    return Holding(input_shape, num_classes, lambda self, x: self.scale * x, scale=torch.tensor(scale))

def plain_tensor(input_shape, num_classes, scale=1.0):
    module = Holding(input_shape, num_classes, lambda self, x: self.scale * x)
    module.scale = torch.tensor(scale)
    return module

def fresh_scale(input_shape, num_classes):
    return scaled(input_shape, num_classes, np.random.default_rng().normal())

def running(self, inputs):
    self.mean.mul_(0.9).add_(0.1 * inputs.mean())
    return inputs - self.mean

def remembers(input_shape, num_classes):
    return Holding(input_shape, num_classes, running, mean=torch.zeros(()))

def recall(self, inputs):
    self.last, before = inputs, getattr(self, "last", 0)
    return inputs + before

def recalls(input_shape, num_classes):
    return Holding(input_shape, num_classes, recall)

def with_dropout(input_shape, num_classes):
    return Holding(input_shape, num_classes, lambda self, x: nn.functional.dropout(x, 0.5, training=True))

def drop_path(input_shape, num_classes):
    return Holding(input_shape, num_classes, lambda self, x: x * (random.random() < 0.5))

def numpy_noise(input_shape, num_classes):
    return Holding(input_shape, num_classes, lambda self, x: x + np.random.normal())

def own_noise(input_shape, num_classes):
    return Holding(input_shape, num_classes, lambda self, x: x + np.random.default_rng().normal())
"""


UNUSABLE = [
    ("own_models:linear", {}, r"own_models:linear cannot take inputs of shape \[2, 4\]"),
    ("own_models:linear", {"depth": 3}, r"cannot be built with .*options=\{'depth': 3\} \(TypeError"),
    ("own_models:not_a_module", {}, r"must return a torch\.nn\.Module, got int"),
    ("own_models:wrong_width", {}, r"must answer logits of shape \[batch, 3\], got \[2, 7\]"),
    ("own_models:other_generator", {}, "parameter bias starts from another value each time"),
    ("own_models:remembers", {}, "mean is no parameter, and changes when the model is called"),
    ("own_models:recalls", {}, "answers the same inputs in two ways, and no seed decides"),
    ("own_models:own_noise", {}, "answers the same inputs in two ways, and no seed decides"),
    ("own_models:nothing", {}, r"'own_models:nothing' cannot be imported \(AttributeError"),
    ("not_there:thing", {}, r"'not_there:thing' cannot be imported \(ModuleNotFoundError: No module named 'not_there'"),
    ("broken:thing", {}, r"'broken:thing' cannot be imported \(SyntaxError"),
]


def test_what_cannot_be_used_is_refused_in_one_line(beside, subtests):
    beside("own_models", OWN)
    beside("broken", "def thing(:\n")
    for name, options, message in UNUSABLE:
        with subtests.test(name), refused(message):
            initial_parameters(Model(name=name, options=options), (4,), 3, seed=0)


@pytest.mark.parametrize("name", ["scaled", "plain_tensor"])
def test_another_frozen_weight_is_refused(beside, name):
    beside("own_models", OWN)
    asked = pinned(Model(name=f"own_models:{name}"), (4,), 3)
    again = pinned(Model(name=f"own_models:{name}", options={"scale": 1.0}), (4,), 3)
    assert again.frozen_sha256 == asked.frozen_sha256
    build(asked, (4,), 3)
    initial_parameters(asked, (4,), 3, seed=5)
    other = asked.model_copy(update={"options": {"scale": 1.0 + 2**-23}})  # the next float32
    with refused(rf"frozen weights .* expected: {asked.frozen_sha256}"):
        build(other, (4,), 3)


def test_frozen_weights_that_are_others_each_time_are_refused(beside):
    beside("own_models", OWN)
    with pytest.raises(ModelError, match="frozen weights"):
        build(pinned(Model(name="own_models:fresh_scale"), (4,), 3), (4,), 3)


def test_a_built_in_model_has_nothing_to_pin():
    assert pinned(Model(name="mlp"), (4,), 3).frozen_sha256 is None
    with pytest.raises(ModelError, match=r"model\.frozen_sha256 is for a custom model; mlp takes none"):
        build(Model(name="mlp", frozen_sha256="0" * 64), (4,), 3)


@pytest.mark.parametrize(
    ("name", "random"),
    [("linear", False), ("scaled", False), ("with_dropout", True), ("drop_path", True), ("numpy_noise", True)],
)
def test_what_draws_random_numbers_is_known(beside, name, random):
    beside("own_models", OWN)
    config = Model(name=f"own_models:{name}", options={"width": 4} if name == "linear" else {})
    assert Piece.whole(config, (4,), 3).random == random


@pytest.mark.parametrize(
    ("smaller", "message"),
    [
        (lambda kept: Declares([]), r"smaller\(\): parameter 'first.bias' must have shape \(3,\), got \(6,\)"),
        (lambda kept: kept["second"], r"Declares\.smaller\(\) failed \(KeyError: 'second'\)"),
    ],
)
def test_a_smaller_network_of_wrong_shapes_or_none_is_refused_in_one_line(smaller, message):
    module = Declares([Units("first", 6, RIGHT, "activation")])
    module.smaller = smaller
    with refused(message):
        _ = Split(module, 2).piece(0).module


def test_values_of_an_own_module_follow_the_seed(documented):
    np.random.seed(0)
    first = initial_parameters(documented, (5,), 3, seed=1)
    again, other = initial_parameters(documented, (5,), 3, seed=1), initial_parameters(documented, (5,), 3, seed=2)
    np.testing.assert_array_equal(first["encode.weight"], again["encode.weight"])
    assert (first["encode.weight"] != other["encode.weight"]).any()


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
        asked = small(f"model={{name: 'model:Net', folder: {tmp_path / folder}}}", "rounds=2", "check_in={scheme: all}")
        runs[width] = fedamp.run(asked, out=tmp_path / f"run-{folder}")
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


def test_code_of_others_leaves_the_process_as_it_was(beside):
    beside(
        "settled",
        "import numpy as np\nimport torch\nfrom torch import nn\n"
        "torch.set_default_dtype(torch.float64)\ntorch.set_grad_enabled(False)\nnp.seterr(all='raise')\n\n"
        "def make(input_shape, num_classes):\n"
        "    torch.set_default_device('meta')\n    return nn.Linear(*input_shape, num_classes, device='cpu')\n",
    )

    def state():
        types = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
        return types, np.geterr()

    before = state()
    module = build(Model(name="settled:make"), (3,), 2)
    assert state() == before
    assert isinstance(module, torch.nn.Linear)


def test_a_checkout_beside_a_model_is_no_second_fedamp(tmp_path):
    """An editable installation is in no folder of installed packages."""
    (tmp_path / "fedamp").mkdir()
    (tmp_path / "fedamp" / "__init__.py").write_text("raise RuntimeError('a second copy')")
    (tmp_path / "mine.py").write_text("from fedamp.models.units import Units")
    assert import_own("mine:Units", str(tmp_path)) is Units
