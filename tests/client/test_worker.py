"""A node's round: sums in the right shape and place, clipped by unit, whoever else is in it."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedamp.client.clipping import ClippedSum, quantum
from fedamp.client.task import ClientTask, StackSize, bytes_of_a_worker, places_for, stack_size
from fedamp.client.worker import TrainingNode, TrainReport
from fedamp.engines.wire import RoundAnswer, RoundOrder, rows
from fedamp.errors import DataError
from fedamp.federation.submodels import DisjointSubmodels, DropoutSubmodels, NoSubmodels
from fedamp.models.masks import Masks
from fedamp.models.model import Model
from fedamp.models.networks import build, initial_parameters
from tests.client import federation
from tests.client.federation import records, trained
from tests.models.splitting import split

MODEL = Model(name="mlp", hidden=(8, 6))
DISJOINT = DisjointSubmodels(scheme="disjoint", count=2, shared=("output",))
DROPOUT = DropoutSubmodels(scheme="dropout", keep=0.5)
SCHEMES = {"none": NoSubmodels(), "disjoint": DISJOINT, "dropout": DROPOUT}
ARRAYS = initial_parameters(MODEL, (5,), 3, seed=1)


def task_of(scheme: str = "none", **changes: object) -> ClientTask:
    return federation.task_of(**{"model": MODEL, "submodels": SCHEMES[scheme]} | changes)


def order_of(clients: list[int], scheme: str = "none", **changes: object) -> RoundOrder:
    return federation.order_of(clients, task_of(scheme), **changes)


def parts_of(scheme: str) -> list[list[str]]:
    if scheme == "none":
        return [list(ARRAYS)]
    cut = split(MODEL, (5,), 3, 2, ("output",), 4) if scheme == "disjoint" else Masks(build(MODEL, (5,), 3))
    return [[name for name in ARRAYS if (name in cut.shared) == shared] for shared in (True, False)]


def norms(sums: dict[str, np.ndarray], scheme: str) -> list[float]:
    return [float(np.sqrt(sum((sums[name] ** 2).sum() for name in part))) for part in parts_of(scheme)]


@pytest.mark.few(0, 1)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_round_is_the_sum_of_its_clients(scheme: str) -> None:
    worker, before = TrainingNode(task_of(scheme), records()), copy.deepcopy(ARRAYS)
    clients = list(range(9))
    sums, report = trained(worker, ARRAYS, order_of(clients, scheme))
    assert report.reported == clients
    assert all((ARRAYS[name] == array).all() for name, array in before.items()), "received arrays are not changed"
    assert (report.failed, report.clipped + report.below_clip) == (0, 9)
    alone = [trained(worker, ARRAYS, order_of([client], scheme))[0] for client in clients]
    nobody, report = trained(worker, ARRAYS, order_of([], scheme))
    assert report.reported == []
    for name, total in sums.items():
        assert not nobody[name].any()
        assert total.shape == ARRAYS[name].shape
        assert total.dtype == np.float64
        np.testing.assert_array_equal(total, sum(each[name] for each in alone))
        np.testing.assert_array_equal(total % quantum(0.1 if scheme != "none" else 0.2), 0)


# Clipping is each scheme's own; what comes before it is the same for all.
POISONS = [(scheme, poison) for scheme in SCHEMES for poison in ("huge", "nan")]
POISONS += [("none", "inf"), ("disjoint", "zero"), ("dropout", "label"), ("disjoint", "unreadable")]


@pytest.mark.few(1, 2, 5, 8)
@pytest.mark.parametrize(("scheme", "poison"), POISONS)
def test_one_client_changes_the_sum_by_at_most_the_clip(scheme: str, poison: str) -> None:
    dataset = records()
    match poison:
        case "huge":
            dataset.inputs[4] = 1e30
        case "nan" | "inf":
            dataset.inputs[4, 0, 0] = float(poison)
        case "zero":
            dataset.inputs[4] = 0
        case "label":
            dataset.labels[4, 0] = 3
        case "unreadable":
            dataset.unreadable = frozenset([4])
    worker = TrainingNode(task_of(scheme), dataset)
    with_it, report = trained(worker, ARRAYS, order_of(list(range(9)), scheme))
    without, _ = trained(worker, ARRAYS, order_of([0, 1, 2, 3, 5, 6, 7, 8], scheme))
    difference = {name: with_it[name] - without[name] for name in with_it}
    for norm, clip in zip(norms(difference, scheme), order_of([0], scheme).clips, strict=True):
        assert norm <= clip
    broken = poison in ("nan", "inf", "label", "unreadable") or (poison == "huge" and report.failed)
    assert report.failed == int(broken)
    assert np.isfinite(report.loss_sum)
    assert 4 in report.reported, "whether it fails follows from its data, and must not be told"
    assert bool(report.text) == (poison in ("label", "unreadable"))
    if broken:
        assert max(norms(difference, scheme)) == 0


def test_an_extracted_submodel_gives_the_same_sum_in_its_own_shape() -> None:
    worker = TrainingNode(task_of("disjoint"), records())
    cut = split(MODEL, (5,), 3, 2, ("output",), 4)
    order = order_of([1, 3, 5], "disjoint")
    whole, _ = trained(worker, ARRAYS, order)
    small, _ = trained(worker, cut.piece(1).extract(ARRAYS), replace(order, extracted=1))
    for name, part in cut.piece(1).extract(whole).items():
        np.testing.assert_array_equal(part, small[name])


def test_refusals() -> None:
    with pytest.raises(DataError, match=r"shape \[5\], the model takes \[6\]"):
        TrainingNode(task_of(input_shape=(6,)), records())
    with pytest.raises(ValueError, match="one that was sent"):
        order_of([1], submodels=[0], extracted=1)
    with pytest.raises(ValueError, match=r"clips must be \[all\] or \[shared, split\], got 3 numbers"):
        order_of([1], clips=(1.0, 2.0, 3.0))


def test_stacks_follow_from_the_model_and_the_kind_of_device() -> None:
    def slots(parameters: int, per_record: int, device: str = "cpu", places: int = 4) -> int:
        return stack_size(parameters, per_record, 1000, device).slots(places, most=1000)

    assert slots(10**9, 10) == slots(10, 10**9) == 1
    sizes = [slots(parameters, 10) for parameters in (10**3, 10**6, 10**7)]
    assert sizes == sorted(sizes, reverse=True)
    assert slots(10**6, 10, "cuda:1") > sizes[1]
    assert slots(10, 10, places=1 << 12) == 1, "a client with many records takes no stack of many"
    assert StackSize(units=50, records=10**6).slots(4, most=3) == 4
    sizes = (0, 1, 2, 3, 4, 5, 9, 17, 1000)
    assert [places_for(records, 2, None) for records in sizes] == [2, 2, 2, 4, 4, 8, 16, 32, 1024]
    assert [places_for(records, 1, 2) for records in sizes] == [1, 1, 2, 4, 4, 6, 10, 20, 1024]
    assert [places_for(records, 2, 4) for records in (*sizes, 33)] == [2, 2, 2, 4, 4, 8, 12, 20, 1024, 40]
    batches = [places_for(records, 2, None, batch=3) for records in sizes]
    assert batches == [2, 2, 2, 4, 4, 32, 32, 32, 2048], "records that wait for a later step cost no arithmetic"
    assert StackSize(units=64, records=256).slots(2048, most=100, batch=3) == 1
    assert StackSize(units=64, records=256).slots(32, most=100, batch=3) == 64
    known = StackSize(units=64, records=1024, cohort=100)
    assert [known.slots(places, most=1000) for places in (4, 20, 128)] == [50, 50, 8], "two stacks for the cohort"
    assert known.slots(4, most=3) == 3


def test_no_persons_loss_takes_the_others_answer_away():
    """A sum of losses that is not finite would make the server refuse all that the node has added up."""
    order = RoundOrder("", 1, (1.0,), rows(range(3), [bytes(32)] * 3), {"weight": np.zeros(2, np.float32)})
    for losses in ([1.0, 1e308, 1e308], [1.0, np.inf, np.nan]):
        report = TrainReport(sums={"weight": np.ones(2)}, text="it reads \ud800")
        clipped = ClippedSum({}, torch.zeros(3, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.bool))
        report.add(np.arange(3), clipped, np.array(losses), np.ones(3, np.int64))
        answer = RoundAnswer.of(report.content(order), order)
        assert (answer.loss_sum, answer.records, answer.reported) == (1.0, 3, [0, 1, 2])


def test_stacks_on_a_gpu_follow_from_its_memory() -> None:
    def units(memory: int | None) -> int:
        return stack_size(10**6, 10**4, 10**6, "cuda", memory).units

    gigabytes = [units(size * 10**9) for size in (8, 16, 24, 40, 80)]
    assert gigabytes == sorted(gigabytes)
    assert units(80 * 10**9) == units(85 * 10**9), "cards of about the same memory round alike"
    assert units(10) == 1, "at least one"
    assert units(None) == units(24 * 10**9), "a card that is not known"
    for memory in (24 * 10**9, 80 * 10**9):
        taken = bytes_of_a_worker(units(memory) * (2 * 10**6 + 10**4))
        assert 2 * taken + memory // 16 < memory, "a recorded program keeps as much as the program takes"
    assert stack_size(10**6, 10**4, 10**6, "cpu", 10**12) == stack_size(10**6, 10**4, 10**6), "a CPU has no such memory"
