"""A unit contributes a vector of norm at most 1 to an evaluation, whatever its records are; these never train."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedamp.client import configuration
from fedamp.client.app import node_of, side_sum_of
from fedamp.client.worker import TrainReport
from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import NpzData, SyntheticData
from fedamp.engines.wire import SIDE_SUM, RoundOrder, rows
from fedamp.errors import DataError, DeploymentError
from fedamp.extensions.evaluation.section import ClientEvaluation
from fedamp.federation.local_training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from tests.client.federation import task_of, trained

UNITS, RECORDS, VICTIM = 12, 5, 7
MODEL = Model(name="logistic")


def clean() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    owners = np.repeat(np.arange(UNITS), RECORDS)
    x = generator.normal(size=(len(owners), 5)).astype(np.float32)
    arrays = {"x": x, "y": generator.integers(0, 3, len(owners)), "client": owners}
    return arrays | {"region": np.array(["north", "south", "west"])[owners % 3]}


def changed(kind: str) -> dict[str, np.ndarray]:
    arrays, own = clean(), np.arange(VICTIM * RECORDS, (VICTIM + 1) * RECORDS)
    if kind in ("nan", "inf"):
        arrays["x"][own, 1] = float(kind)
    elif kind == "huge":
        arrays["x"][own] = 3e38  # finite, and logits of it are not
    elif kind.startswith("label"):
        arrays["y"][own] = int(kind.split()[1])
    elif kind == "group":
        arrays["region"][own] = "nowhere"
    elif kind == "gone":
        arrays = {name: np.delete(array, own, 0) for name, array in arrays.items()}
    elif kind == "many":
        more = {name: np.repeat(array[own[:1]], 3000, 0) for name, array in arrays.items()}
        arrays = {name: np.concatenate([array, more[name]]) for name, array in arrays.items()}
    return arrays


def task(folder, arrays, **keys):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "train.npz", **arrays)
    about = {"clients": UNITS, "hosted": list(range(UNITS)), "classes": 3}
    (folder / "federation.json").write_text(json.dumps(about))
    data = NpzData(name="npz", path=str(folder), partition=NaturalPartition(scheme="natural"))
    given = {"on": "clients", "noise_multiplier": 1, "metrics": ["score", "loss", "calibration"], "share": 0.4}
    given |= {"by": "region", "groups": ["north", "south", "west"]}
    evaluation = ClientEvaluation.model_validate(given | keys)
    return task_of(model=MODEL, client=LocalTraining(epochs=1), data=data, evaluation=evaluation)


def order_of(asked, units=range(UNITS), counted=True) -> RoundOrder:
    units = list(units)
    each = rows(units, [unit.to_bytes(32) for unit in units], counted=counted)
    arrays = initial_parameters(MODEL, tuple(asked.input_shape), asked.num_classes, 1)
    return RoundOrder(
        asked.to_json(), 9, (1.0,), each, arrays=arrays, cells=asked.evaluation.number_of_cells, trains=False
    )


def evaluated(asked, order=None) -> tuple[np.ndarray, TrainReport]:
    order = order or order_of(asked)
    report = TrainReport(dummies=order.dummies)
    side_sum_of(asked.to_json(), "", "cpu").add(order, report)
    return report.sums[SIDE_SUM], report


KINDS = ["nan", "inf", "huge", "label 7", "label -1", "label 1099511627776", "group", "gone", "many"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_unit_moves_the_sum_by_its_own_contribution_of_norm_one(tmp_path, kind):
    """Neighbouring data: the sum without the unit is the same to the bit, and the unit adds at most norm 1."""
    others = [unit for unit in range(UNITS) if unit != VICTIM]
    before, after = task(tmp_path / "before", clean()), task(tmp_path / "after", changed(kind))
    rest = [evaluated(each, order_of(each, others))[0] for each in (before, after)]
    np.testing.assert_array_equal(*rest)
    for each in (before, after):
        own = evaluated(each)[0] - rest[0]
        assert np.linalg.norm(own) <= 1
        assert evaluated(each)[1].reported == list(range(UNITS)), "an answer tells nothing about records"


def test_each_unit_contributes_the_shares_of_its_held_out_records(tmp_path):
    """Oracle: NumPy on the records that the data set says are held out."""
    asked = task(tmp_path, clean())
    held_out, section = configuration.divided(asked.to_json(), "")[1], asked.evaluation
    parameters = initial_parameters(MODEL, (5,), 3, 1)
    for unit in (0, VICTIM):
        found = evaluated(asked, order_of(asked, [unit]))[0].reshape(len(section.group_slots), -1)
        cohort = held_out.gather(np.array([unit]))
        assert cohort.sizes[0] == 2  # 0.4 of five records
        logits = cohort.inputs[0] @ parameters["output.weight"].T + parameters["output.bias"]
        chances = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        right, losses = logits.argmax(1) == cohort.labels[0], -np.log(chances[np.arange(2), cohort.labels[0]])
        bins = np.zeros((section.bins, 2))
        for record in range(2):
            bins[int(chances[record].max() * section.bins), int(not right[record])] += 0.5
        share = losses.mean() / section.loss_at_most
        wanted = np.concatenate([[right.mean(), 1 - right.mean()], [share, 1 - share], bins.ravel()]) / 3**0.5
        # float32 logits, and contributions cut to whole quanta and to a norm of 1 - 1e-6
        np.testing.assert_allclose(found[unit % 3], wanted, atol=3e-6)
        assert np.abs(np.delete(found, unit % 3, 0)).sum() == 0, "all of it stands in the slot of the unit's group"


def test_which_records_are_held_out_of_a_client_depends_on_no_other_client(tmp_path):
    def records(arrays):
        held_out = configuration.divided(task(tmp_path / str(len(arrays["x"])), arrays).to_json(), "")[1]
        return held_out.gather(np.array([3])).inputs

    full = clean()
    others_changed = {name: np.delete(array, np.arange(20, 44), 0) for name, array in full.items()}
    np.testing.assert_array_equal(records(full), records(others_changed))


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_every_record_trains_or_is_held_out_and_one_at_least_trains(tmp_path, size):
    arrays = clean()
    owners = np.repeat(np.arange(UNITS), size)
    arrays = {"x": np.arange(5 * len(owners), dtype=np.float32).reshape(-1, 5), "y": owners % 3, "client": owners}
    trains, held_out = configuration.divided(task(tmp_path, arrays, by=None, groups=[], share=0.3).to_json(), "")
    everyone = np.arange(UNITS)
    assert set(trains.sizes(everyone)) == {size - min(-(-3 * size // 10), size - 1)}
    for unit in (0, UNITS - 1):
        both = [each.gather(np.array([unit])).inputs[0] for each in (trains, held_out)]
        found = np.sort(np.concatenate([each.reshape(-1, 5) for each in both])[:, 0])
        np.testing.assert_array_equal(found, arrays["x"][owners == unit, 0])


def test_held_out_records_never_train(tmp_path):
    """Neighbouring data that differ in the held-out records alone: the update is the same to the bit."""
    asked = task(tmp_path / "before", clean())
    apart = configuration.divided(asked.to_json(), "")[1].training.numbers
    arrays = clean()
    arrays["x"][apart], arrays["y"][apart] = 5.0, 0
    order = replace(order_of(asked), clips=(0.1,), round=1, cells=0, trains=True)
    sums = [
        trained(node_of(each.to_json(), "", "cpu", None), order.arrays, replace(order, task=each.to_json()))[0]
        for each in (asked, task(tmp_path / "after", arrays))
    ]
    for name in sums[0]:
        np.testing.assert_array_equal(sums[0][name], sums[1][name])


def test_synthetic_records_are_divided_too():
    section = SyntheticData(name="synthetic", clients=3, records_per_client=10)
    whole = section.load(1, None)
    trains, held_out = whole.held_out(0.25, 1)
    assert (trains.sizes(np.arange(3)).tolist(), held_out.sizes(np.arange(3)).tolist()) == ([7] * 3, [3] * 3)
    both = np.concatenate([each.gather(np.array([2])).inputs for each in (trains, held_out)], axis=1)
    np.testing.assert_array_equal(both, whole.gather(np.array([2])).inputs)


def test_dummies_are_evaluated_and_do_not_count(tmp_path):
    asked = task(tmp_path, clean())
    some = order_of(asked, counted=np.arange(UNITS) < 4)
    assert (evaluated(asked, some)[0] == evaluated(asked, order_of(asked, range(4)))[0]).all()
    assert evaluated(asked, some)[1].reported == [0, 1, 2, 3]


def test_a_node_evaluates_only_as_its_task_says(tmp_path):
    asked = task(tmp_path, clean())
    with pytest.raises(DeploymentError, match="does not match the task"):
        evaluated(asked, replace(order_of(asked), cells=3))
    with pytest.raises(DeploymentError, match="the task for none"):
        side_sum_of(asked.model_copy(update={"evaluation": None}).to_json(), "", "cpu")
    with pytest.raises(DataError, match=r"no column 'colour'; evaluation.by must be one of"):
        evaluated(task(tmp_path, clean(), by="colour"))
