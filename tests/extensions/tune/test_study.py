"""A study: its table says what its runs say, its files are ready for a paper, and it can be extended."""

import csv
import io
import json
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from rich.console import Console
from scipy import stats

import fedamp
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.extensions.tune.progress import SweepProgress
from fedamp.report.style import Picture
from fedamp.report.tables import RowCells
from tests.federations import SMALL
from tests.tools import PDFLATEX

TINY = yaml.safe_load(SMALL) | {"rounds": 2, "check_in": {"scheme": "all"}, "data": {"name": "digits", "clients": 40}}
TINY["privacy"] = {"clip": 0.5, "noise_multiplier": "auto", "epsilon": 4.0, "precision": 0.1}
STUDY = {
    "scenario": TINY,
    "variants": {
        "all & each": {"check_in": {"scheme": "all"}},
        "half": {"check_in": {"scheme": "poisson", "rate": 0.5}},
    },
    "grid": {"privacy.epsilon": [8, 2]},
    "seeds": [1, 2],
    "without_noise": True,
    "unamplified": True,
}
FILES = {"table.csv", "table.md", "table.tex", "figure.pdf", "figure.svg", "figure.png", "study.json"}


@pytest.fixture(name="command")
def command_fixture(request):
    return request.getfixturevalue("fedamp")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return fedamp.study(STUDY, out=tmp_path_factory.mktemp("study") / "out", jobs=1)


@pytest.fixture(name="drawn")
def drawn_fixture(study, monkeypatch):
    """Pictures as they are; elsewhere in this room they are empty files."""
    monkeypatch.setattr(Picture, "savefig", Figure.savefig)
    study.write()


def accuracies(folder: Path) -> dict[tuple[str, object], list[float]]:
    """The final accuracies by variant and budget, read without fedamp."""
    found: dict[tuple[str, object], list[float]] = {}
    for summary in sorted((folder / "runs").glob("*/summary.json")):
        scenario = yaml.safe_load((summary.parent / "scenario.yaml").read_text())
        name = {"all": "all & each", "poisson": "half"}[scenario["check_in"]["scheme"]]
        accuracy = json.loads(summary.read_text())["final"]["accuracy"]
        found.setdefault((name, scenario["privacy"].get("epsilon")), []).append(accuracy)
    return found


def test_the_table_has_the_means_of_the_runs_with_their_t_intervals(study):
    assert {each.name for each in study.folder.iterdir()} >= FILES
    with (study.folder / "table.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    found = accuracies(study.folder)
    assert len(rows) == len(found) == 6
    for row in rows:
        values = found[row["variant"], float(row["privacy.epsilon"]) if row["privacy.epsilon"] else None]
        mean, error = np.mean(values), stats.sem(values)
        assert float(row["mean"]) == pytest.approx(mean)
        if error:  # scipy gives no interval of equal values
            ends = stats.t.interval(0.95, len(values) - 1, mean, error)
            assert (float(row["lower"]), float(row["upper"])) == pytest.approx(ends)
    lines = (study.folder / "table.md").read_text().splitlines()
    assert lines[0] == "| variant | ε = 2 | ε = 8 | without noise |"
    cell = f"{np.mean(found['half', 2]):.1%}".rstrip("%")
    assert re.match(rf"\| half \| (\*\*)?{cell} ± \d+\.\d", lines[3])


def test_the_best_of_a_column_is_bold_and_what_reaches_it(study):
    answer = study.to_json()
    for place in range(3):
        column = [(line[place], line[place]["score"]) for line in answer["table"]["lines"].values()]
        best = max(score["mean"] for _, score in column)
        for cell, score in column:
            assert cell["is_best"] == (score["mean"] + score["half_width"] >= best)


def test_frames_have_a_row_for_each_run_and_for_each_point(study):
    pytest.importorskip("pandas")
    assert len(study.frame()) == 12
    assert {"variant", "privacy.epsilon", "seed", "accuracy", "epsilon_upper"} <= {*study.frame()}
    assert len(study.means()) == 6


def test_the_figure_fits_a_column_names_its_axes_and_holds_its_fonts(study, drawn):
    picture = ET.parse(study.folder / "figure.svg").getroot()
    assert picture.get("width") == "237.6pt"  # 3.3 inches
    assert not picture.findall(".//{*}text")  # letters are outlines, so no reader lacks a font
    assert b"/FontFile2" in (study.folder / "figure.pdf").read_bytes()
    axes = study.plot().axes[0]
    assert axes.get_xlabel() == "privacy cost ε, at most (less is better)"
    assert axes.get_ylabel() == "accuracy, %"
    names = [text.get_text() for text in study.plot().legends[0].get_texts()]
    said = ["without noise", "95 % interval of the mean (t)", "without amplification"]
    assert names == ["all & each", "half", *said]


def test_a_numeric_key_is_across_wherever_it_stands(tmp_path):
    grid = {"check_in": [{"scheme": "all"}, {"scheme": "poisson", "rate": 0.5}], "privacy.noise_multiplier": [5, 1]}
    swept = fedamp.sweep(TINY | {"privacy": {"clip": 0.5, "noise_multiplier": 1}}, grid, out=tmp_path / "out", jobs=1)
    layout = swept.layout()
    assert (layout.across, layout.values) == ("privacy.noise_multiplier", [1, 5])
    assert list(layout.lines) == ["check-in all", "check-in poisson, rate 0.5"]
    assert len(swept.plot("score").axes[0].get_lines()) == 2


def test_variants_are_rows_at_a_single_budget_too(study, tmp_path):
    single = STUDY | {"grid": {"privacy.epsilon": [2]}, "without_noise": False, "seeds": 1}
    lines = fedamp.study(single, out=tmp_path / "out", jobs=1).markdown().splitlines()
    assert lines[0] == "| variant | ε = 2 |"
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| all & each", "| half"]
    assert fedamp.compare([tmp_path / "out"]).plot().axes[0].get_xlabel().startswith("privacy cost")


def test_a_further_variant_plays_its_runs_alone(study, command, tmp_path):
    def times():
        return {file: file.stat().st_mtime_ns for file in (study.folder / "runs").glob("*/summary.json")}

    before = times()
    file = tmp_path / "more.yaml"
    more = {"variants": STUDY["variants"] | {"third": {"check_in": {"scheme": "poisson", "rate": 0.3}}}, "seeds": 1}
    file.write_text(yaml.safe_dump(STUDY | more))
    done = command("study", file, "--out", study.folder, "--jobs", "1")
    assert (done.status, done.err) == (0, "")
    assert "table.tex" in done.out
    after = times()
    assert before.items() <= after.items()
    assert len(after) == len(before) + 3
    assert "third" in command("compare", study.folder, "--format", "markdown", "--out", tmp_path).out
    other = {"variants": {"half": {"check_in": {"scheme": "poisson", "rate": 0.4}}}}
    with pytest.raises(RunFolderError, match="another scenario; expected: another folder with out=FOLDER"):
        fedamp.study(STUDY | other, out=study.folder, jobs=1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"variants": {}}, "variants: .*at least 1"),
        ({"metrics": "accuracy"}, "metrics: no such key; expected: scenario, variants, grid, seeds, metric"),
        ({"seeds": 0}, "seeds"),
        ({"grid": {"rounds": [1]}}, "without_noise: expected with it: privacy.epsilon in the grid"),
        ({"variants": {"a": {"privacy.epsilon": 1}}}, "privacy.epsilon: in variant a and in the grid; expected: one"),
        ({"grid": {"seed": [1], "privacy.epsilon": [1]}}, "grid: expected: keys of a scenario"),
    ],
)
def test_a_wrong_study_is_refused_in_one_line(wrong, words, tmp_path):
    with pytest.raises(ScenarioError, match=words) as refused:
        fedamp.study(STUDY | wrong, out=tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_one_budget_shows_each_variant_on_a_line_of_its_own(tmp_path):
    """Over one budget, all points would cover each other."""
    one = fedamp.study(
        STUDY | {"grid": {"privacy.epsilon": [8]}, "seeds": 1, "without_noise": False, "unamplified": False},
        out=tmp_path / "one",
        jobs=1,
    )
    (axes,) = one.pictures()["figure"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(STUDY["variants"])
    assert axes.get_xlabel() == "accuracy, % (mean, 95 % interval)"
    [points] = [line.get_xydata() for line in axes.lines if line.get_marker() == "o"]
    assert points[:, 1].tolist() == [0, 1]
    assert points[:, 0] == pytest.approx([100 * row["mean"] for row in one.means()])


WIDE = RowCells(
    ["variant"], [*(f"ε = {each}" for each in (1, 2, 4, 8)), "none"], [["k of T, halves", *["53.2 ± 12.7"] * 5]]
)


def test_a_wide_table_has_a_smaller_font():
    narrow = WIDE._replace(right=WIDE.right[:2], rows=[WIDE.rows[0][:3]])
    assert [r"\footnotesize" in each.latex(caption="a table", label="tab:a") for each in (WIDE, narrow)] == [
        True,
        False,
    ]


@pytest.mark.slow
@pytest.mark.skipif(PDFLATEX is None, reason="there is no pdflatex here, and `make install` could get none")
def test_the_table_and_the_figure_compile_in_a_paper(study, drawn, tmp_path):
    body = (study.folder / "table.tex").read_text() + WIDE.latex(caption="Wide", label="tab:wide")
    figure = rf"\includegraphics{{{study.folder}/figure.pdf}}"
    packages = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n"
    paper = f"{packages}\\begin{{document}}\n{body}\nTable~\\ref{{tab:out}}\n\n{figure}\n\\end{{document}}\n"
    (tmp_path / "paper.tex").write_text(paper)
    for _ in range(2):  # the second time finds the label
        command = [PDFLATEX, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")
    assert b"Warning" not in said.stdout
    assert b"Overfull" not in said.stdout


@pytest.mark.slow
def test_a_log_says_which_run_plays_and_how_long_it_takes(monkeypatch, tmp_path):
    monkeypatch.setattr("fedamp.report.progress.HEARTBEAT", 0.05)
    with SweepProgress(Console(file=(stream := io.StringIO()))).shown() as progress:
        fedamp.study(STUDY | {"seeds": 1}, out=tmp_path / "out", jobs=2, watcher=progress)
    form = r"runs \d/6 after \d+ s(, about \d+ (s|min|h) left)?  (half|all & each), .*seed 1: round [12] of 2"
    assert [line for line in stream.getvalue().splitlines() if re.fullmatch(form, line)]
