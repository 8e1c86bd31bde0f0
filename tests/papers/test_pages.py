"""The pages of ``make papers``: each has its pictures, the stored tables, and the command that makes it."""

import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.papers import __main__ as papers
from benchmarks.papers import record
from benchmarks.papers.__main__ import PAGES, PAPERS, figures_of, main, tables_of
from benchmarks.record import Finished, Kept, table

ROOT = Path(__file__).parents[2]
# The figures and tables of the papers that the project promises to reproduce.
PROMISED = {
    "partitioning": {"figure_1", "figure_2", "figure_3", "table_1"},
    "allocation": {f"figure_{n}" for n in range(1, 12)},
    "modelmix": {"figure_2", "figure_3", "table_1", "table_2"},
    "groups": {f"figure_{n}" for n in range(3, 13)},
    "merging": {f"figure_{n}" for n in range(1, 9)},
}


def shown(page: Path) -> list[Path]:
    """The pictures of a page, each described for readers who cannot see it."""
    found = re.findall(r"!\[([^\]]+)\]\(([^)]+\.png)\)", page.read_text(encoding="utf-8"))
    assert all(len(words) > 20 for words, _ in found)
    return [(page.parent / target).resolve() for _, target in found]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_promised_figure_has_a_picture_on_the_page(paper):
    figures = [figure for figure in figures_of(paper) if figure.__name__ in PROMISED[paper]]
    assert {figure.__name__ for figure in figures} == PROMISED[paper]
    pictures = [record.picture_of(paper, figure).resolve() for figure in figures]
    assert shown(PAGES[paper]) == pictures
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 200_000, "people read this on phones"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_stored_tables(page):
    text, tables = PAGES[page].read_text(encoding="utf-8"), tables_of(page)
    assert set(tables) == {figure.__name__ for figure in figures_of(page)}
    shown_ = set(re.findall(r"<!-- numbers: (\w+) -->", text))
    assert shown_
    assert shown_ <= set(tables)
    if shown_ < set(tables):  # pictures show the others
        assert f"`benchmarks/papers/{page}.json`" in text
    assert record.with_tables(text, tables) == text


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_names_scenarios_that_exist_and_its_command(paper):
    text = PAGES[paper].read_text(encoding="utf-8")
    assert f"benchmarks.papers {paper}" in text
    scenarios = {path.stem for path in (ROOT / "scenarios").glob("*.yaml")}
    named = set(re.findall(r"scenarios/([\w-]+)\.yaml", text)) | (set(re.findall(r"`([\w-]+)`", text)) & scenarios)
    assert named, "a paper has its scenarios"
    assert named <= scenarios


def test_the_overview_names_every_page():
    text = (ROOT / "docs" / "research" / "papers.md").read_text(encoding="utf-8")
    assert all(f"(papers/{paper}.md)" in text for paper in PAPERS)
    assert "(docs/research/papers.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_makes_one_figure_anywhere_and_touches_nothing_else(tmp_path, monkeypatch):
    page = PAGES["partitioning"].read_bytes()
    monkeypatch.chdir(tmp_path.parent)
    main(["partitioning", "--figure", "figure_2", "--out", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partitioning-figure-2.png", "partitioning.json"]
    assert PAGES["partitioning"].read_bytes() == page


def test_all_pages_say_how_long_they_take_and_an_interrupted_call_goes_on(tmp_path, monkeypatch, capsys):
    made, broken = [], ["modelmix"]

    def make(page, *_):
        if broken and page == broken[0]:
            raise KeyboardInterrupt(broken.pop())
        made.append(page)

    monkeypatch.setattr(record, "make", make)
    monkeypatch.setattr(papers, "write_tables", lambda page: None)
    monkeypatch.setattr(papers, "Finished", lambda name, code: Finished(name, code, tmp_path))
    with pytest.raises(KeyboardInterrupt):
        main([])
    main([])
    assert made == [*PAGES]
    first, second = (line for line in capsys.readouterr().out.splitlines() if "minutes on one core" in line)
    assert all(page in first for page in PAGES)
    assert "partitioning" not in second


def test_a_stored_training_is_not_run_again(tmp_path):
    made = []

    def train():
        made.append(len(made))
        return {"accuracy": 80.5}

    for settings in ({"clips": (1.0, 2.0)}, {"clips": (1.0, 2.0)}, {"clips": (1.0, 3.0)}):
        assert Kept(tmp_path / "trainings.jsonl").get(settings, train) == {"accuracy": 80.5}
    assert made == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["partitionning"], "partitioning, allocation"), (["groups", "--figure", "figure_99"], "figure_3, figure_4")],
)
def test_unknown_names_are_answered_with_those_that_are_known(arguments, expected, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err


def test_makefile_passes_the_paper_on():
    planned = subprocess.run(
        ["make", "--dry-run", "papers", "PAPER=modelmix"], cwd=ROOT, capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr
    assert "benchmarks.papers modelmix" in planned.stdout


def test_a_table_has_four_digits_text_and_empty_cells():
    rows = [{"": "epsilon", "a": {"value": 1.23456, "asked": {}}, "b": None}, {"": "delta", "a": 0.5, "b": "half"}]
    assert table(rows) == "|  | a | b |\n| --- | --- | --- |\n| epsilon | 1.235 |  |\n| delta | 0.5 | half |\n"
