"""The task survives its journey, and nothing else passes for one."""

import json

import pytest

from fedamp.client.task import ClientTask
from fedamp.data.sections import HuggingFaceData, KnownImages, NpzData
from fedamp.models.model import Model
from tests.client.federation import task_of

TASK = task_of(split_seed=2**63 - 1)


def test_round_trip() -> None:
    assert ClientTask.from_json(TASK.to_json()) == TASK
    assert TASK.model_copy(update={"unit": "sample"}).to_json() != TASK.to_json()


REFUSED = [
    ({"unit": "household"}, "unit: .*'household'"),
    ({"num_classes": "10"}, "num_classes: .*valid integer"),
    ({"input_shape": [8, 8.5]}, "input_shape.1: "),
    ({"extra": 1}, "extra: no such key"),
    ({"version": 1}, "version: .* 5, got 1"),
    ("", "Invalid JSON"),
    ("[]", "Input should be an object"),
    ("{}", "missing"),
    ('{"model": {}}', "missing"),
]


def test_other_values_and_texts_are_refused(subtests: pytest.Subtests) -> None:
    for change, message in REFUSED:
        text = change if isinstance(change, str) else json.dumps({**json.loads(TASK.to_json()), **change})
        with subtests.test(text[:20] + message), pytest.raises(ValueError, match=message):
            ClientTask.from_json(text)


PLACES = [
    (NpzData(name="npz", path="/srv/data"), {"path": ""}),
    (HuggingFaceData(name="huggingface", dataset="/srv/data"), {"dataset": ""}),
    (HuggingFaceData(name="huggingface", dataset="ylecun/mnist"), {"dataset": "ylecun/mnist"}),
    (KnownImages(name="fashion-mnist"), {"path": None}),
    (TASK.data, {}),
]


def test_a_task_for_other_machines_names_no_folder_of_the_server(subtests: pytest.Subtests) -> None:
    model = Model(name="mine:net", initial="/srv/model.safetensors", folder="/srv")
    for section, left in PLACES:
        with subtests.test(section.name):
            task = TASK.model_copy(update={"data": section, "model": model})
            told = task.without_places()
            assert "/srv" not in told.to_json()
            assert left.items() <= told.data.model_dump().items()
            assert ClientTask.from_json(told.to_json()) == told
