"""Small files that unfold to gigabytes: one line before they do, and nothing is left behind."""

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedamp.data.partition import NaturalPartition
from fedamp.data.sections import HuggingFaceData, IdxData, InstEvalData, KnownImages, NpzData, TabularData, TextData
from fedamp.data.table import MOST
from fedamp.errors import DataError
from tests.federations import small

NATURAL = NaturalPartition(scheme="natural")


def vast_npz(folder):
    """An archive whose header promises 80 GB of zeros. They do not follow: nothing but the header may be read."""
    np.savez(folder / "train.npz", y=np.zeros(4, int), client=np.arange(4))
    with zipfile.ZipFile(folder / "train.npz", "a") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": "<f8", "fortran_order": False, "shape": (10_000_000, 1_000)}
        )
    return NpzData(name="npz", path=str(folder), classes=2, partition=NATURAL)


def vast_idx(folder):
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">HBB3I", 0, 8, 3, 100_000, 1_000, 1_000))
    with gzip.open(folder / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">HBBI", 0, 8, 1, 100_000) + bytes(100_000))
    return IdxData(name="idx", path=str(folder), classes=2, clients=4)


def repeated(folder, **columns):
    """Parquet of many equal rows: dictionaries and run lengths make it small. Written in pieces."""
    piece = pa.table({name: pa.array([value]).take(pa.array([0] * 2**16)) for name, value in columns.items()})
    with pq.ParquetWriter(folder / "train.parquet", piece.schema) as file:
        for _ in range(4):
            file.write_table(piece)
    assert (folder / "train.parquet").stat().st_size < 2**18


def vast_numbers(folder):
    repeated(folder, x=1.0, y=1, client=2)
    return TabularData(name="parquet", path=str(folder), classes=2, partition=NATURAL, max_bytes=4 * 2**20)


def vast_texts(folder):
    repeated(folder, text="word " * 100, author="ann")
    partition = NaturalPartition(scheme="natural", column="author")
    return TextData(name="text", path=str(folder), partition=partition, max_bytes=64 * 2**20)


def vast_dictionary(folder):
    """Columns that Arrow keeps as a dictionary: a batch of them is small in memory, and what is written out is not."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 2**18), pa.array(["word " * 100]))
    pq.write_table(pa.table({"text": column, "author": column}), folder / "train.parquet")
    partition = NaturalPartition(scheme="natural", column="author")
    return TextData(name="text", path=str(folder), partition=partition, max_bytes=64 * 2**20)


def long_csv(folder):
    (folder / "train.csv").write_text("x,y,client\n" + "1,1,1\n" * 2**18)
    return TabularData(name="csv", path=str(folder), classes=2, partition=NATURAL, max_bytes=4 * 2**20)


def folder_of_parquet(folder):
    repeated(folder, image=1.0, label=1)
    return HuggingFaceData(name="huggingface", dataset=str(folder), classes=2, clients=4, max_bytes=2**20)


def saved_to_disk(folder):
    import datasets

    datasets.Dataset.from_dict({"image": [1.0] * 2**18, "label": [1] * 2**18}).save_to_disk(folder / "train")
    given = {"dataset": str(folder / "train"), "test_split": None, "classes": 2, "clients": 4}
    return HuggingFaceData(name="huggingface", **given, max_bytes=2**20)


def digits_of_npm(folder):
    (folder / "train" / "src" / "digits").mkdir(parents=True)
    for digit in range(10):
        (folder / "train" / "src" / "digits" / f"{digit}.json").write_text('{"data": [' + "0," * 2**15 + "0]}")
    return KnownImages(name="mnist", path=str(folder / "train"), clients=4, max_bytes=2**20)


def data_of_r(folder):
    (folder / "train").mkdir()
    (folder / "train" / "Rdata.rdx").write_bytes(gzip.compress(bytes(2**24)))
    (folder / "train" / "Rdata.rdb").write_bytes(b"")
    return InstEvalData(name="insteval", path=str(folder / "train"), max_bytes=2**20)


def many_short_texts(folder):
    """Each of them is a record of 64 tokens."""
    (folder / "train.csv").write_text("text,author\n" + "a,ann\n" * 2**12)
    partition = NaturalPartition(scheme="natural", column="author")
    return TextData(name="text", path=str(folder), partition=partition, max_bytes=2**20)


VAST = (
    vast_npz,
    vast_idx,
    vast_numbers,
    vast_texts,
    vast_dictionary,
    long_csv,
    folder_of_parquet,
    saved_to_disk,
    digits_of_npm,
)


@pytest.mark.parametrize("write", [*VAST, data_of_r], ids=lambda w: w.__name__)
def test_what_unfolds_to_too_much_is_refused_before_it_does(write, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "records"
    folder.mkdir()
    section = write(folder)
    with pytest.raises(DataError) as caught:
        section.load(0, Path())
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(str(folder / "train"))
    assert f"expected: at most data.max_bytes {section.max_bytes:,}" in said
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_short_texts_are_as_long_as_records(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"train\.csv: unfolds to 2,097,152 bytes or more"):
        many_short_texts(tmp_path).load(0, Path())


def test_the_key_raises_the_limit_and_its_default_changes_no_scenario(tmp_path):
    np.savez(tmp_path / "train.npz", x=np.eye(4), y=np.zeros(4, int), client=np.arange(4))
    less, enough = (
        NpzData(name="npz", path=str(tmp_path), classes=2, partition=NATURAL, max_bytes=most) for most in (127, 128)
    )
    with pytest.raises(DataError, match="array 'x': unfolds to 128 bytes"):
        less.load(0, Path())
    assert enough.load(0, Path()).num_clients == 4
    assert small(f"data.max_bytes={MOST}").to_yaml() == small().to_yaml()


def test_an_image_that_unfolds_to_too_much_is_its_units(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow refuses more than twice as many when it opens
    folder = tmp_path / "records"
    for number, side in enumerate((8, 8, 40)):
        (folder / "train" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (side, side)).save(folder / "train" / "ab"[number % 2] / f"{number}.png")
    section = HuggingFaceData(name="huggingface", dataset=str(folder), classes=("a", "b"), clients=3, shape=(1, 8, 8))
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    assert sorted(section.load(0, Path()).gather(np.arange(3)).sizes.tolist()) == [0, 1, 1]


def test_records_larger_than_the_memory_are_one_line_with_their_file(tmp_path, fedamp):
    """4 EiB: more than any address space has, so that NumPy refuses at once, on every machine."""
    folder = tmp_path / "records"
    folder.mkdir()
    np.savez(folder / "train.npz", y=np.zeros(4, int))
    with zipfile.ZipFile(folder / "train.npz", "a") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (2**55, 2**4)})
    data = f"data={{name: npz, path: {folder}, classes: 2, clients: 4, max_bytes: {2**63}}}"
    answer = fedamp("run", "digits", "--engine", "serial", "--set", data, "--out", tmp_path / "run")
    assert answer.status == 2, answer
    assert answer.err.splitlines()[-1].startswith(f"error: {folder / 'train.npz'}: array 'x' cannot be read (")
    assert "MemoryError" in answer.err
    assert not (tmp_path / "run").exists()
