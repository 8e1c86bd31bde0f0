"""A person's own module: the example of the documentation, the rules, and declarations that do not hold."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedamp.errors import ModelError
from fedamp.models.inspection import Cost, check, cost, kept_per_record, prove_silence
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters, pinned
from fedamp.models.pieces import Piece, Split
from fedamp.models.units import Blocks, Units
from tests.models.splitting import refused, split

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Writes modules where a scenario's own folder would be."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


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


def with_buffer(name, value):
    module = nn.Linear(2, 2)
    module.register_buffer(name, value)
    return nn.Sequential(module)


BREACHES = [
    (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "1 is BatchNorm1d"),
    (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), "1 is BatchNorm2d"),
    (nn.Sequential(nn.SyncBatchNorm(2)), "0 is SyncBatchNorm"),
    (nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True)), r"0 \(InstanceNorm1d\) keeps running statistics"),
    (with_buffer("running_scale", torch.zeros(2)), r"buffer 0\.running_scale is a running statistic"),
    (nn.Sequential(nn.Linear(2, 2).double()), r"parameter 0\.weight is float64; only float32"),
    (nn.Sequential(nn.Linear(2, 2).to(torch.bfloat16)), "is bfloat16"),
    (nn.Sequential(nn.LazyLinear(2)), r"parameter 0\.weight has no shape yet"),
    (nn.Sequential(nn.ReLU()), "has no parameters"),
]


def test_breaches_of_the_rules_are_refused_by_name(subtests):
    for module, message in BREACHES:
        with subtests.test(message), refused(message):
            check(module)


KEEPS_THE_RULES = [
    nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)),
    nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)),
    with_buffer("positions", torch.arange(3)),
]


def test_what_keeps_the_rules_is_accepted(subtests):
    for module in KEEPS_THE_RULES:
        with subtests.test(str(module)):
            check(module)


class Declares(nn.Module):
    """Two linear layers with a declaration to try."""

    def __init__(self, declaration, activation=None):
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)
        self.activation = activation or nn.ReLU()
        self.declaration = declaration

    def forward(self, inputs):
        return self.second(self.activation(self.first(inputs)))

    def units_to_split(self):
        return self.declaration


RIGHT = {"first.weight": 0, "first.bias": 0, "second.weight": 1}


DO_NOT_FIT = [
    ([Units("first", 6, {**RIGHT, "third.weight": 0}, "activation")], r"names parameter 'third\.weight', not there"),
    ([Units("first", 6, RIGHT, "relu")], "names submodule 'relu', not there"),
    (
        [Units("first", 4, RIGHT, "activation")],
        r"dimension 0 of 'first\.weight' \(shape \(6, 3\)\) is no multiple of 4",
    ),
    ([Units("first", 6, {"first.bias": 1}, "activation")], r"dimension 1 of 'first\.bias'"),
    ([Units("first", 6, RIGHT, "activation")] * 2, "'first' is declared twice"),
    ([Units("first", 6, RIGHT, "activation"), Units("b", 6, RIGHT, "activation")], "two layers own dimension 0"),
    ([Blocks("first", ("first", "middle"))], "names submodule 'middle', not there"),
]


def test_declarations_that_do_not_fit_are_refused(subtests):
    for declaration, message in DO_NOT_FIT:
        with subtests.test(message), pytest.raises(ModelError, match=message):
            Split(Declares(declaration), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # claims the next layer's bias, which every node touches
        ("Declares([Units('first', 2, {**RIGHT, 'second.bias': 0}, 'activation')])", r"nodes own 'second\.bias'"),
        # masks before a sigmoid, which is one half at zero
        ("Declares([Units('first', 6, RIGHT, 'first')], nn.Sigmoid())", r"nodes own 'second\.weight'"),
        # a mean and a variance over nodes: those left out still move the others
        ("Declares([Units('first', 6, RIGHT, 'activation')], nn.LayerNorm(6))", r"nodes own 'first\.weight'"),
        (
            "Declares([Units('first', 6, RIGHT, 'second')])",
            r"the output of 'second' \(shape \[4, 2\]\) does not hold 6 nodes",
        ),
    ],
)
def test_declarations_that_do_not_hold_are_refused(beside, make, message):
    beside(
        "declaring",
        "from torch import nn\nfrom fedamp.models.units import Units\n"
        f"from {__name__} import Declares, RIGHT\n\ndef make(input_shape, num_classes):\n    return {make}\n",
    )
    with pytest.raises(ModelError, match=message):
        build(Model(name="declaring:make"), (3,), 2)


class ReZero(nn.Module):
    """A residual branch behind a gate that starts at zero and lets no gradient through (Bachlechner et al. 2021)."""

    def __init__(self, along, gate=0.0):
        super().__init__()
        self.first, self.second, self.decide = nn.Linear(3, 6), nn.Linear(6, 3), nn.Linear(3, 2)
        self.activation, self.gate = nn.ReLU(), nn.Parameter(torch.tensor(gate))
        self.along = along

    def forward(self, inputs):  # [batch, 6, 3]: places and features could be taken for each other
        branch = self.second(self.activation(self.first(inputs)))
        return self.decide((inputs + self.gate * branch).mean(1))

    def units_to_split(self):
        return [Units("first", 6, RIGHT, "activation", self.along)]


class LoRA(nn.Module):
    """A low-rank update (Hu et al. 2022) whose second factor starts at zero; the nodes lie before it."""

    def __init__(self, output):
        super().__init__()
        self.first, self.second, self.up = nn.Linear(3, 6), nn.Linear(6, 2), nn.Linear(2, 2, bias=False)
        self.activation = nn.Sigmoid()
        nn.init.zeros_(self.up.weight)
        self.output = output

    def forward(self, inputs):
        return self.up(self.second(self.activation(self.first(inputs)))) + inputs.sum(1, keepdim=True)

    def units_to_split(self):
        return [Units("first", 6, RIGHT, self.output)]  # before the sigmoid, a node that is left out says one half


@pytest.mark.parametrize(("wrong", "right"), [(ReZero(along=1), ReZero(along=2)), (LoRA("first"), LoRA("activation"))])
def test_a_layer_that_starts_at_zero_hides_no_false_declaration(wrong, right):
    shape = (6, 3) if isinstance(wrong, ReZero) else (3,)
    torch.manual_seed(0)  # for about one seed in twenty, random values show nothing; `build` always uses the same
    prove_silence(right, shape)
    with pytest.raises(ModelError, match=r"leaving a node out does not silence it"):
        prove_silence(wrong, shape)


class OneAfterTheOther(nn.Module):
    """A wide layer and then a single unit, which hides everything before it whenever it is dropped."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 1), nn.Linear(1, 1), nn.Linear(1, 2)
        self.squash, self.activation = nn.Sigmoid(), nn.Tanh()

    def forward(self, inputs):
        return self.third(self.activation(self.second(self.squash(self.first(inputs)))))

    def units_to_split(self):
        return [
            Units("first", 1, {"first.weight": 0, "first.bias": 0, "second.weight": 1}, "first"),  # before the sigmoid
            Units("second", 1, {"second.weight": 0, "second.bias": 0, "third.weight": 1}, "activation"),
        ]


def test_a_layer_that_is_silent_itself_hides_no_false_declaration():
    for seed in range(8):  # whatever nodes are dropped together
        torch.manual_seed(seed)
        with pytest.raises(ModelError, match=r"nodes own 'second\.weight'"):
            prove_silence(OneAfterTheOther(), (3,))


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


def test_cost_counts_what_pencil_and_paper_count():
    # 5 x 12 and 12 x 3 weights: two operations each forward, two for the weights' gradient, and two for the gradient of
    # the second layer's input (nobody needs the first one's)
    module = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
    expected = 2 * (60 + 36) + 2 * (60 + 36) + 2 * 36
    assert cost(module, (5,)) == Cost(parameters=60 + 12 + 36 + 3, flops_per_record=expected)
    assert module[0].weight.grad is None


def test_values_of_an_own_module_follow_the_seed(documented):
    np.random.seed(0)
    first = initial_parameters(documented, (5,), 3, seed=1)
    again, other = initial_parameters(documented, (5,), 3, seed=1), initial_parameters(documented, (5,), 3, seed=2)
    np.testing.assert_array_equal(first["encode.weight"], again["encode.weight"])
    assert (first["encode.weight"] != other["encode.weight"]).any()


def test_what_is_kept_for_the_backward_pass_is_counted_once_and_without_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    assert kept_per_record(module, (5,)) == 5 + 7
