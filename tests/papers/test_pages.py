"""The papers' pages: every figure is made by a command, is shown where a newcomer looks, and has the numbers it had."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.papers import record
from benchmarks.papers.__main__ import PAPERS, figures_of, main

ROOT = Path(__file__).parents[2]
OVERVIEW = ROOT / "docs" / "papers.md"
# What the project promises to make again.
PROMISED = {
    "partitioning": ["figure_1", "figure_2", "figure_3", "table_1"],
    "allocation": [f"figure_{n}" for n in range(1, 12)],
    "modelmix": ["figure_2", "figure_3", "table_1", "table_2"],
    "groups": [f"figure_{n}" for n in range(3, 13)],
    "merging": ["figure_1", "figure_2", "figure_3", "figure_4", "figure_5", "figure_6", "figure_7", "figure_8"],
}


def page_of(paper: str) -> Path:
    return record.PAGES / f"{paper}.md"


def shown(page: Path) -> list[Path]:
    """The pictures that a page shows, with words for those who cannot see them."""
    found = re.findall(r"!\[([^\]]+)\]\(([^)]+\.png)\)", page.read_text(encoding="utf-8"))
    assert all(len(words) > 20 for words, _ in found)
    return [(page.parent / target).resolve() for _, target in found]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_promised_figure_has_a_command_a_picture_and_numbers(paper):
    names = [figure.__name__ for figure in figures_of(paper)]
    assert names == PROMISED[paper]
    records = json.loads((record.RESULTS / f"{paper}.json").read_text())
    assert sorted(records) == sorted(names)
    for figure in figures_of(paper):
        picture = record.picture_of(paper, figure)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 200_000, "people read this on phones"
        assert records[figure.__name__]["numbers"], "a picture alone cannot be compared"


@pytest.mark.parametrize("paper", PAPERS)
def test_the_paper_s_page_shows_all_pictures_and_the_numbers_of_the_last_run(paper):
    page = page_of(paper)
    pictures = [record.picture_of(paper, figure).resolve() for figure in figures_of(paper)]
    assert [picture for picture in shown(page) if picture in pictures] == pictures
    text = page.read_text(encoding="utf-8")
    records = json.loads((record.RESULTS / f"{paper}.json").read_text())
    assert set(re.findall(r"<!-- numbers: (\w+) -->", text)) == set(records)
    assert record.with_tables(text, records) == text


@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_names_scenarios_that_exist_and_the_command_that_makes_it_again(paper):
    text = page_of(paper).read_text(encoding="utf-8")
    assert f"benchmarks.papers {paper}" in text
    scenarios = {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    named = set(re.findall(r"scenarios/([\w-]+)\.yaml", text)) | (set(re.findall(r"`([\w-]+)`", text)) & scenarios)
    assert named, "a paper has its scenarios"
    assert named <= scenarios


def test_the_overview_shows_every_picture_and_is_two_clicks_from_any_number():
    pictures = [record.picture_of(paper, figure).resolve() for paper in PAPERS for figure in figures_of(paper)]
    assert shown(OVERVIEW) == pictures
    text = OVERVIEW.read_text(encoding="utf-8")
    assert all(f"(papers/{paper}.md" in text for paper in PAPERS)
    assert "(docs/papers.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_makes_one_figure_anywhere_and_touches_nothing_else(tmp_path, monkeypatch):
    page = page_of("partitioning").read_bytes()
    monkeypatch.chdir(tmp_path.parent)
    main(["partitioning", "--figure", "figure_2", "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partitioning-figure-2.png", "partitioning.json"]
    made = json.loads((tmp_path / "partitioning.json").read_text())["figure_2"]["numbers"]
    kept = json.loads((record.RESULTS / "partitioning.json").read_text())["figure_2"]["numbers"]
    assert [number["what"] for number in made] == [number["what"] for number in kept]
    # Closed forms and quadrature: another machine may round the last digits otherwise.
    assert [number["ours"] for number in made] == pytest.approx([number["ours"] for number in kept], rel=1e-6)
    assert page_of("partitioning").read_bytes() == page


def test_a_kept_training_is_not_made_again(tmp_path):
    made = []

    def train():
        made.append(len(made))
        return {"accuracy": 80.5}

    for settings in ({"clips": (1.0, 2.0)}, {"clips": (1.0, 2.0)}, {"clips": (1.0, 3.0)}):
        assert record.Kept(tmp_path / "trainings.jsonl").get(settings, train) == {"accuracy": 80.5}
    assert made == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "accepted"),
    [(["partitionning"], "partitioning, allocation"), (["groups", "--figure", "figure_99"], "figure_3, figure_4")],
)
def test_unknown_names_are_answered_with_those_that_are_known(arguments, accepted, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert accepted in capsys.readouterr().err


def test_makefile_passes_the_paper_on():
    planned = subprocess.run(
        ["make", "--dry-run", "papers", "PAPER=modelmix"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert planned.returncode == 0, planned.stderr
    assert "benchmarks.papers modelmix" in planned.stdout


def test_remarks_and_missing_numbers_make_columns_only_where_there_are_any():
    bare = {"what": "epsilon", "published": None, "ours": 1.23456, "remark": ""}
    assert record.table([bare]) == "|  | fedamp |\n| --- | --- |\n| epsilon | 1.235 |\n"
    both = [bare, {"what": "delta", "published": 0.5, "ours": 0.25, "remark": "half"}]
    assert record.table(both).splitlines()[-1] == "| delta | 0.5 | 0.25 | half |"
