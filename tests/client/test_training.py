"""Stacked local training against a plain loop over clients that shares nothing with it but the order of records."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedamp import rng
from fedamp.client.stacked_networks import Convolutional, ReluMaxPool, layers_of, stacked
from fedamp.client.training import StackTrainer, arithmetic
from fedamp.data import PaddedRecords
from fedamp.federation import losses
from fedamp.federation.local_training import LocalTraining
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import Network, build
from fedamp.models.pieces import Piece
from tests.client.second_device import WithTable

SEEDS = rng.client_seeds(0, "test", 1, np.arange(5))
SIZES = np.array([5, 0, 1, 7, 4])
# float32 carries 7 digits; sums of some tens of products and up to 12 steps lose about two.
TOLERANCE = {"atol": 2e-6, "rtol": 2e-4}

MODELS = {
    "mlp": (Model(name="mlp", hidden=(9, 6)), (12,)),
    "cnn": (Model(name="cnn", channels=(4,), groups=2), (1, 6, 6)),
}
RECIPES = {
    "full": LocalTraining(steps=3, learning_rate=0.3),
    "default": LocalTraining(learning_rate=0.3),
    "minibatches": LocalTraining(steps=7, batch_size=3, learning_rate=0.2),
    "epochs": LocalTraining(epochs=3, batch_size=3, learning_rate=0.2),
    "fedprox": LocalTraining(epochs=4, batch_size=2, learning_rate=0.2, proximal=0.7),
    "momentum": LocalTraining(epochs=2, batch_size=3, learning_rate=0.2, momentum=0.7, weight_decay=0.3),
    "decay": LocalTraining(steps=2, learning_rate=0.2, weight_decay=0.3),
    "adam": LocalTraining(epochs=2, batch_size=3, optimizer="adam", learning_rate=0.1, weight_decay=0.1),
}


def parameters_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def forward_of(module: nn.Module):
    return lambda parameters, inputs: functional_call(module, parameters, (inputs,))


def make_cohort(shape: tuple[int, ...], sizes: np.ndarray = SIZES, classes: int = 4) -> PaddedRecords:
    generator = np.random.default_rng(0)
    longest = int(sizes.max())
    inputs = generator.normal(size=(len(sizes), longest, *shape)).astype(np.float32)
    labels = generator.integers(0, classes, size=(len(sizes), longest))
    padding = np.arange(longest) >= sizes[:, None]
    inputs[padding], labels[padding] = 0, 0
    return PaddedRecords(inputs, labels, sizes)


def record_batches(config: LocalTraining, size: int, seed: int) -> list[np.ndarray]:
    """The batches of one client, written down from the words of the scenario."""
    if size == 0:
        return []
    batch = size if config.batch_size == "full" else config.batch_size
    batches: list[np.ndarray] = []
    steps = config.steps or (config.epochs or 1) * -(-size // batch)
    epoch = 0
    while len(batches) < steps:
        keys = rng.client_words(np.array([seed]), f"batch order of epoch {epoch}", size)[0]
        order = np.argsort(keys)
        batches += [order[first : first + batch] for first in range(0, size, batch)]
        epoch += 1
    return batches[:steps]


def plain_loop(forward, start, inputs, labels, config, size, seed, criterion=F.cross_entropy):
    """Local training of one client as one would write it first."""
    parameters = {name: value.clone().requires_grad_() for name, value in start.items()}
    if config.optimizer == "adam":
        betas, decay = (config.beta1, config.beta2), config.weight_decay
        optimizer = torch.optim.Adam(parameters.values(), config.learning_rate, betas, config.epsilon, decay)
    else:
        momentum, decay = config.momentum, config.weight_decay
        optimizer = torch.optim.SGD(parameters.values(), config.learning_rate, momentum, weight_decay=decay)
    for batch in record_batches(config, size, seed):
        loss = criterion(forward(parameters, torch.from_numpy(inputs[batch])), torch.from_numpy(labels[batch]))
        distance = sum(((value - start[name]) ** 2).sum() for name, value in parameters.items())
        optimizer.zero_grad()
        (loss + config.proximal / 2 * distance).backward()
        optimizer.step()
    return {name: (value - start[name]).detach() for name, value in parameters.items()}


def assert_as_alone(trained, forward_of_client, start, cohort, client, criterion=F.cross_entropy):
    for i, seed in enumerate(SEEDS):
        one = cohort.inputs[i], cohort.labels[i]
        expected = plain_loop(forward_of_client(i), start, *one, client, SIZES[i], seed, criterion)
        for name in start:
            torch.testing.assert_close(trained.updates[name][i], expected[name], **TOLERANCE)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_stacked_training_equals_one_client_after_the_other(model: str, recipe: str) -> None:
    config, shape = MODELS[model]
    module, client = build(config, shape, 4), RECIPES[recipe]
    start, cohort = parameters_of(module), make_cohort(shape)
    trained = StackTrainer(forward_of(module), client).train(start, cohort, SEEDS)
    assert_as_alone(trained, lambda i: forward_of(module), start, cohort, client)
    assert all(float(trained.updates[name][0].abs().sum()) > 0 for name in ("output.weight", "output.bias"))
    assert all(not trained.updates[name][1].any() for name in start), "a client without records changes nothing"


FASTER = {  # few records, fewer than inputs: weights of the first layer are formed at the end
    "few records": (Model(name="mlp", hidden=(9, 6)), (12,)),
    "many records": (Model(name="mlp", hidden=(9,)), (2, 2)),
    "logistic": (Model(name="logistic"), (12,)),
    "cnn": (Model(name="cnn", channels=(4, 6), groups=2), (6, 6, 1)),
    "resnet20": (Model(name="resnet20"), (8, 8)),
}
CONVOLUTIONAL = ("cnn", "resnet20")
WAYS = [(model, recipe) for model in FASTER for recipe in RECIPES if model not in CONVOLUTIONAL and recipe != "fedprox"]
WAYS += [(model, recipe) for model in CONVOLUTIONAL for recipe in ("full", "minibatches", "fedprox")]


@pytest.mark.parametrize(("model", "recipe"), WAYS)
def test_faster_ways_train_as_under_vmap(model: str, recipe: str) -> None:
    """Without autograd, and clients side by side in channels."""
    module, client = build(*FASTER[model], 4), RECIPES[recipe]
    if model == "resnet20":  # one step of the shared start: rounding grows in further ones
        client = client.model_copy(update={"steps": 1, "epochs": None})
    start, cohort = parameters_of(module), make_cohort(FASTER[model][1])
    before = {name: value.clone() for name, value in start.items()}
    under_vmap = StackTrainer(forward_of(module), client).train(start, cohort, SEEDS)
    trained = StackTrainer(forward_of(module), client, module=module).train(start, cohort, SEEDS)
    for name in start:
        torch.testing.assert_close(trained.updates[name], under_vmap.updates[name], **TOLERANCE)
        assert torch.equal(start[name], before[name]), "the start is not overwritten"
    np.testing.assert_allclose(trained.losses, under_vmap.losses, rtol=1e-5)
    np.testing.assert_array_equal(trained.records, under_vmap.records)


class Promoting(WithTable):
    """A model that adds float32 numbers of its own, so that its code does not compute in bfloat16."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs + torch.linspace(0, 1, inputs.shape[1]))


@pytest.mark.parametrize("kind", [WithTable, Promoting])
@pytest.mark.parametrize("recipe", ["minibatches", "momentum"])
def test_bfloat16_rounds_and_casts_where_the_code_of_the_model_takes_it(kind: type[WithTable], recipe: str) -> None:
    torch.manual_seed(1)
    module = kind((12,), 4)
    start, cohort = parameters_of(module), make_cohort((12,))
    piece, low = Piece(module, frozenset(), known=False), RECIPES[recipe].model_copy(update={"precision": "bfloat16"})
    trainer = StackTrainer.of_piece(piece, low, "cpu", losses.CrossEntropy(), torch.zeros(1, 12))
    assert trainer.casts == (kind is WithTable)
    found, again = (trainer.train(start, cohort, SEEDS).updates for _ in range(2))
    exact = StackTrainer(forward_of(module), RECIPES[recipe]).train(start, cohort, SEEDS).updates
    for name, update in exact.items():
        assert torch.equal(found[name], again[name])
        assert found[name].dtype == torch.float32
        # Numbers have eight bits, so a step is within some percent.
        assert 0 < float((found[name] - update).norm()) < 0.05 * float(update.norm())
    assert module.table.dtype == torch.float32, "the module stays as it is"


def test_channels_of_clients_refuse_other_uses_of_parameters() -> None:
    class Scaled(Network):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * self.output.bias.sum()

    module = build(*MODELS["cnn"], 4)
    assert not isinstance(stacked(build(*MODELS["mlp"], 4), "cpu"), Convolutional)
    module.__class__ = Scaled
    values = {name: value.expand(2, *value.shape) for name, value in parameters_of(module).items()}
    with pytest.raises(NotImplementedError, match="stacked parameters cannot go through"):
        Convolutional(module)(values, torch.zeros(2, 3, 1, 6, 6))


def test_nobody_with_records_changes_nothing_without_autograd() -> None:
    module = build(*MODELS["mlp"], 4)
    nobody = PaddedRecords(np.zeros((2, 0, 12), np.float32), np.zeros((2, 0), np.int64), np.zeros(2, np.int64))
    trainer = StackTrainer(forward_of(module), RECIPES["full"], module=module)
    trained = trainer.train(parameters_of(module), nobody, SEEDS[:2])
    assert not any(update.any() for update in trained.updates.values())
    assert not trained.losses.any()


def test_only_fully_connected_networks_do_without_autograd() -> None:
    assert layers_of(build(*MODELS["cnn"], 4)) is None
    assert layers_of(nn.Linear(12, 4)) is None


def per_token(outputs, labels):
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten())


LOSSES = {
    "mean-squared-error": (F.mse_loss, lambda g, n: g.normal(size=(*n, 4)).astype(np.float32)),
    "binary-cross-entropy": (F.binary_cross_entropy_with_logits, lambda g, n: np.float32(g.integers(0, 2, (*n, 4)))),
    "token-cross-entropy": (per_token, lambda g, n: g.integers(0, 4, (*n, 6))),
}


@pytest.mark.parametrize("way", ["layers", "vmap", "own"])
@pytest.mark.parametrize("loss", LOSSES)
def test_other_losses_are_minimised(loss: str, way: str) -> None:
    """Built in, on a fully connected network too; and as one's own."""
    criterion, draw = LOSSES[loss]
    kind = losses.LOSSES[loss] if way != "own" else type("Own", (losses.LOSSES[loss],), {})
    assert kind().is_known == (way != "own")
    tokens = loss.startswith("token")
    config, shape = (Model(name="lstm", vocabulary=5, hidden=(3,)), (6,)) if tokens else MODELS["mlp"]
    module, client = build(config, shape, 4), RECIPES["minibatches"]
    start, cohort = parameters_of(module), make_cohort(shape)
    generator = np.random.default_rng(3)
    inputs = generator.integers(0, 5, cohort.inputs.shape) if tokens else cohort.inputs
    cohort = PaddedRecords(inputs, draw(generator, cohort.labels.shape), SIZES)
    trainer = StackTrainer(forward_of(module), client, loss=kind(), module=module if way == "layers" else None)
    trained = trainer.train(start, cohort, SEEDS)
    assert_as_alone(trained, lambda i: forward_of(module), start, cohort, client, criterion)


class MixesRecords(losses.MeanSquaredError):
    """Looks across the records it is given, which a loss may not."""

    def each(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().each(outputs - outputs.mean(0), labels) + outputs.sum()


@pytest.mark.parametrize("who", ["loss", "model"])
def test_what_mixes_the_records_of_a_client_never_mixes_clients(who: str) -> None:
    """Both are refused before a run. Where one slips through, it is the client's own update that is wrong."""
    config, shape = MODELS["mlp"]
    module, cohort = build(config, shape, 4), make_cohort(shape)
    labels = np.random.default_rng(3).normal(size=(*cohort.labels.shape, 4)).astype(np.float32)
    forward, loss = forward_of(module), MixesRecords() if who == "loss" else losses.MeanSquaredError()
    centred = lambda parameters, inputs: forward(parameters, inputs - inputs.mean(0))  # noqa: E731
    trainer = StackTrainer(forward if who == "loss" else centred, RECIPES["full"], loss=loss)
    start = parameters_of(module)
    before = trainer.train(start, PaddedRecords(cohort.inputs, labels, SIZES), SEEDS)
    cohort.inputs[3] += 1
    after = trainer.train(start, PaddedRecords(cohort.inputs, labels, SIZES), SEEDS)
    for name in start:
        changed = (before.updates[name] != after.updates[name]).flatten(1).any(1)
        assert not changed[[0, 1, 2, 4]].any()
    assert changed[3]


def test_dropout_masks_are_each_clients_own() -> None:
    config, shape = MODELS["mlp"]
    module, client = build(config, shape, 4), RECIPES["minibatches"]
    masks, start, cohort = Masks(module), parameters_of(module), make_cohort(shape)
    chosen = torch.from_numpy((np.random.default_rng(1).random((5, masks.nodes)) < 0.5).astype(np.float32))
    trained = StackTrainer(masks.call, client).train(start, cohort, SEEDS, [chosen])
    masked = [lambda parameters, inputs, mask=mask: masks.call(parameters, inputs, mask) for mask in chosen]
    assert_as_alone(trained, masked.__getitem__, start, cohort, client)
    dropped = chosen[0, :9] == 0
    assert not trained.updates["hidden.0.weight"][0][dropped].any()


def test_loss_is_that_of_the_received_model_on_the_first_batch() -> None:
    config, shape = MODELS["mlp"]
    module, cohort = build(config, shape, 4), make_cohort(shape)
    trained = StackTrainer(forward_of(module), RECIPES["full"]).train(parameters_of(module), cohort, SEEDS)
    for i, size in enumerate(SIZES):
        logits = module(torch.from_numpy(cohort.inputs[i, :size]))
        expected = F.cross_entropy(logits, torch.from_numpy(cohort.labels[i, :size]), reduction="sum").item()
        assert trained.losses[i] == pytest.approx(expected, rel=1e-5)
    assert trained.records.tolist() == SIZES.tolist()


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (3, 2, 5, 7), (2, 2, 2, 2), (1, 1, 3, 2)])
def test_values_and_gradients_of_pooling_are_those_of_torch(shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(2).round()  # many are equal
    inputs[0, 0, 0, :2] = torch.nan
    inputs.requires_grad_()
    expected, found = F.max_pool2d(F.relu(inputs), 2), ReluMaxPool()(inputs)
    assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))
    back = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).masked_fill(expected.isnan(), 0)
    assert torch.equal(torch.autograd.grad(found, inputs, back)[0], torch.autograd.grad(expected, inputs, back)[0])
    assert not getattr(found.grad_fn, "images", None), "their memory is free after the backward pass"


BACKENDS = torch.backends
SETTINGS = {
    "tf32": (BACKENDS, "fp32_precision", "tf32"),
    "tf32 of products": (BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "tf32 in the older way": (BACKENDS.cuda.matmul, "allow_tf32", True),
    "kernels by their time": (BACKENDS.cudnn, "benchmark", True),
}


def gpu_state() -> tuple[object, ...]:
    cuda, cudnn = BACKENDS.cuda, BACKENDS.cudnn
    rounding = [each.fp32_precision for each in (cuda.matmul, cudnn.conv, cudnn.rnn)]
    return rounding, cudnn.benchmark, cuda.fp16_bf16_reduction_math_sdp_allowed()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_gpu_computes_as_in_a_new_process_and_is_left_as_it_was(name: str) -> None:
    owner, attribute, value = SETTINGS[name]
    # Other tests of the process may have left the two interfaces apart; then torch refuses to read the older one.
    BACKENDS.cuda.matmul.allow_tf32, BACKENDS.cuda.matmul.fp32_precision = False, "none"
    usual = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        before = gpu_state()
        for precision, rounding in (("float32", "ieee"), ("bfloat16", "tf32")):
            with arithmetic(precision, "cuda"):
                assert gpu_state() == ([rounding] * 3, False, precision == "bfloat16")
                assert BACKENDS.cuda.matmul.allow_tf32 is BACKENDS.cudnn.allow_tf32 is (precision == "bfloat16")
        assert gpu_state() == before
    finally:
        setattr(owner, attribute, usual)
