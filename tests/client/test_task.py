"""The task survives its journey, and nothing else passes for one."""

import json

import pytest

from fedamp.client.task import ClientTask
from fedamp.data.sections import DigitsData, HuggingFaceData, KnownImages, NpzData
from fedamp.federation.submodels import NoSubmodels
from fedamp.federation.training import Client
from fedamp.models.section import Model

TASK = ClientTask(
    model=Model(name="mlp", hidden=(8,)),
    input_shape=(8, 8),
    num_classes=10,
    client=Client(steps=5),
    unit="client",
    submodels=NoSubmodels(),
    split_seed=2**63 - 1,
    linf_coordinates=0,
    data=DigitsData(name="digits", clients=10),
    data_seed=3,
)


def test_round_trip() -> None:
    assert ClientTask.from_json(TASK.to_json()) == TASK
    assert TASK.model_copy(update={"unit": "sample"}).to_json() != TASK.to_json()


OTHER_VALUES = [
    ({"unit": "household"}, "unit: .*'household'"),
    ({"num_classes": "10"}, "num_classes: .*valid integer"),
    ({"input_shape": [8, 8.5]}, "input_shape.1: "),
    ({"extra": 1}, "extra: no such key"),
    ({"version": 1}, "version: .* 4, got 1"),
]


def test_other_values_are_refused(subtests: pytest.Subtests) -> None:
    for change, message in OTHER_VALUES:
        with subtests.test(message), pytest.raises(ValueError, match=message):
            ClientTask.from_json(json.dumps({**json.loads(TASK.to_json()), **change}))


OTHER_TEXTS = ["", "[]", "{}", '{"model": {}}']


def test_other_texts_are_refused(subtests: pytest.Subtests) -> None:
    for text in OTHER_TEXTS:
        with (
            subtests.test(text),
            pytest.raises(ValueError, match=r"missing|Invalid JSON|Input should be an object"),
        ):
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
