"""What the server gets from a node whose folder holds hostile records: sums, and texts that tell nothing about them."""

import json
import sys
from types import ModuleType

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from fedamp.client.app import app
from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import NpzData
from fedamp.engines import flower
from fedamp.federation.training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from tests.client import federation
from tests.strategies.consortium import PLAIN_NOISE, Consortium

UNITS, RECORDS, CLIP, VICTIM = 6, 5, 0.1, 2


def arrays(kind: str) -> dict[str, np.ndarray]:
    """Records of all units; one of the victim is hostile."""
    generator = np.random.default_rng(5)
    owners = np.repeat(np.arange(UNITS), RECORDS)
    x = generator.normal(size=(len(owners), 5)).astype(np.float32)
    found = {"x": x, "y": generator.integers(0, 3, len(owners)), "client": owners}
    place = VICTIM * RECORDS + 1
    if kind == "nan":
        found["x"][place, 1] = np.nan
    elif kind == "label":
        found["y"][place] = 7
    elif kind == "stranger":
        found["client"][place] = 10**9
    return found


def task_in(folder, kind: str):
    folder.mkdir()
    np.savez(folder / "train.npz", **arrays(kind))
    about = {"clients": UNITS, "hosted": list(range(UNITS)), "classes": 3}
    (folder / "federation.json").write_text(json.dumps(about))
    section = NpzData(name="npz", path="elsewhere", partition=NaturalPartition(scheme="natural"))
    return federation.task_of(model=MODEL, client=LocalTraining(steps=1), data=section)


MODEL = Model(name="logistic")


@pytest.mark.parametrize("kind", ["nan", "label", "stranger"])
def test_what_a_node_tells_is_one_constant_text_whatever_the_record(kind, tmp_path, monkeypatch, caplog):
    """Neighbouring data sets: texts and keys are the same, or one constant text more. Its own log says who and why."""
    monkeypatch.setitem(sys.modules, "flwr.supernode.runtime.run_clientapp", ModuleType("run_clientapp"))
    told = {}
    for each in ("clean", kind):
        task = task_in(tmp_path / each, each)
        parameters = initial_parameters(MODEL, (5,), 3, seed=1)
        order = federation.order_of(list(range(UNITS)), task, clips=(CLIP,), arrays=parameters)
        flower.identify()
        message, context = Message(order.content(), 2, "train"), Context(1, 2, {}, RecordDict(), {})
        context.node_config["data"] = str(tmp_path / each)
        told[each] = app._answer(order, message, context)  # as it is, which seals hide
    moved = np.sqrt(sum(np.square(told[kind].sums[n] - told["clean"].sums[n]).sum() for n in told["clean"].sums))
    assert moved <= CLIP * (1 if kind != "stranger" else 2) * (1 + 1e-6)
    assert told["clean"].text == ""
    expected = "" if kind == "stranger" else "a unit's records cannot be trained on; the node's log says more"
    assert told[kind].text == expected
    assert told[kind].reported == list(range(UNITS))
    assert told[kind].failed == (kind != "stranger")
    said = [line for line in caplog.messages if "cannot train" in line]
    assert len(said) == (kind != "stranger")
    assert all(line.startswith(f"client {VICTIM} cannot train: a record is not finite, ") for line in said)


@pytest.mark.parametrize("kind", ["nan", "label", "stranger"])
def test_under_secure_aggregation_the_sum_moves_by_one_clip_and_all_nodes_answer(kind, tmp_path):
    sums = {}
    for each in ("clean", kind):
        (tmp_path / each / "records").mkdir(parents=True)
        np.savez(tmp_path / each / "records" / "train.npz", **arrays("clean"))
        task_in(tmp_path / each / "node", each)
        place = f"path: {tmp_path / each / 'records'}, classes: 3"
        data = f"data={{name: npz, {place}, partition: {{scheme: natural}}}}"
        hosts = {"one": "0-1", "two": "2-3", "three": "4-5"}
        terms = "aggregation={scheme: secure, dropped: 0.0, colluding: 0.0}"
        consortium = Consortium(tmp_path / each, PLAIN_NOISE, "check_in={scheme: all}", terms, data, hosts=hosts)
        for context in consortium.contexts.values():
            context.node_config["data"] = str(tmp_path / each / "node")
        sums[each] = consortium.play().collected.sums
        assert len([name for exchange, name, _ in consortium.seen if exchange == "masked"]) == len(hosts)
    moved = np.sqrt(sum(np.square(sums[kind][name] - sums["clean"][name]).sum() for name in sums["clean"]))
    clips = 2 if kind == "stranger" else 1  # the victim has one record less: an update leaves, and another one comes
    assert 0 < moved <= clips * 0.5 * (1 + 1e-3), "privacy.clip, and the rounding to the grid of words"
