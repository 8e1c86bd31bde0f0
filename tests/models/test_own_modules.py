"""A person's own module: the example of the documentation, the rules, and declarations that do not hold."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedamp.errors import ModelError
from fedamp.models.cost import Cost, cost, kept_per_record
from fedamp.models.masks import Masks, prove_silence
from fedamp.models.registry import build, initial_parameters
from fedamp.models.rules import check
from fedamp.models.splits import Split, split
from fedamp.models.units import Blocks, Units
from fedamp.scenario import Model

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
    assert [cut.module(j).width for j in range(4)] == [3, 3, 3, 3]
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
        small, full = extracted.module(j), masked.module(j)
        small.load_state_dict(extracted.extract(parameters, j))
        full.load_state_dict(masked.extract(parameters, j))
        torch.testing.assert_close(full(inputs), small(inputs))  # float32, zeros added
        # whatever a masked client sends, only the coordinates of its submodel can change
        ones = {name: torch.ones_like(value) for name, value in parameters.items()}
        found = {name: torch.zeros_like(value) for name, value in parameters.items()}
        expected = {name: torch.zeros_like(value) for name, value in parameters.items()}
        masked.embed_add(found, ones, j)
        extracted.embed_add(expected, extracted.extract(ones, j), j)
        for name in parameters:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)


OWN = """
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
        module.bias.copy_(torch.from_numpy(np.random.normal(size=num_classes)))
    return module
"""


UNUSABLE = [
    ("own_models:linear", {}, r"own_models:linear cannot take inputs of shape \[2, 4\]"),
    ("own_models:linear", {"depth": 3}, r"cannot be built with .*options=\{'depth': 3\} \(TypeError"),
    ("own_models:not_a_module", {}, r"must return a torch\.nn\.Module, got int"),
    ("own_models:wrong_width", {}, r"must answer logits of shape \[batch, 3\], got \[2, 7\]"),
    ("own_models:other_generator", {}, "parameter bias starts from another value each time"),
    ("own_models:nothing", {}, r"'own_models:nothing' cannot be imported \(AttributeError"),
    (
        "not_there:thing",
        {},
        r"'not_there:thing' cannot be imported \(ModuleNotFoundError: No module named 'not_there'",
    ),
    ("broken:thing", {}, r"'broken:thing' cannot be imported \(SyntaxError"),
]


def test_what_cannot_be_used_is_refused_in_one_line(beside, subtests):
    beside("own_models", OWN)
    beside("broken", "def thing(:\n")
    for name, options, message in UNUSABLE:
        with subtests.test(name):
            with pytest.raises(ModelError, match=message) as refused:
                initial_parameters(Model(name=name, options=options), (4,), 3, seed=0)
            assert "\n" not in str(refused.value)


def with_buffer(name, value):
    module = nn.Linear(2, 2)
    module.register_buffer(name, value)
    return nn.Sequential(module)


BREACHES = [
    (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "1 is BatchNorm1d"),
    (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), "1 is BatchNorm2d"),
    (nn.Sequential(nn.SyncBatchNorm(2)), "0 is SyncBatchNorm"),
    (
        nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True)),
        r"0 \(InstanceNorm1d\) keeps running statistics",
    ),
    (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), "1 is Dropout"),
    (with_buffer("count", torch.zeros((), dtype=torch.int64)), r"buffer 0\.count is int64"),
    (with_buffer("running_scale", torch.zeros(2)), r"buffer 0\.running_scale is a running statistic"),
    (nn.Sequential(nn.Linear(2, 2).double()), r"parameter 0\.weight is float64; only float32"),
    (nn.Sequential(nn.Linear(2, 2).to(torch.bfloat16)), "is bfloat16"),
    (nn.Sequential(nn.Linear(2, 2).requires_grad_(False)), r"parameter 0\.weight is frozen"),
    (nn.Sequential(nn.LazyLinear(2)), r"parameter 0\.weight has no shape yet"),
    (nn.Sequential(nn.ReLU()), "has no parameters"),
]


def test_breaches_of_the_rules_are_refused_by_name(subtests):
    for module, message in BREACHES:
        with subtests.test(message):
            with pytest.raises(ModelError, match=message) as refused:
                check(module)
            assert "\n" not in str(refused.value)


KEEPS_THE_RULES = [
    nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)),
    nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)),
    with_buffer("positions", torch.arange(3.0)),
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
    (
        [Units("first", 6, {**RIGHT, "third.weight": 0}, "activation")],
        r"names parameter 'third\.weight', not there",
    ),
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


def test_a_smaller_network_of_the_wrong_shapes_is_refused():
    module = Declares([Units("first", 6, RIGHT, "activation")])
    module.smaller = lambda kept: Declares([])
    with pytest.raises(ModelError, match=r"smaller\(\): parameter 'first.bias' must have shape \(3,\), got \(6,\)"):
        Split(module, 2).module(0)


def test_a_failing_smaller_is_answered_in_one_line():
    module = Declares([Units("first", 6, RIGHT, "activation")])
    module.smaller = lambda kept: kept["second"]
    with pytest.raises(ModelError, match=r"Declares\.smaller\(\) failed \(KeyError: 'second'\)"):
        Split(module, 2).module(0)


def test_cost_counts_what_pencil_and_paper_count():
    # 5 x 12 and 12 x 3 weights: two operations each forward, two for the weights' gradient, and two for the gradient of
    # the second layer's input (nobody needs the first one's)
    module = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
    expected = 2 * (60 + 36) + 2 * (60 + 36) + 2 * 36
    assert cost(module, (5,)) == Cost(parameters=60 + 12 + 36 + 3, flops_per_record=expected)
    assert module[0].weight.grad is None


def test_submodels_are_cheaper():
    config = Model(name="mlp", hidden=(60,))
    full = cost(build(config, (20,), 4), (20,))
    parts = [cost(split(config, (20,), 4, 3).module(j), (20,)) for j in range(3)]
    assert {part.flops_per_record for part in parts} == {full.flops_per_record // 3}
    assert sum(part.parameters for part in parts) == full.parameters + 2 * 4  # the output's bias is in all of them


def test_values_of_an_own_module_follow_the_seed(documented):
    np.random.seed(0)
    first = initial_parameters(documented, (5,), 3, seed=1)
    again, other = initial_parameters(documented, (5,), 3, seed=1), initial_parameters(documented, (5,), 3, seed=2)
    np.testing.assert_array_equal(first["encode.weight"], again["encode.weight"])
    assert (first["encode.weight"] != other["encode.weight"]).any()


def test_what_is_kept_for_the_backward_pass_is_counted_once_and_without_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    assert kept_per_record(module, (5,)) == 5 + 7
