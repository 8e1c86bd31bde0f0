"""csv, JSON and parquet as the files spell them: one person is one unit, whatever the ids look like."""

import json
import os
from csv import writer
from decimal import Decimal
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import write_csv
from pydantic import TypeAdapter

import fedamp
from fedamp.data.form import CLASSIFICATION, NUMBERS, TOKENS, Form
from fedamp.data.sections import Data
from fedamp.data.tabular import Files
from fedamp.data.texts import CHARACTERS
from fedamp.errors import DataError

SEQUENCES = Form(TOKENS, vocabulary=CHARACTERS)
NATURAL = {"scheme": "natural", "column": "client"}
ODD = ["007", "7", "1e3", "1000", "NA", "None", "null", "nan", "True", "1.0", "1", " 1", str(2**70), str(2**70 + 1)]


def of_scenario(data, form=CLASSIFICATION):
    return section_of(data, form).load(0, Path(), form)


def section_of(data, form=CLASSIFICATION):
    settings = {"model": {"name": "logistic"}, "rounds": 1, "privacy": {"clip": 1.0, "noise_multiplier": 1.0}}
    client = {"learning_rate": 0.1}
    if form.labels is TOKENS:
        settings["model"] = {"name": "lstm", "vocabulary": CHARACTERS, "hidden": [4]}
        client["loss"] = "token-cross-entropy"
    return fedamp.load({"name": "own", "data": data, "client": client, **settings}).data


def loaded(folder, name="csv", **keys):
    return loaded_section(folder, name, **keys).load(0, Path())


def loaded_section(folder, name="csv", **keys):
    return section_of({"name": name, "path": str(folder), "classes": 2, "partition": NATURAL} | keys)


def texts(folder, form=SEQUENCES, **keys):
    partition = {"scheme": "natural", "column": "author"}
    return of_scenario({"name": "text", "path": str(folder), "length": 4, "partition": partition} | keys, form)


def csv(folder, ids, name="train.csv", x=None, y=None):
    x, y = x or [0.5] * len(ids), y or [1] * len(ids)
    rows = [f'{one},{two},"{id_}"' for one, two, id_ in zip(x, y, ids, strict=True)]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(["x,y,client", *rows]) + "\n")


def sizes(dataset):
    return dataset.sizes(np.arange(dataset.num_clients)).tolist()


def test_ids_of_csv_are_the_texts_of_the_file(tmp_path):
    csv(tmp_path, ODD * 2)
    dataset = loaded(tmp_path)
    assert sizes(dataset) == [2] * len(ODD)


def test_what_stands_in_another_file_or_far_below_changes_no_id(tmp_path):
    """``datasets`` guessed types again every 10,000 rows, and for every file."""
    csv(tmp_path, ["7"] * 12_000 + ["007", "seven"], "train-0.csv", x=[1] * 12_000 + [0.5, "1e1"])
    csv(tmp_path, ["7", "007"], "train-1.csv")
    dataset = loaded(tmp_path)
    assert sizes(dataset) == [2, 12_001, 1]  # 007, 7, seven
    assert dataset.gather(np.array([0, 2])).inputs[:, 0, 0].tolist() == [0.5, 10.0]


def test_authors_and_texts_of_json_are_those_of_the_file(tmp_path):
    rows = [
        {"author": author, "text": text} for author, text in zip([*ODD, 2**70, 2**70 + 1, 7], ["NA"] * 17, strict=True)
    ]
    (tmp_path / "train.json").write_text("\n".join(map(json.dumps, rows)))
    dataset = texts(tmp_path)
    assert dataset.num_clients == len(ODD), "7 and '7' are one person"
    one = dataset.gather(np.array([0])).inputs[0, 0]
    assert "".join(chr(token + 32) for token in one[:2]) == "NA"


@pytest.mark.parametrize("ids", [["a", "b", "a"], [2**60, 2**60 + 1, 2**60]])
def test_ids_of_parquet_are_exact_in_every_encoding(tmp_path, ids, subtests):
    plain = pa.array(ids)
    kinds = {"plain": plain, "dictionary": plain.dictionary_encode()}
    kinds |= (
        {"large": plain.cast(pa.large_string())} if isinstance(ids[0], str) else {"unsigned": plain.cast(pa.uint64())}
    )
    for kind, array in kinds.items():
        with subtests.test(kind):
            folder = tmp_path / kind
            folder.mkdir()
            table = pa.table({"x": [0.5, 1.5, 2.5], "y": [0, 1, 1], "client": array})
            pq.write_table(table, folder / "train-0.parquet")
            pq.write_table(
                table.set_column(2, "client", plain.cast(array.type) if kind == "unsigned" else plain),
                folder / "train-1.parquet",
            )
            assert sizes(loaded(folder, "parquet")) == [4, 2]


@pytest.mark.parametrize("wrong", [["1", 2], [2**60, 0.5]])
def test_ids_of_two_types_are_refused_by_name(tmp_path, wrong):
    for number, one in enumerate(wrong):
        pq.write_table(pa.table({"x": [0.5], "y": [0], "client": [one]}), tmp_path / f"train-{number}.parquet")
    with pytest.raises(DataError, match=r"train-0\.parquet .*: column 'client' differs between the files \(.*, .*\)"):
        loaded(tmp_path, "parquet")


def test_a_record_of_nobody_is_refused_by_file_and_row_and_ignored_on_a_node(tmp_path):
    csv(tmp_path, ["0", "1"], "train-0.csv")
    csv(tmp_path, ["0", "", "1"], "train-1.csv")
    with pytest.raises(DataError, match=r"train-1\.csv: row 2: column 'client' must name a client, and names none"):
        loaded(tmp_path)
    (tmp_path / "federation.json").write_text('{"clients": 3, "hosted": [0, 1], "classes": 2}')
    dataset = loaded(tmp_path)
    assert dataset.sizes(np.array([0, 1])).tolist() == [2, 2]
    assert dataset.nobodys == 1


def test_decimal_ids_are_exact_in_files_and_on_a_node(tmp_path):
    """They were of nobody."""
    for kind in (pa.decimal128(38, 2), pa.decimal256(76, 0)):
        ids = pa.array([Decimal(17), Decimal(10**30), Decimal(10**30 + 1)], kind)
        for number, array in enumerate((ids, ids.dictionary_encode())):
            table = pa.table({"x": [0.5] * 3, "y": [0, 1, 1], "client": array})
            pq.write_table(table, tmp_path / f"train-{number}.parquet")
        section = loaded_section(tmp_path, "parquet")
        assert section.unit_names(Path()) == ["17", str(10**30), str(10**30 + 1)]
        assert sizes(loaded(tmp_path, "parquet")) == [2, 2, 2]
    (tmp_path / "federation.json").write_text('{"clients": 18, "hosted": [17], "classes": 2}')
    assert loaded(tmp_path, "parquet").sizes(np.array([17])) == [2]


def test_a_float_of_several_ids_is_nobody_of_a_node(tmp_path):
    """2^24 + 1 is 2^24 as float32: it may be a client of another machine."""
    ids = np.array([2**24 - 1, 2**24, 2**24 + 1], np.float32)
    pq.write_table(pa.table({"x": [0.5] * 3, "y": [0, 1, 1], "client": ids}), tmp_path / "train.parquet")
    about = {"clients": 2**24 + 2, "hosted": [2**24 - 1, 2**24], "classes": 2}
    (tmp_path / "federation.json").write_text(json.dumps(about))
    dataset = loaded(tmp_path, "parquet")
    assert dataset.sizes(np.array(about["hosted"])).tolist() == [1, 0]
    assert dataset.nobodys == 2


@pytest.mark.parametrize(
    "ids",
    [
        *([1.0, 2.5], [1.0, float("nan")], [1.0, 2.0**60], ["a", None], ["a", ""], [1, None]),
        *(np.array([1, 2**24], np.float32), np.array([1, 2**11], np.float16), pa.array([1.0, None], pa.float32())),
        *([Decimal("1.00"), Decimal("1.50")], pa.array([Decimal(1), None]), pa.array([1, None], pa.date32())),
    ],
)
def test_ids_of_parquet_that_name_nobody_are_refused(tmp_path, ids):
    pq.write_table(pa.table({"x": [0.5, 0.5], "y": [0, 1], "client": ids}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train\.parquet: row 2: column 'client' must name a client"):
        loaded(tmp_path, "parquet")


@pytest.mark.parametrize("cell", ["", "n/a", "nan", "inf", "1_0", "1e999", "0.5,1"])
def test_a_cell_that_is_no_number_takes_away_its_own_unit(tmp_path, cell):
    csv(tmp_path, ["0", "1", "2"], x=[0.5, cell, 1.5])
    (tmp_path / "federation.json").write_text('{"clients": 3, "hosted": [0, 1, 2], "classes": 2}')
    assert sizes(loaded(tmp_path)) == [1, 0, 1]


def test_lists_of_another_length_take_away_their_own_units_alone(tmp_path):
    """Also the first one, and where they are most: no person's list decides the shape."""
    lists = [[1.0] * 3, [2.0] * 6, [3.0] * 6, None, [4.0] * 6]
    table = pa.table({"x": lists, "y": [0] * 5, "client": [0, 1, 2, 3, 4]})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(
        DataError, match=r"train\.parquet: column 'x' has lists, .*; expected: data\.shape, or a public"
    ):
        loaded(tmp_path, "parquet")
    pq.write_table(pa.table({"x": [[9.0] * 6], "y": [0]}), tmp_path / "test.parquet")
    assert sizes(loaded(tmp_path, "parquet", test_is_public=True)) == [0, 1, 1, 0, 1]
    fixed = pa.array([None if len(one or ()) != 6 else one for one in lists], pa.list_(pa.float32(), 6))
    (tmp_path / "fixed").mkdir()
    pq.write_table(table.set_column(0, "x", fixed), tmp_path / "fixed" / "train.parquet")
    assert sizes(loaded(tmp_path / "fixed", "parquet")) == [0, 1, 1, 0, 1], "the type says it"
    assert sizes(loaded(tmp_path, "parquet", shape=[3])) == [1, 0, 0, 0, 0]
    dataset = loaded(tmp_path, "parquet", shape=[2, 3])
    assert dataset.gather(np.array([4])).inputs.shape == (1, 1, 2, 3)


@pytest.mark.parametrize("cells", [[2**54 + 2**30 + 1, 3], [[2**54 + 2**30 + 1], [3]]], ids=["plain", "lists"])
def test_an_empty_cell_changes_nobody_elses_number(tmp_path, cells):
    """It made the column float64; rounded twice, 2^54 + 2^30 + 1 is another float32 than rounded once."""
    found = {}
    for name, second in (("whole", cells[1]), ("empty", None)):
        (tmp_path / name).mkdir()
        table = pa.table({"x": [cells[0], second], "y": [0, 1], "client": [0, 1]})
        pq.write_table(table, tmp_path / name / "train.parquet")
        found[name] = loaded(tmp_path / name, "parquet", shape=[1]).gather(np.array([0])).inputs.item()
    arrays = {"x": np.array(cells).reshape(2, 1), "y": np.array([0, 1]), "client": np.array([0, 1])}
    np.savez(tmp_path / "train.npz", **arrays)
    found["npz"] = loaded(tmp_path, "npz").gather(np.array([0])).inputs.item()
    assert len(set(found.values())) == 1, found


def test_a_number_beyond_all_floats_beside_a_file_of_floats_stops_nobody(tmp_path):
    for number, x in enumerate(([2**60 + 1, 3], [0.5, 1.5])):
        pq.write_table(pa.table({"x": x, "y": [0, 1], "client": [0, 1]}), tmp_path / f"train-{number}.parquet")
    assert sizes(loaded(tmp_path, "parquet")) == [2, 2]


def test_a_label_that_is_missing_stops_nobody_where_classes_have_names(tmp_path):
    features = {"x": datasets.Value("float64"), "y": datasets.ClassLabel(names=["b", "a"])}
    features |= {"client": datasets.Value("int64")}
    rows = {"x": [0.0, 1.0, 2.0], "y": [0, None, 1], "client": [0, 1, 2]}
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).to_parquet(tmp_path / "train.parquet")
    dataset = loaded(tmp_path, "parquet", classes=["a", "b"])
    assert sizes(dataset) == [1, 0, 1]
    assert dataset.gather(np.array([0, 2])).labels.ravel().tolist() == [1, 0]


@pytest.mark.parametrize("folder", ["files", "saved"])
def test_the_shape_of_labels_in_lists_is_declared_or_that_of_a_public_test_set(tmp_path, folder):
    """How many numbers a label has is the number of a model's outputs: no person's list decides it."""
    rows = {"x": [0.0, 1.0, 2.0], "y": [[1.0] * 3, [1.0] * 3, [1.0] * 2], "client": [0, 1, 2]}
    splits = {"train": rows, "test": {"x": [0.0], "y": [[1.0] * 2], "client": [0]}}
    splits = {name: datasets.Dataset.from_dict(each) for name, each in splits.items()}
    if folder == "saved":
        datasets.DatasetDict(splits).save_to_disk(tmp_path / folder)
    else:
        for name, each in splits.items():
            each.to_parquet(tmp_path / f"{name}.parquet")
    data = {"name": "parquet", "path": str(tmp_path)}
    if folder == "saved":
        data = {"name": "huggingface", "dataset": str(tmp_path / folder)}
    data |= {"features": "x", "label": "y", "partition": NATURAL}
    section = TypeAdapter(Data).validate_python
    with pytest.raises(DataError, match=r"column 'y' has lists, .*; expected: data\.label_shape, or a public test set"):
        section(data).load(0, Path(), Form(NUMBERS))
    for keys, *found in (({"label_shape": [3]}, [1, 1, 0], 3), ({"test_is_public": True}, [0, 0, 1], 2)):
        dataset = section(data | keys).load(0, Path(), Form(NUMBERS))
        assert [sizes(dataset), dataset.num_classes] == found


def test_lines_of_json_that_say_nothing_take_away_nobody_else(tmp_path):
    good = [json.dumps({"author": author, "text": "ab"}) for author in (0, 2)]
    wrong = ["{", "[1]", '{"author": 0, "author": 1, "text": "a"}', '{"author": "0", "text": "\\ud83d"}', "[" * 100_000]
    (tmp_path / "train.json").write_text("\n".join([*good, *wrong, '{"author": "1"}']))
    (tmp_path / "federation.json").write_text('{"clients": 3, "hosted": [0, 1, 2]}')
    dataset = texts(tmp_path)
    assert dataset.sizes(np.arange(3)).tolist() == [3, 0, 1], "half a surrogate pair is kept as it is spelled"


def test_a_person_is_one_where_a_file_was_replaced_at_the_same_time(tmp_path):
    """Copies of csv and parquet files were known by path and time of modification."""
    csv(tmp_path, ["a", "b"], x=[1, 2])
    time = os.stat(tmp_path / "train.csv")
    assert loaded(tmp_path).gather(np.arange(2)).inputs.ravel().tolist() == [1, 2]
    csv(tmp_path, ["a", "b"], x=[3, 4])
    os.utime(tmp_path / "train.csv", ns=(time.st_atime_ns, time.st_mtime_ns))
    assert loaded(tmp_path).gather(np.arange(2)).inputs.ravel().tolist() == [3, 4]


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_path_is_no_pattern(tmp_path, name):
    """``run[1]`` is the pattern of ``run1``."""
    for folder, clients in (("run1", 5), ("run[1]", 2), ("*", 3)):
        (tmp_path / folder).mkdir()
        ids = [str(client) for client in range(clients)]
        csv(tmp_path / folder, ids)
        pq.write_table(
            pa.table({"x": [0.5] * clients, "y": [0] * clients, "client": ids}), tmp_path / folder / "train.parquet"
        )
    assert [loaded(tmp_path / folder, name).num_clients for folder in ("run1", "run[1]", "*")] == [5, 2, 3]


def test_which_files_hold_a_split(tmp_path, subtests):
    """The name of the file alone says it: a copy beside it is no part, and half of the pieces are none."""
    for case, names, found in (
        ("backup", ["train.csv", "train_backup.csv", "training.csv", "test.csv"], 1),
        ("pieces", ["train-00000-of-00002.csv", "train-00001-of-00002.csv", "train_old.csv"], 2),
        ("numbers", ["train0.csv", "train_1.csv", "train.2.csv"], 3),
        ("missing", ["train-00000-of-00002.csv"], "1 pieces train-00000-of-00002.csv ...; expected: as many"),
        ("two sets", ["train-0-of-1.csv", "train-0-of-2.csv", "train-1-of-2.csv"], "expected: as many as they say"),
        ("both", ["train.csv", "train-0.csv"], "train.csv and train-0.csv; expected: one file, or its pieces"),
        ("none", ["train_backup.csv"], "no train.csv; the folder holds train_backup.csv"),
    ):
        with subtests.test(case):
            for number, name in enumerate(names):
                csv(tmp_path / case, [str(number)], name)
            if isinstance(found, int):
                assert loaded(tmp_path / case).num_clients == found
            else:
                with pytest.raises(DataError) as refused:
                    loaded(tmp_path / case)
                assert found in str(refused.value)


def test_a_folder_named_like_the_file_holds_its_pieces(tmp_path):
    folder = tmp_path / "train.parquet"
    folder.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"x": [0.5], "y": [0], "client": [number]}), folder / f"part-{number}.snappy.parquet")
    (folder / "_SUCCESS").touch()
    assert loaded(tmp_path, "parquet").num_clients == 2
    (folder / "client=3").mkdir()
    with pytest.raises(DataError, match=r"client=3: expected in train\.parquet: files \*\.parquet alone"):
        loaded(tmp_path, "parquet")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x,y\n0.5,1\n", "no column 'client'; data.partition.column must be one of x, y"),
        ("x,x,y,client\n1,2,1,a\n", "train.csv: two columns 'x'"),
        ('x,y,client\n0.5,1,"a\n', "train.csv: cannot be read as csv (Error: unexpected end of data)"),
        ("", "no column 'x'; data.features must be one of"),
        ("x,y,client\n", "train.csv: no records; at least one is needed"),
    ],
)
def test_what_is_no_csv_file_is_refused(tmp_path, content, said):
    (tmp_path / "train.csv").write_bytes(content.encode())
    with pytest.raises(DataError) as refused:
        loaded(tmp_path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


CSV = {
    "ends of Windows": (b"x,y,client\r\n1,0,007\r\n\r\n2.5,1,7\r\n", [1, 2.5], ["007", "7"]),
    "a mark of UTF-8": (b"\xef\xbb\xbfx,y,client\n1,0,null\n2,0,NA\n", [1, 2], ["null", "NA"]),
    "many spellings": (
        "x,y,client\n 1 ,0,a\n+1,0,b\n1_0,0,c\ntrue,0,d\n1e999,0,e\n0x10,0,f\n\uff11,0,g\nNaN(1),0,h\n,0,i\n".encode(),
        [1, 1, np.nan, 1, np.inf, np.nan, 1, np.nan, np.nan],
        list("abcdefghi"),
    ),
    "other ends of lines": (b"x,y,client\r1,0,a\r2,1,b\r", [1, 2], ["a", "b"]),
    "quotes": (b'x,y,client\n1,0,"a,b"\n2,1,c', [1, 2], ["a,b", "c"]),
    "no UTF-8": (b"x,y,client\n1,0,\xe9\n2,1,c\n", [1, 2], ["\\xe9", "c"]),
    "a row of another length": (b"x,y,client\n1,0,a\n2,1\n3,1,b\n", [1, np.nan, 3], ["a", None, "b"]),
}


@pytest.mark.parametrize("kind", CSV)
def test_cells_are_those_of_the_csv_module(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    content, inputs, clients = CSV[kind]
    (tmp_path / "train.csv").write_bytes(content)
    files = Files("csv", (tmp_path / "train.csv",))
    assert files.spelled("client").tolist() == clients
    np.testing.assert_array_equal(np.array(files.rows(["x"]).with_format("arrow")[:]["x"], np.float64), inputs)


QUOTES, ENDS = ['"', '"a', '"a"b', "'", "\\", '\\"'], ["a,b", "a\nb", "\0", "\ufeff", "\u2028"]
HOSTILE = [*QUOTES, *ENDS, '"\n1,fine,7\n', "\n1,fine,7\n", "\r1,fine,7\r"]


def by_csv(path, rows):
    with path.open("w", newline="") as file:
        writer(file).writerows([["client", "note", "x"], *rows])


def by_pandas(path, rows):
    pd.DataFrame(rows, columns=["client", "note", "x"]).to_csv(path, index=False)


def by_arrow(path, rows):
    write_csv(pa.table(dict(zip(["client", "note", "x"], map(list, zip(*rows, strict=True)), strict=True))), path)


def by_json(path, rows):
    path.write_text("\n".join(json.dumps(dict(zip(["client", "note", "x"], row, strict=True))) for row in rows))


@pytest.mark.parametrize("write", [by_csv, by_pandas, by_arrow, by_json])
def test_what_a_person_writes_changes_nobody_elses_record(write, tmp_path, monkeypatch, subtests):
    """A writer quotes it. Pasted between commas, a text could end a row: the file's author must not do that."""
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    kind = "json" if write is by_json else "csv"
    for number, text in enumerate(HOSTILE):
        with subtests.test(text):
            path = tmp_path / f"{number}.{kind}"
            write(path, [["0", "fine", 0.5], ["1", "fine", 1.5], ["2", text, 2.5], ["3", "fine", 3.5]])
            files = Files(kind, (path,))
            assert files.spelled("client").tolist() == ["0", "1", "2", "3"]
            assert files.spelled("note").tolist() == ["fine", "fine", text, "fine"]
            assert files.rows(["x"])["x"][:] == [0.5, 1.5, 2.5, 3.5]


def test_files_in_which_a_column_is_missing_or_elsewhere(tmp_path):
    csv(tmp_path, ["a", "b"], "train-0.csv")
    (tmp_path / "train-1.csv").write_text("client,more,y,x\nb,9,0,2.5\n")
    dataset = loaded(tmp_path)
    assert dataset.gather(np.array([1])).inputs[0].tolist() == [[0.5], [2.5]]
    (tmp_path / "train-2.csv").write_text("x,client\nb,0\n")
    with pytest.raises(DataError, match=r"train-2\.csv: no column 'y'"):
        loaded(tmp_path)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    csv(tmp_path, ["a", "b"])
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"copies of records cannot be kept there \(.*\); FEDAMP_CACHE names another"):
        loaded(tmp_path)


@pytest.mark.parametrize("name", ["csv", "parquet", "npz", "text"])
def test_labels_are_words_where_they_are_declared(tmp_path, name):
    labels, ids = ["yes", "no", "maybe", "yes"], ["a", "b", "c", "d"]
    csv(tmp_path, ids, y=labels)
    pq.write_table(pa.table({"x": [0.5] * 4, "y": labels, "client": ids}), tmp_path / "train.parquet")
    np.savez(tmp_path / "train.npz", x=np.ones((4, 1)), y=labels, client=ids)
    rows = [{"author": id_, "text": "ab", "y": label} for id_, label in zip(ids, labels, strict=True)]
    (tmp_path / "train.json").write_text("\n".join(map(json.dumps, rows)))
    if name == "text":
        (tmp_path / "train.csv").unlink()
        (tmp_path / "train.parquet").unlink()
        dataset = texts(tmp_path, CLASSIFICATION, label="y", classes=["no", "yes"])
    else:
        dataset = loaded(tmp_path, name, classes=["no", "yes"])
    assert dataset.num_classes == 2
    assert sizes(dataset) == [1, 1, 0, 1], "maybe is no class"
    assert dataset.gather(np.array([0, 1, 3])).labels.ravel().tolist() == [1, 0, 1]
