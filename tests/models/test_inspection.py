"""What a model may contain, declare, cost and do; code that changes what it is given or what it was built from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedamp.client.task import StackSize
from fedamp.client.worker import TrainingNode
from fedamp.errors import ModelError
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.losses import CrossEntropy, Functions
from fedamp.models.inspection import Cost, check, cost, kept_per_record, prove_silence
from fedamp.models.model import Model
from fedamp.models.networks import build
from fedamp.models.pieces import Split
from fedamp.models.units import Blocks, Units
from fedamp.server.evaluate import evaluate
from tests.client.federation import Records, order_of, task_of, trained
from tests.models.splitting import refused


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
        r"dimension 0 of 'first\.weight' \(shape \(6, 3\)\) is not a multiple of 4",
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


def test_cost_counts_what_pencil_and_paper_count():
    # 5 x 12 and 12 x 3 weights: two operations each forward, two for the weights' gradient, and two for the gradient of
    # the second layer's input (nobody needs the first one's)
    module = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 3))
    expected = 2 * (60 + 36) + 2 * (60 + 36) + 2 * 36
    assert cost(module, (5,)) == Cost(parameters=60 + 12 + 36 + 3, flops_per_record=expected)
    assert module[0].weight.grad is None


def test_what_is_kept_for_the_backward_pass_is_counted_once_and_without_parameters():
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    assert kept_per_record(module, (5,)) == 5 + 7


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


@pytest.mark.usefixtures("few_tries")
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
