"""Comparisons of runs and merged models: the answer, its table, and what it warns of."""

import json
import math
import shutil

import pytest

from fedamp.errors import RunFolderError
from fedamp.report.comparison import compare
from fedamp.report.tables import comparison_table


@pytest.fixture(scope="module")
def answer(runs, merged, tmp_path_factory):
    return compare([*runs.values(), merged], tmp_path_factory.mktemp("comparison"))


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


def test_the_table_has_a_row_for_every_model(answer, printed):
    lines = printed(comparison_table(answer))
    for row in answer["runs"]:
        (line,) = [line for line in lines if line.startswith(f" {row['name']} ")]
        upper = row["epsilon"]["upper"]
        assert f"{row['accuracy']:.1%}" in line
        assert ("infinite" if upper is None else f"{math.ceil(100 * upper) / 100:.2f}") in line


def test_numbers_that_cannot_be_compared_are_pointed_out(runs, answer, tmp_path):
    assert any("different deltas (0.0001, 1e-05)" in caution for caution in answer["cautions"])
    assert compare([runs["hidden"], runs["open"]], tmp_path)["cautions"] == []


def test_that_inputs_must_not_be_shown_with_the_merged_model_is_pointed_out(runs, merged, tmp_path):
    cautions = compare([runs["hidden"], runs["budget"], merged], tmp_path)["cautions"]
    (caution,) = [text for text in cautions if text.startswith("the epsilon of selected")]
    assert "hidden" in caution
    assert "budget" not in caution
    bare = tmp_path / "bare"
    shutil.copytree(merged, bare)
    (bare / "salt.secret").unlink()  # without it nobody can tell which runs went in
    for models in ([runs["hidden"], bare], [merged, bare]):
        (caution,) = compare(models, tmp_path / "out")["cautions"]
        assert caution.startswith("the seed of ")  # of the draw


def test_a_known_seed_and_an_early_stop_are_pointed_out(runs, stopped, tmp_path):
    answer = compare([runs["hidden"], stopped], tmp_path)
    assert answer["cautions"] == [
        "not finished: stopped; epsilon is the cost of all their rounds",
        "the seed of stopped is known: no protection from anybody who knows the seed: for research, not for release",
    ]
    hidden, early = answer["runs"]
    assert (hidden["has_known_seed"], early["has_known_seed"]) == (False, True)
    assert hidden["released_rounds_epsilon_upper"] == hidden["epsilon"]["upper"]
    assert early["released_rounds_epsilon_upper"] < early["epsilon"]["upper"] == hidden["epsilon"]["upper"]


def test_a_folder_that_cannot_be_written_to_is_refused(runs, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be written"):
        compare([runs["hidden"]], tmp_path / "file")
