"""What the server gets from a node whose folder holds hostile records: sums, and texts that tell nothing about them."""

import sys
from types import ModuleType

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from fedamp.client.app import app
from fedamp.engines import flower
from fedamp.models.networks import initial_parameters
from tests.client.federation import LOGISTIC, UNITS, order_of, records_in_a_folder, task_of_a_folder, write_folder
from tests.extensions.secure.consortium import PLAIN_NOISE, Consortium

CLIP, VICTIM = 0.1, 2


def arrays(kind: str) -> dict[str, np.ndarray]:
    """Records of all units; one of the victim is hostile."""
    found, place = records_in_a_folder(), 5 * VICTIM + 1
    if kind == "nan":
        found["x"][place, 1] = np.nan
    elif kind == "label":
        found["y"][place] = 7
    elif kind == "stranger":
        found["client"][place] = 10**9
    return found


def test_what_a_node_tells_is_one_constant_text_whatever_the_record(tmp_path, monkeypatch, caplog):
    """Neighbouring data sets: texts and keys are the same, or one constant text more. Its own log says who and why."""
    monkeypatch.setitem(sys.modules, "flwr.supernode.runtime.run_clientapp", ModuleType("run_clientapp"))
    told, task = {}, task_of_a_folder()
    for kind in ("clean", "nan", "label", "stranger"):
        write_folder(tmp_path / kind, arrays(kind))
        parameters = initial_parameters(LOGISTIC, (5,), 3, seed=1)
        order = order_of(list(range(UNITS)), task, clips=(CLIP,), arrays=parameters)
        flower.identify()
        message, context = Message(order.content(), 2, "train"), Context(1, 2, {}, RecordDict(), {})
        context.node_config["data"] = str(tmp_path / kind)
        caplog.clear()
        told[kind] = app._answer(order, message, context)  # as it is, which seals hide
        moved = np.sqrt(sum(np.square(total - told["clean"].sums[n]).sum() for n, total in told[kind].sums.items()))
        lost = kind in ("nan", "label")
        assert moved <= CLIP * (1 if lost else 2) * (1 + 1e-6)
        assert told[kind].text == lost * "a unit's records cannot be trained on; the node's log says more"
        assert told[kind].reported == list(range(UNITS))
        assert told[kind].failed == lost
        said = [line for line in caplog.messages if "cannot train" in line]
        assert len(said) == lost
        file = tmp_path / kind / "train.npz"
        part = {"nan": "column 'x': the inputs", "label": "column 'y': the label"}.get(kind)
        assert all(line.startswith(f"client {VICTIM} cannot train: {file}: {part} of record 11 ") for line in said)


@pytest.mark.slow
def test_under_secure_aggregation_the_sum_moves_by_one_clip_and_all_nodes_answer(tmp_path):
    sums = {}
    for kind in ("clean", "nan", "label", "stranger"):
        write_folder(tmp_path / kind / "records", arrays("clean"))
        write_folder(tmp_path / kind / "node", arrays(kind))
        (tmp_path / kind / "records" / "federation.json").unlink()
        place = f"path: {tmp_path / kind / 'records'}, classes: 3"
        data = f"data={{name: npz, {place}, partition: {{scheme: natural}}}}"
        hosts = {"one": "0-1", "two": "2-3", "three": "4-5"}
        terms = "aggregation={scheme: secure, dropped: 0.0, colluding: 0.0}"
        consortium = Consortium(tmp_path / kind, PLAIN_NOISE, "check_in={scheme: all}", terms, data, hosts=hosts)
        for context in consortium.contexts.values():
            context.node_config["data"] = str(tmp_path / kind / "node")
        sums[kind] = consortium.play().collected.sums
        assert len([name for exchange, name, _ in consortium.seen if exchange == "masked"]) == len(hosts)
        moved = np.sqrt(sum(np.square(total - sums["clean"][name]).sum() for name, total in sums[kind].items()))
        clips = (
            2 if kind == "stranger" else 1
        )  # the victim has one record less: an update leaves, and another one comes
        assert (moved > 0) == (kind != "clean")
        assert moved <= clips * 0.5 * (1 + 1e-3), "privacy.clip, and the rounding to the grid of words"
