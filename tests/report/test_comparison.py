"""Comparisons of runs and merged models: the answer, its table, and what it warns of."""

import csv
import io
import json
import math
import re
import shutil
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from fedamp.errors import RunFolderError
from fedamp.report.comparison import compare


@pytest.fixture(scope="module")
def answer(runs, merged):
    return compare([*runs.values(), merged]).to_json()


def test_the_answer_repeats_what_the_folders_say(runs, merged, answer):
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    for folder, row in zip([*runs.values(), merged], answer["runs"], strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        assert (row["name"], row["folder"]) == (folder.name, str(folder))
        assert (row["accuracy"], row["loss"]) == (summary["final"]["accuracy"], summary["final"]["loss"])
        assert row["epsilon"] == summary["epsilon"]
        assert row["delta"] == summary["delta"]
        assert row.keys() == answer["runs"][0].keys()
    hidden, plain, bare, _, selected = answer["runs"]
    assert hidden["unamplified_epsilon_upper"] > hidden["epsilon"]["upper"]
    assert plain["unamplified_epsilon_upper"] == plain["epsilon"]["upper"]
    assert bare["epsilon"]["upper"] is bare["unamplified_epsilon_upper"] is None
    assert selected["epsilon"]["upper"] > hidden["epsilon"]["upper"]
    assert [row["merged_by"] for row in answer["runs"]] == [None] * 4 + ["random-selection"]
    assert (selected["rounds_completed"], selected["bytes_per_check_in"]) == (None, None)


def test_the_table_has_a_row_for_every_model(runs, merged, answer, printed):
    lines = printed(compare([*runs.values(), merged]).table())
    for row in answer["runs"]:
        (line,) = [line for line in lines if line.startswith(f" {row['name']} ")]
        upper = row["epsilon"]["upper"]
        assert f"{row['accuracy']:.1%}" in line
        assert ("infinite" if upper is None else f"{math.ceil(100 * upper) / 100:.2f}") in line


def test_numbers_that_cannot_be_compared_are_pointed_out(runs, answer):
    assert any("different deltas (0.0001, 1e-05)" in caution for caution in answer["cautions"])
    assert compare([runs["hidden"], runs["open"]]).to_json()["cautions"] == []


def test_that_inputs_must_not_be_shown_with_the_merged_model_is_pointed_out(runs, merged, tmp_path):
    cautions = compare([runs["hidden"], runs["budget"], merged]).to_json()["cautions"]
    (caution,) = [text for text in cautions if text.startswith("the epsilon of selected")]
    assert "hidden" in caution
    assert "budget" not in caution
    bare = tmp_path / "bare"
    shutil.copytree(merged, bare)
    (bare / "salt.secret").unlink()  # without it nobody can tell which runs went in
    for models in ([runs["hidden"], bare], [merged, bare]):
        (caution,) = compare(models).to_json()["cautions"]
        assert caution.startswith("the seed of ")  # of the draw


def test_a_known_seed_and_an_early_stop_are_pointed_out(runs, stopped):
    answer = compare([runs["hidden"], stopped]).to_json()
    assert answer["cautions"] == [
        "not finished: stopped; epsilon is the cost of all their rounds",
        "the seed of stopped is known: no protection from anyone who knows the seed: for research, not for release",
    ]
    hidden, early = answer["runs"]
    assert (hidden["has_known_seed"], early["has_known_seed"]) == (False, True)
    assert hidden["released_rounds_epsilon_upper"] == hidden["epsilon"]["upper"]
    assert early["released_rounds_epsilon_upper"] < early["epsilon"]["upper"] == hidden["epsilon"]["upper"]


def test_a_folder_that_cannot_be_written_to_is_refused(runs, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be written"):
        compare([runs["hidden"]]).save_pictures(tmp_path / "file")


def test_the_same_rows_are_a_frame_and_csv_with_a_column_for_each_thing(runs, merged):
    compared = compare([*runs.values(), merged])
    frame, lines = compared.frame(), list(csv.DictReader(io.StringIO(compared.csv())))
    assert list(lines[0]) == list(frame)
    assert len(set(frame)) == len(frame.columns)
    assert [line["name"] for line in lines] == list(frame["name"]) == [*runs, "selected"]
    np.testing.assert_array_equal([float(line["epsilon_upper"] or "nan") for line in lines], frame["epsilon_upper"])
    assert {str(frame[name].dtype) for name in ("accuracy", "loss", "epsilon_upper", "rounds_completed")} == {"float64"}


def test_latex_has_the_cells_of_the_table_and_nothing_that_latex_would_read(runs, tmp_path):
    odd = tmp_path / "a_b&c"
    shutil.copytree(runs["hidden"], odd)
    compared = compare([odd, runs["open"]])
    lines = compared.latex().splitlines()
    (row,) = [line for line in lines if line.startswith(r"a\_b\&c & ")]
    assert re.search(r"& \d\d\.\d\\% & \d+\.\d+ & ", row)
    assert {line.count(" & ") for line in lines if line.endswith(r" \\")} == {6}
    notes = [line for line in lines if r"\footnotesize" in line]
    assert len(notes) == len(compared.to_json()["cautions"])
    assert all(lines.index(note) > lines.index(r"\end{tabular}") for note in notes)  # a long one makes no column wide
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"


@pytest.mark.slow
def test_pictures_are_written_in_the_formats_asked_for_the_same_each_time(runs, tmp_path):
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for name, kinds in (("a", tuple(starts)), ("b", ("pdf", "svg"))):
        files = compare([runs["hidden"], runs["plain"]]).save_pictures(tmp_path / name, kinds)
        assert len(files) == 2 * len(kinds)
        assert all(Path(file).read_bytes().startswith(starts[file[-3:]]) for file in files)
    assert matplotlib.image.imread(tmp_path / "a" / "rounds.png").shape[1] > 4.5 * 220
    papers = compare([runs["hidden"], runs["plain"]]).save_pictures(tmp_path / "paper", ("png", "svg"), paper=True)
    assert all(matplotlib.image.imread(file).shape[1] == int(3.3 * 220) for file in papers if file.endswith("png"))
    assert not any("privacy cost by round" in Path(file).read_text() for file in papers if file.endswith("svg"))
    for file in ("rounds.svg", "rounds.pdf"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
