"""Hugging Face data sets, from local folders in both of their formats, and by name with the download replaced."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedamp.data import count_clients, count_records, load
from fedamp.data.sections import HuggingFaceData
from fedamp.errors import DataError

datasets = pytest.importorskip("datasets")
HERE = Path("/")


@pytest.fixture(scope="module")
def content():
    generator = np.random.default_rng(0)
    return {
        "image": generator.integers(0, 256, (40, 5, 4), dtype=np.uint8),
        "label": np.arange(40) % 3,
        "writer": generator.choice(["f01", "f02", "f03"], 40),
    }


@pytest.fixture(scope="module")
def splits(content):
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(num_classes=3),
            "writer": datasets.Value("string"),
        }
    )
    whole = datasets.Dataset.from_dict({name: list(values) for name, values in content.items()}, features=features)
    return datasets.DatasetDict({"train": whole.select(range(30)), "test": whole.select(range(30, 40))})


@pytest.fixture(scope="module", params=["saved", "repository"])
def folder(request, splits, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "saved":
        splits.save_to_disk(folder)
    else:
        (folder / "data").mkdir()
        for name, split in splits.items():
            split.to_parquet(folder / "data" / f"{name}-00000-of-00001.parquet")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")


def test_images_come_scaled_with_channels_first_and_by_writer(folder, content):
    config = HuggingFaceData(
        name="huggingface", dataset=str(folder), partition={"scheme": "natural", "column": "writer"}
    )
    dataset = load(config, 0, HERE)
    assert dataset.input_shape == (1, 5, 4)
    assert count_clients(config, HERE) == dataset.num_clients == 3
    assert count_records(config, HERE) == 30
    for client, writer in enumerate(["f01", "f02", "f03"]):
        mine = np.flatnonzero(content["writer"][:30] == writer)
        cohort = dataset.gather(np.array([client]))
        assert np.array_equal(cohort.inputs[0, :, 0], content["image"][mine].astype(np.float32) / np.float32(255))
        assert np.array_equal(cohort.labels[0], content["label"][mine])
    assert np.array_equal(dataset.test()[1], content["label"][30:])


def test_a_hub_name_goes_through_flwr_datasets(splits, monkeypatch):
    pytest.importorskip("flwr_datasets")
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda path, name=None: asked.append(path) or splits)
    dataset = load(HuggingFaceData(name="huggingface", dataset="someone/digits", clients=4), 0, HERE)
    assert asked == ["someone/digits"]
    assert (dataset.num_clients, dataset.input_shape, len(dataset.test()[1])) == (4, (1, 5, 4), 10)


def test_without_a_test_split_a_part_is_kept_out(folder):
    config = HuggingFaceData(name="huggingface", dataset=str(folder), clients=2, test_split=None, test_fraction=0.1)
    assert len(load(config, 0, HERE).test()[1]) == 3
    assert count_records(config, HERE) == 27


def test_colours_and_vectors(tmp_path):
    generator = np.random.default_rng(1)
    pixels = generator.integers(0, 256, (6, 2, 3, 3), dtype=np.uint8)
    vectors = generator.normal(size=(6, 7)).astype(np.float32)
    datasets.Dataset.from_dict(
        {"image": list(pixels), "vector": vectors.tolist(), "label": [0, 1] * 3},
        features=datasets.Features(
            {
                "image": datasets.Image(),
                "vector": datasets.Sequence(datasets.Value("float32")),
                "label": datasets.Value("int64"),
            }
        ),
    ).save_to_disk(tmp_path / "set")
    keys = {"name": "huggingface", "dataset": str(tmp_path / "set"), "test_split": None, "test_fraction": 0.01}
    colours = load(HuggingFaceData(**keys, scale=1), 0, HERE).gather(np.arange(5)).inputs[:, 0]
    assert all(any(np.array_equal(row, image.transpose(2, 0, 1)) for image in pixels) for row in colours)
    numbers = load(HuggingFaceData(**keys, scale=1, features="vector"), 0, HERE).gather(np.arange(5)).inputs[:, 0]
    assert all(any(np.allclose(row, vector) for vector in vectors) for row in numbers)


@pytest.mark.parametrize("format_", [None, "numpy"])
def test_only_images_are_scaled_unless_asked(tmp_path, format_):
    """A column of N(0, 1) keeps its deviation; 1 / 255 of it, 0.0039, is what it had."""
    generator = np.random.default_rng(2)
    content = {
        "normal": generator.normal(size=(400, 5)).tolist(),
        "count": generator.integers(0, 200, (400, 3)).tolist(),
        "bytes": generator.integers(0, 256, (400, 2, 2)).tolist(),
        "image": list(generator.integers(0, 256, (400, 2, 3, 3), dtype=np.uint8)),
        "deep": list(generator.integers(0, 2**16, (400, 2, 3), dtype=np.uint16)),
        "label": [0, 1] * 200,
    }
    features = {
        "normal": datasets.Sequence(datasets.Value("float32")),
        "count": datasets.Sequence(datasets.Value("uint8")),
        "bytes": datasets.Array2D((2, 2), "uint8"),
        "image": datasets.Image(),
        "deep": datasets.Image(),
        "label": datasets.Value("int64"),
    }
    split = datasets.Dataset.from_dict(content, features=datasets.Features(features)).with_format(format_)
    split.save_to_disk(tmp_path / "set")
    keys = {"name": "huggingface", "dataset": str(tmp_path / "set"), "test_split": None, "test_fraction": 0.01}

    def inputs(column, **more):
        config = HuggingFaceData(**keys, clients=396, features=column, **more)
        return load(config, 0, HERE).gather(np.arange(396)).inputs[:, 0]

    assert 0.95 < inputs("normal").std() < 1.05  # 1980 draws: deviation 0.016
    for column in ("count", "bytes"):
        assert inputs(column).max() > 190
    for column in ("image", "deep"):
        assert 0.99 < inputs(column).max() <= 1
    assert inputs("image").shape == (396, 3, 2, 3)
    assert inputs("deep").shape == (396, 1, 2, 3)
    assert inputs("image", scale=1).max() > 250
    assert inputs("normal", scale=255).std() < 0.005


WRONG = [
    ({"features": "img"}, "no column 'img'; data.features must be one of image, label, writer"),
    ({"label": "digit"}, "no column 'digit'; data.label must be one of image, label, writer"),
    ({"label": "writer"}, "labels must be integers 0, 1, 2, ..."),
    ({"features": "writer"}, "column 'writer' must hold images or (lists of) numbers"),
    ({"test_split": "validation"}, "no split 'validation'; it has train, test (data.test_split: null keeps"),
    ({"partition": {"scheme": "natural", "column": "who"}, "clients": None}, "no column 'who'"),
    ({"shape": (28, 28)}, "one input has 20 numbers (stored as [1, 5, 4]), data.shape [28, 28] needs 784"),
]


def test_wrong_keys_are_refused_in_one_line(folder, subtests):
    for keys, message in WRONG:
        with subtests.test(message):
            with pytest.raises(DataError) as refused:
                load(HuggingFaceData(**{"name": "huggingface", "dataset": str(folder), "clients": 2, **keys}), 0, HERE)
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)


def test_a_name_that_does_not_load_is_refused_in_one_line(monkeypatch):
    def fail(path, name=None):
        raise ConnectionError("Couldn't reach the hub\nand a long story")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        DataError, match=r"'some/where': not a folder, and not a hub data set .*\(Couldn't reach the hub\)$"
    ):
        load(HuggingFaceData(name="huggingface", dataset="some/where", clients=2), 0, HERE)


def test_without_the_extra_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'fedamp\[huggingface\]'$"):
        count_clients(HuggingFaceData(name="huggingface", dataset="ylecun/mnist", clients=2), HERE)
