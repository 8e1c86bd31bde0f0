"""Hugging Face data sets, from local folders in both of their formats, and by name with the download replaced."""

from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pytest

from fedamp.data.sections import HuggingFaceData
from fedamp.errors import DataError

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


def test_images_come_scaled_with_channels_first_and_by_writer(folder, content):
    config = HuggingFaceData(
        name="huggingface",
        dataset=str(folder),
        partition={"scheme": "natural", "column": "writer"},
        test_is_public=True,
    )
    dataset = config.load(0, HERE)
    assert dataset.input_shape == (1, 5, 4)
    assert config.count_clients(HERE) == dataset.num_clients == 3
    assert config.count_records(HERE) == 30
    for client, writer in enumerate(["f01", "f02", "f03"]):
        mine = np.flatnonzero(content["writer"][:30] == writer)
        cohort = dataset.gather(np.array([client]))
        assert np.array_equal(cohort.inputs[0, :, 0], content["image"][mine].astype(np.float32) / np.float32(255))
        assert np.array_equal(cohort.labels[0], content["label"][mine])
    assert np.array_equal(dataset.test()[1], content["label"][30:])


def test_a_name_is_one_of_the_hub(splits, tmp_path, monkeypatch):
    """Its files are in a folder with the name of their configuration, and one that is no split beside them."""
    (tmp_path / "digits").mkdir()
    for name, split in {**splits, "test-evaluated": splits["train"]}.items():
        split.to_parquet(tmp_path / "digits" / f"{name}-00000-of-00001.parquet")
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **keys: asked.append(name) or tmp_path)
    dataset = HuggingFaceData(name="huggingface", dataset="someone/digits", clients=4, test_is_public=True).load(
        0, HERE
    )
    assert asked == ["someone/digits"]
    assert (dataset.num_clients, dataset.input_shape, len(dataset.test()[1])) == (4, (1, 5, 4), 10)


def test_without_a_test_split_a_part_is_kept_out(folder):
    keys = {"test_split": None, "test_fraction": 0.1, "test_is_public": True, "classes": 3, "shape": (1, 5, 4)}
    config = HuggingFaceData(name="huggingface", dataset=str(folder), clients=2, **keys)
    assert len(config.load(0, HERE).test()[1]) == 3
    assert config.count_records(HERE) == 27


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
    keys = {
        "name": "huggingface",
        "dataset": str(tmp_path / "set"),
        "test_split": None,
        "test_fraction": 0.01,
        "classes": 2,
        "test_is_public": True,
    }

    shapes = {"image": (3, 2, 3), "deep": (1, 2, 3), "normal": (5,), "count": (3,), "bytes": None}

    def inputs(column, **more):
        config = HuggingFaceData(**keys, clients=396, features=column, shape=shapes[column], **more)
        return config.load(0, HERE).gather(np.arange(396)).inputs[:, 0]

    assert 0.95 < inputs("normal").std() < 1.05  # 1980 draws: deviation 0.016
    for column in ("count", "bytes"):
        assert inputs(column).max() > 190
    for column in ("image", "deep"):
        assert 0.99 < inputs(column).max() <= 1
    stored = {image.transpose(2, 0, 1).astype(np.float32).tobytes() for image in content["image"]}
    assert {row.tobytes() for row in inputs("image", scale=1)} <= stored
    assert inputs("normal", scale=255).std() < 0.005


WRONG = [
    ({"features": "img"}, "no column 'img'; data.features must be one of image, label, writer"),
    ({"label": "digit"}, "no column 'digit'; data.label must be one of image, label, writer"),
    ({"label": "writer"}, "column 'writer' must hold numbers or equally long lists of numbers"),
    ({"features": "writer"}, "column 'writer' must hold numbers or equally long lists of numbers (inputs: or images)"),
    (
        {"test_split": "validation", "test_is_public": True},
        "no split 'validation'; it has ",
    ),
    (
        {"partition": {"scheme": "natural", "column": "who"}, "clients": None, "classes": 3, "shape": (1, 5, 4)},
        "no column 'who'",
    ),
    ({"shape": (28, 28)}, "people's images must not decide their shape; expected: data.shape: [channels, height"),
]


def test_wrong_keys_are_refused_in_one_line(folder, subtests):
    for keys, message in WRONG:
        with subtests.test(message):
            with pytest.raises(DataError) as refused:
                HuggingFaceData(**{"name": "huggingface", "dataset": str(folder), "clients": 2, **keys}).load(0, HERE)
            assert message in str(refused.value)
            assert "\n" not in str(refused.value)


def test_a_name_that_does_not_load_is_refused_in_one_line(monkeypatch):
    def fail(path, **keys):
        raise ConnectionError("Couldn't reach the hub\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        DataError,
        match=r"'some/where': not a folder, and not a hub data set .*\(ConnectionError: Couldn't reach the hub ",
    ):
        HuggingFaceData(name="huggingface", dataset="some/where", clients=2).load(0, HERE)
