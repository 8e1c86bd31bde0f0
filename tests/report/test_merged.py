"""Merged models in comparisons and reports."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedamp.errors import RunFolderError
from fedamp.merging import MergeRequest, merge_runs
from fedamp.report.compare import compare_runs, comparison_table
from fedamp.report.comparison_plots import comparison_pictures
from fedamp.report.merging_plots import plot_merger
from fedamp.report.page import write_report
from fedamp.runs.merged import read_merged, read_models
from tests.report.test_page import Page
from tests.report.test_pictures import words

pytestmark = pytest.mark.xdist_group("report")

DELTA = 1e-5


@pytest.fixture(scope="module")
def merged(runs, tmp_path_factory) -> Path:
    """One of two runs, drawn: one with privacy, and one without that may come out with half of delta."""
    folder = tmp_path_factory.mktemp("merged") / "selected"
    models = (str(runs["hidden"]), str(runs["open"]))
    weights = (1 - DELTA / 2, DELTA / 2)
    plot_merger(merge_runs(MergeRequest(models, "random-selection", 20.0, DELTA, weights=weights, seed=1), folder))
    return folder


def test_a_merged_model_is_one_more_row(runs, merged, tmp_path):
    answer = compare_runs([runs["hidden"], merged], tmp_path)
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    run, row = answer["runs"]
    assert run.keys() == row.keys()
    certificate = json.loads((merged / "certificate.json").read_text())
    summary = json.loads((merged / "summary.json").read_text())
    assert (row["accuracy"], row["loss"]) == (summary["final"]["accuracy"], summary["final"]["loss"])
    assert row["epsilon"] == certificate["epsilon"]
    assert row["epsilon"]["upper"] > run["epsilon"]["upper"]
    assert (run["merged_by"], row["merged_by"]) == (None, "random-selection")
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(comparison_table(answer))
    line = next(line for line in captured.get().splitlines() if "selected" in line)
    assert f"{summary['final']['accuracy']:.1%}" in line
    assert f"{math.ceil(100 * row['epsilon']['upper']) / 100:.2f}" in line
    assert len(line) <= 80


def test_it_is_one_more_point(runs, merged):
    models = read_models([runs["hidden"], merged])
    pictures = comparison_pictures(models)
    assert pictures.keys() == {"rounds", "accuracy-epsilon", "cost"}
    assert "selected, merged" in words(pictures["accuracy-epsilon"])
    assert all("selected" not in words(pictures[name]) for name in ("rounds", "cost"))  # it has neither
    points = [
        line.get_xydata()[0].tolist()
        for line in pictures["accuracy-epsilon"].axes[0].lines
        if len(line.get_xdata()) == 1 and line.get_markerfacecolor() != "white"
    ]
    expected = [[model.epsilon, 100 * model.accuracy] for model in models]
    np.testing.assert_allclose(sorted(points), sorted(expected))


def test_merged_models_alone_are_compared_too(merged, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(merged, other)
    assert comparison_pictures(read_models([merged, other])).keys() == {"accuracy-epsilon"}
    assert compare_runs([merged, other], tmp_path / "out")["cautions"] == []


def test_that_its_inputs_must_not_be_shown_with_it_is_pointed_out(runs, merged, tmp_path):
    cautions = compare_runs([runs["hidden"], runs["budget"], merged], tmp_path)["cautions"]
    (caution,) = [text for text in cautions if "selected" in text]
    assert "hidden" in caution
    assert "budget" not in caution
    bare = tmp_path / "selected"
    shutil.copytree(merged, bare)
    (bare / "salt.secret").unlink()  # without it nobody can tell which runs went in
    assert not any("selected" in text for text in compare_runs([runs["hidden"], bare], tmp_path / "out")["cautions"])
    other = compare_runs([runs["plain"], merged], tmp_path / "other")["cautions"]
    assert any("different deltas (0.0001, 1e-05)" in text for text in other)


def test_its_report_states_its_certificate(merged, tmp_path):
    page = Page(write_report([merged], tmp_path / "page.html").read_text())
    certificate = json.loads((merged / "certificate.json").read_text())
    upper = math.ceil(100 * certificate["epsilon"]["upper"]) / 100
    assert f"ε ≤ {upper:.2f}" in page.text
    assert "merged from 2 models by random selection" in page.text
    for fact in (certificate["mechanism_in_words"], certificate["model_sha256"], *certificate["assumptions"]):
        assert fact in page.text
    assert "a rehearsal" in page.text
    assert [part["name"] in page.text for part in certificate["inputs"]] == [True, True]
    assert f"{certificate['draw']['model']} (drawn)" in page.text
    assert len(page.addresses) == 1
    assert page.addresses[0].startswith("data:image/png;base64,")


def test_its_report_tells_nothing_of_models_that_are_not_released(runs, merged, tmp_path):
    text = Page(write_report([merged], tmp_path / "page.html").read_text()).text
    accuracies = set(re.findall(r"\d+\.\d%", text))
    summary = json.loads((merged / "summary.json").read_text())
    assert accuracies == {f"{summary['final']['accuracy']:.1%}"}
    assert (merged / "salt.secret").read_text() not in text


def test_a_report_of_runs_and_a_merged_model(runs, merged, tmp_path):
    page = Page(write_report([runs["hidden"], merged], tmp_path / "page.html").read_text())
    assert "2 models compared" in page.text
    assert "Caution: the epsilon of selected holds only while nothing else of hidden is released" in page.text
    assert "merged from 2 models" in page.text


def other_epsilon(folder: Path) -> None:
    change(folder / "certificate.json", lambda content: content | {"epsilon": {"lower": 0.0, "upper": 0.1}})


def other_format(folder: Path) -> None:
    change(folder / "certificate.json", lambda content: content | {"format": "fedamp merge certificate 9"})


def fewer_weights(folder: Path) -> None:
    change(folder / "certificate.json", lambda content: content | {"weights": content["weights"][1:]})


def no_text(folder: Path) -> None:
    (folder / "certificate.json").write_text("{")


def no_accuracy(folder: Path) -> None:
    change(folder / "summary.json", lambda content: content | {"final": {}})


def no_summary(folder: Path) -> None:
    (folder / "summary.json").unlink()


def change(file: Path, how) -> None:
    file.write_text(json.dumps(how(json.loads(file.read_text()))))


@pytest.mark.parametrize(
    "damage", [other_epsilon, other_format, fewer_weights, no_text, no_accuracy, no_summary], ids=lambda f: f.__name__
)
def test_damaged_folders_are_refused_in_one_line(merged, tmp_path, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(merged, folder)
    damage(folder)
    with pytest.raises(RunFolderError) as refused:
        read_merged(folder)
    assert str(folder) in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
