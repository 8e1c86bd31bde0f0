"""Training on a second device, which exists everywhere: it computes on the CPU, but does not mix with it.

Its tensors say that they are on torch's ``meta`` device and hold real ones. As on a GPU, an operation on tensors of
both devices is an error, and so is handing one of its tensors to NumPy.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedamp import rng, scenario
from fedamp.client.task import ClientTask
from fedamp.client.worker import TrainingNode, TrainInstruction
from fedamp.data import Cohort
from fedamp.models.evaluate import evaluate
from fedamp.models.registry import build, initial_parameters

ELSEWHERE = torch.device("meta")


class Elsewhere(torch.Tensor):
    """A tensor of the second device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> "Elsewhere":
        shape = {"strides": real.stride(), "storage_offset": real.storage_offset(), "dtype": real.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, real.shape, device=ELSEWHERE, **shape)
        made.held = real
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Inside, the second device is there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation, on whichever device its arguments are."""
    flat, structure = tree_flatten((args, kwargs))
    tensors = [each for each in flat if isinstance(each, torch.Tensor)]
    there = [each for each in tensors if isinstance(each, Elsewhere)]
    asked = kwargs.get("device")
    moves = func is torch.ops.aten._to_copy.default
    if there and not moves and any(each.dim() for each in tensors if not isinstance(each, Elsewhere)):
        raise RuntimeError(f"{func} mixes the CPU with the second device")
    unwrapped, real_kwargs = tree_unflatten(
        [each.held if isinstance(each, Elsewhere) else each for each in flat], structure
    )
    if asked is not None:
        real_kwargs["device"] = "cpu"
    out = func(*unwrapped, **real_kwargs)
    on_it = torch.device(asked) == ELSEWHERE if asked is not None else bool(there)
    if not on_it:
        return out
    known = {id(each.held): each for each in there}  # what was changed in place stays the same tensor
    return tree_map(lambda each: known.get(id(each), Elsewhere(each)) if isinstance(each, torch.Tensor) else each, out)


@pytest.fixture(autouse=True)
def second_device() -> Iterator[None]:
    with SecondDevice():
        yield


class Records:
    """Seven clients with up to six records."""

    num_clients, num_classes, hosted = 7, 3, None

    def __init__(self, shape: tuple[int, ...], longest: int) -> None:
        generator = np.random.default_rng(5)
        self.input_shape = shape
        self.lengths = generator.integers(1, longest + 1, 7)
        self.inputs = generator.normal(size=(7, longest, *shape)).astype(np.float32)
        self.labels = generator.integers(0, 3, (7, longest))

    def gather(self, clients: np.ndarray) -> Cohort:
        return Cohort(self.inputs[clients], self.labels[clients], self.lengths[clients])


NO, DROPOUT = scenario.NoSubmodels(), scenario.DropoutSubmodels(scheme="dropout", keep=0.5)
DISJOINT = scenario.DisjointSubmodels(scheme="disjoint", count=2)
MLP, CNN = scenario.Model(name="mlp", hidden=(8,)), scenario.Model(name="cnn", channels=(4,), groups=2)
STEPS = scenario.Client(steps=2, batch_size=3, learning_rate=0.5)
CASES = {
    "fully connected": (MLP, (5,), NO, STEPS, "client"),
    "full batches, FedProx": (MLP, (5,), NO, scenario.Client(steps=3, learning_rate=0.5, proximal=0.1), "client"),
    "convolutional": (CNN, (1, 6, 6), NO, STEPS, "client"),
    "submodels": (MLP, (5,), DISJOINT, STEPS, "client"),
    "dropout masks": (MLP, (5,), DROPOUT, STEPS, "client"),
    "records": (MLP, (5,), NO, scenario.Client(steps=1, learning_rate=0.5), "sample"),
}


def test_devices_do_not_mix() -> None:
    here, there = torch.ones(3), torch.ones(3).to(ELSEWHERE)
    assert torch.equal((there * 2).cpu(), here * 2)
    with pytest.raises(RuntimeError, match="mixes the CPU"):
        here + there
    with pytest.raises((RuntimeError, TypeError)):
        there.numpy()


@pytest.mark.parametrize("case", CASES)
def test_a_round_on_another_device_gives_the_same_sum(case: str) -> None:
    model, shape, submodels, client, unit = CASES[case]
    task = ClientTask(
        model=model, input_shape=shape, num_classes=3, client=client, unit=unit, submodels=submodels, split_seed=4,
        linf_coordinates=0, data=scenario.BuiltInData(name="digits", clients=10), data_seed=0,
    )  # fmt: skip
    arrays, records = initial_parameters(model, shape, 3, seed=1), Records(shape, 1 if unit == "sample" else 6)
    records.lengths[2] = 0 if unit == "client" else 1
    records.inputs[3] = np.nan  # a client that fails takes a way of its own
    seeds = rng.client_seeds(0, "test", 1, np.arange(7)).tolist()
    chosen = [number % 2 for number in range(7)] if submodels is DISJOINT else [-1] * 7
    order = TrainInstruction(1, list(range(7)), seeds, chosen, [4, 3], [0.2] if submodels is NO else [0.1, 0.2])
    there, here = (TrainingNode(task, records, device).train(arrays, order) for device in (str(ELSEWHERE), "cpu"))
    assert there[1].failed == here[1].failed == 1
    assert there[1].clipped == here[1].clipped
    for name, total in here[0].items():
        # Torch steps lists of tensors another way where it does not know the device: float32 rounds otherwise.
        np.testing.assert_allclose(there[0][name], total, rtol=1e-5, atol=1e-7)


def test_evaluation_on_another_device() -> None:
    arrays, records = initial_parameters(CNN, (1, 6, 6), 3, seed=1), Records((1, 6, 6), 6)
    test = records.inputs.reshape(-1, 1, 6, 6), records.labels.reshape(-1)
    modules = [build(CNN, (1, 6, 6), 3) for _ in range(2)]
    assert evaluate(modules[0], arrays, *test, str(ELSEWHERE)) == evaluate(modules[1], arrays, *test, "cpu")
