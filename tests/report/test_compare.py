"""Comparisons: the answer, its table, and what it warns of."""

import json

import pytest
from rich.console import Console

from fedamp.errors import RunFolderError
from fedamp.report.compare import compare_runs, comparison_table

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def answer(runs, tmp_path_factory):
    return compare_runs(list(runs.values()), tmp_path_factory.mktemp("comparison"))


def test_the_answer_repeats_what_the_run_folders_say(runs, answer):
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    for folder, run in zip(runs.values(), answer["runs"], strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        assert run["folder"] == str(folder)
        assert run["accuracy"] == summary["final"]["accuracy"]
        assert run["epsilon"] == summary["epsilon"]
    hidden, plain, bare, _ = answer["runs"]
    assert hidden["unamplified_epsilon_upper"] > hidden["epsilon"]["upper"]
    assert plain["unamplified_epsilon_upper"] == plain["epsilon"]["upper"]
    assert bare["epsilon"]["upper"] is bare["unamplified_epsilon_upper"] is None


def test_numbers_that_cannot_be_compared_are_pointed_out(runs, answer, tmp_path):
    assert any("different deltas (0.0001, 1e-05)" in caution for caution in answer["cautions"])
    assert compare_runs([runs["hidden"], runs["open"]], tmp_path)["cautions"] == []


def test_the_table_fits_eighty_columns_and_names_every_run(runs, answer):
    console = Console(width=80, file=None, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(comparison_table(answer))
    text = captured.get()
    assert all(name in text for name in runs)
    assert "infinite" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_folder_that_cannot_be_written_to_is_refused(runs, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot be written"):
        compare_runs([runs["hidden"]], tmp_path / "file")
