"""Hugging Face data sets: local folders in both formats, by name with the download replaced, and folders of images."""

import struct
import unicodedata
from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pytest
from PIL import Image

from fedamp.data.sections import HuggingFaceData
from fedamp.errors import DataError
from tests.data.test_tabular import of_scenario

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


def loaded(folder, **keys):
    """Each record is a unit, in the order of the files."""
    data = {"name": "huggingface", "dataset": str(folder), "classes": ["a", "b"], "clients": 1, "shape": [1, 2, 2]}
    return of_scenario({key: value for key, value in (data | keys).items() if value is not None}).by_record()


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def grey(value, shape=(2, 2)):
    return np.full(shape, value, np.uint8)


def test_the_top_folder_alone_says_the_split(tmp_path):
    """Classes ``test``, ``eval`` and ``train`` sent training images to the public test set, and the other way."""
    classes = ["eval", "pre-test", "test", "train", "training"]
    for split, offset in (("train", 0), ("test", 100)):
        for number, name in enumerate(classes):
            save(tmp_path / split / name / f"test-{number}.png", grey(offset + number))
    save(tmp_path / "backup" / "train" / "test" / "0.png", grey(255))
    dataset = loaded(tmp_path, classes=5, test_is_public=True)
    cohort = dataset.gather(np.arange(dataset.num_clients))
    assert np.rint(cohort.inputs[:, 0, 0, 0, 0] * 255).tolist() == [0, 1, 2, 3, 4]
    assert cohort.labels[:, 0].tolist() == [0, 1, 2, 3, 4]
    inputs, labels = dataset.test()
    assert np.rint(inputs[:, 0, 0, 0] * 255).tolist() == [100, 101, 102, 103, 104]
    assert labels.tolist() == [0, 1, 2, 3, 4]


def test_classes_are_mapped_by_name(tmp_path):
    """People's folders decide no class: declared words do, or the public test set. A saved set has another order."""
    for split, names in (("train", "abc"), ("test", "bc")):
        for name in names:
            save(tmp_path / "folders" / split / name / "0.png", grey(ord(name)))
    dataset = loaded(tmp_path / "folders", classes=3, test_is_public=True)
    assert dataset.test()[1].tolist() == [0, 1]
    assert dataset.by_record().sizes(np.arange(3)).tolist() == [0, 1, 1], "class a is none of the public test set"
    assert loaded(tmp_path / "folders", classes=None, test_is_public=True).num_classes == 2
    with pytest.raises(DataError, match=r"train: people's images must not decide the classes; expected: data\.classes"):
        loaded(tmp_path / "folders", classes=3)
    declared = loaded(tmp_path / "folders", classes=["c", "b", "a"], test_is_public=True)
    assert declared.test()[1].tolist() == [1, 0]
    assert declared.gather(np.arange(3)).labels.ravel().tolist() == [2, 1, 0]
    orders = {"train": ["a", "b", "c"], "test": ["c", "a", "b"]}
    splits = {}
    for split, names in orders.items():
        features = datasets.Features({"x": datasets.Value("float32"), "label": datasets.ClassLabel(names=names)})
        splits[split] = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0], "label": list("abc")}, features=features)
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    (tmp_path / "files").mkdir()
    for split, rows in splits.items():
        rows.to_parquet(tmp_path / "files" / f"{split}.parquet")
    for name in ("saved", "files"):
        dataset = loaded(tmp_path / name, features="x", classes=3, shape=None, test_is_public=True)
        assert dataset.test()[1].tolist() == dataset.gather(np.arange(3)).labels.ravel().tolist() == [0, 1, 2]


def test_a_class_that_is_not_declared_is_refused_in_the_test_set(tmp_path):
    for split, names in (("train", "ab"), ("test", "az")):
        for name in names:
            save(tmp_path / split / name / "0.png", grey(1))
    with pytest.raises(
        DataError, match=r"test/z/0\.png: column 'label': the label of record 1 is wrong; labels must be one of a, b"
    ):
        loaded(tmp_path, test_is_public=True)


def test_classes_by_name_are_declared_on_a_deployments_node(tmp_path):
    """Another machine may have another order."""
    features = {
        "x": datasets.Value("float32"),
        "y": datasets.ClassLabel(names=["b", "a"]),
        "client": datasets.Value("int64"),
    }
    rows = {"x": [0.0, 1.0], "y": [0, 1], "client": [0, 1]}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).to_parquet(tmp_path / "train.parquet")
    (tmp_path / "federation.json").write_text('{"clients": 2, "hosted": [0, 1], "classes": 2}')
    data = {"name": "parquet", "path": str(tmp_path), "partition": {"scheme": "natural"}}
    with pytest.raises(DataError, match=r"classes have an order \(b, a\) .*; expected: data\.classes, the list"):
        of_scenario(data)
    assert of_scenario(data | {"classes": ["a", "b"]}).gather(np.arange(2)).labels.ravel().tolist() == [1, 0]


@pytest.mark.parametrize("copies", [1, 5])
def test_the_shape_of_images_is_declared_or_that_of_a_public_test_set(tmp_path, copies):
    """No person's image decides it, even if hers come first or are most."""
    for number in range(copies):
        save(tmp_path / "train" / "a" / f"{number}.png", grey(7, (3, 3)))
    save(tmp_path / "train" / "b" / "9.png", grey(255))
    with pytest.raises(DataError, match=r"people's images must not decide their shape; expected: data\.shape"):
        loaded(tmp_path, shape=None)
    save(tmp_path / "test" / "a" / "0.png", grey(1))
    for keys in ({"shape": [1, 2, 2]}, {"shape": None, "test_is_public": True}):
        dataset = loaded(tmp_path, **keys)
        assert dataset.input_shape == (1, 2, 2)
        assert dataset.sizes(np.arange(copies + 1)).tolist() == [0] * copies + [1]


def test_unsigned_images_of_32_bits_have_their_full_range(tmp_path):
    for value in (2**32 - 1, 2**31):
        # Tags in the order of their numbers: width, height, bits, ..., the format of a sample (1: unsigned).
        tags = {256: 2, 257: 2, 258: 32, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: 16, 339: 1}
        entries = b"".join(struct.pack("<HHII", tag, 4, 1, number) for tag, number in tags.items())
        content = b"II*\0" + struct.pack("<5I", 24, *[value] * 4) + struct.pack("<H", len(tags)) + entries + bytes(4)
        (tmp_path / "train" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / "a" / f"{value}.tiff").write_bytes(content)
    found = loaded(tmp_path).gather(np.arange(2)).inputs[:, 0, 0, 0, 0]
    assert sorted(found.tolist()) == pytest.approx([0.5, 1.0], rel=1e-6)


@pytest.mark.parametrize("bad", ["cut short", "text", "other size", "colours", "empty"])
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_image_takes_away_its_own_unit(tmp_path, bad, first):
    for number in range(5):
        save(tmp_path / "train" / "ab"[number % 2] / f"{number}.png", grey(40 * number))
    path = tmp_path / "train" / "a" / ("-.png" if first else "9.png")
    if bad == "other size":
        save(path, grey(7, (3, 2)))
    elif bad == "colours":
        save(path, grey(7, (2, 2, 3)))
    else:
        whole = (tmp_path / "train" / "a" / "0.png").read_bytes()
        path.write_bytes({"cut short": whole[:-30], "text": b"no image", "empty": b""}[bad])
    dataset = loaded(tmp_path)
    assert sorted(dataset.sizes(np.arange(6)).tolist()) == [0, 1, 1, 1, 1, 1]
    assert dataset.input_shape == (1, 2, 2)
    cohort = dataset.gather(np.arange(6))
    assert sorted(np.rint(cohort.inputs[cohort.sizes == 1][:, 0, 0, 0, 0] * 255)) == [0, 40, 80, 120, 160]


HALF = {
    "1-bytes.png": grey(51),
    "2-deep.png": np.full((2, 2), 13107, np.uint16),
    "3-deep.tiff": np.full((2, 2), 13107, np.uint16),
    "4-long.tiff": np.full((2, 2), 429496729, np.int32),
    "5-float.tiff": np.full((2, 2), 0.2, np.float32),
    "6-truth.png": np.full((2, 2), 1, bool),
}


def test_each_image_is_scaled_by_its_own_type(tmp_path, subtests):
    """The first one's type decided the divisor of all: inputs reached 257, or went black."""
    for order in (1, -1):
        for place, (name, pixels) in enumerate(list(HALF.items())[::order]):
            save(tmp_path / str(order) / "train" / "a" / f"{place}{Path(name).suffix}", pixels)
        dataset = loaded(tmp_path / str(order))
        found = dataset.gather(np.arange(len(HALF))).inputs[:, 0, 0, 0, 0][::order]
        expected = [0.2, 0.2, 0.2, 0.2, 0.2, 1.0]
        with subtests.test(order):
            # 2^31 - 1 is the largest of a signed type; float32 rounds to 24 bits.
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    raw = loaded(tmp_path / "1", scale=1.0).gather(np.arange(2)).inputs
    assert raw[:, 0, 0, 0, 0].tolist() == [51, 13107]


def test_a_float_image_beyond_one_is_no_image(tmp_path):
    for number, value in enumerate((0.0, 1.0, 1.5, -0.1, np.nan)):
        save(tmp_path / "train" / "a" / f"{number}.tiff", np.full((2, 2), value, np.float32))
    assert loaded(tmp_path).sizes(np.arange(5)).tolist() == [1, 1, 0, 0, 0]
    assert loaded(tmp_path, scale=1.5).sizes(np.arange(5)).tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("declared", ["NFC", "NFD", "by the test set"])
@pytest.mark.parametrize("written", ["NFC", "NFD"])
def test_a_folder_is_its_class_in_either_form_of_unicode(tmp_path, written, declared):
    """macOS wrote ``é`` as two letters; the folders' images had no class then."""
    for split, form in (("train", written), ("test", "NFC")):
        for number, name in enumerate(("café", "thé")):
            save(tmp_path / split / unicodedata.normalize(form, name) / "0.png", grey(number))
    classes = None if declared[0] == "b" else [unicodedata.normalize(declared, name) for name in ("café", "thé")]
    dataset = loaded(tmp_path, classes=classes, test_is_public=True)
    assert dataset.gather(np.arange(2)).labels.tolist() == [[0], [1]]
    assert dataset.test()[1].tolist() == [0, 1]


def test_an_image_that_cannot_be_trained_on_is_told_by_its_file(tmp_path):
    save(tmp_path / "train" / "a" / "0.png", grey(1))
    save(tmp_path / "train" / "a" / "1.png", grey(1, (3, 2)))
    (tmp_path / "train" / "b").mkdir()
    (tmp_path / "train" / "b" / "2.png").write_text("no image")
    dataset = loaded(tmp_path)
    for number, name in ((1, "a/1.png"), (2, "b/2.png")):
        found = f"the inputs of record {number} are others than an image of shape [1, 2, 2] that can be read"
        assert dataset.why(number) == f"{tmp_path / 'train' / name}: column 'image': {found}"


def test_other_things_in_a_folder_of_images(tmp_path):
    save(tmp_path / "train" / "a" / "deeper" / "0.png", grey(1))
    (tmp_path / "train" / "a" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "a" / ".hidden.png").write_text("no image")
    assert loaded(tmp_path).num_clients == 1
    save(tmp_path / "train" / "1.png", grey(1))
    with pytest.raises(DataError, match=r"1\.png: expected: a folder for each class, train/CLASS/1\.png"):
        loaded(tmp_path)
    (tmp_path / "train" / "1.png").unlink()
    (tmp_path / "train" / "metadata.csv").write_text("file_name,writer\n")
    with pytest.raises(DataError, match=r"metadata\.csv: is not read"):
        loaded(tmp_path)


def test_a_name_with_a_pattern_or_of_another_folder_is_not_looked_for(tmp_path, monkeypatch):
    save(tmp_path / "here" / "run1" / "train" / "a" / "0.png", grey(1))
    monkeypatch.chdir(tmp_path / "here")
    for name in ("run1", "../here/run1", "/nowhere/run1"):
        with pytest.raises(DataError, match="is neither a folder beside the scenario nor a name on the hub"):
            HuggingFaceData(name="huggingface", dataset=name).load(0, tmp_path)


def test_columns_by_pattern_are_in_the_order_of_their_names(tmp_path):
    """The order in a file changes nothing, and neither label nor owner is an input."""
    folder = tmp_path / "fields"
    folder.mkdir()
    (folder / "train.csv").write_text("soil_b,yield,soil_a,farm,rain\n2,1,1,x,7\n4,0,3,y,8\n6,1,5,x,9\n")
    section = {"name": "csv", "path": str(folder), "label": "yield", "classes": 2, "test_is_public": False}
    section |= {"partition": {"scheme": "natural", "column": "farm"}}

    def opened(*features):
        return of_scenario(section | {"features": list(features)})

    dataset = opened("rain", "soil_*")
    assert dataset.input_shape == (3,)
    records = np.concatenate([dataset.gather(np.array([client])).inputs[0] for client in (0, 1)])
    assert {(7, 1, 2), (8, 3, 4), (9, 5, 6)} <= set(map(tuple, records.tolist()))
    wrong = {("sand_*",): "no column matches sand_", ("soil_a", "soil_*"): "soil_a is named, or matches, twice"}
    for features, words in wrong.items():
        with pytest.raises(DataError, match=words):
            opened(*features)
