"""The commands that measure: what they skip, and that the pages show what is stored."""

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import benchmarks.__main__ as everything
from benchmarks import finished
from benchmarks.pages import put_in
from benchmarks.papers import record
from benchmarks.speed import deployment, simulation, simulation_table, simulators, zoo
from benchmarks.speed.limited import Stopwatch, Timed
from benchmarks.studies import demo, federation_tasks, federations, idea, submodels
from benchmarks.studies.federation_tasks import TASKS
from benchmarks.studies.federations import Bench, Cell, cells, table

ROOT = Path(__file__).parents[1]


def test_what_is_finished_is_kept_until_the_code_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(finished, "ROOT", tmp_path)
    code = tmp_path / "code" / "a.py"
    code.parent.mkdir()
    code.write_text("1")
    finished.Finished("all", ["code"], tmp_path).add("first")
    again = finished.Finished("all", ["code"], tmp_path)
    assert "first" in again
    assert "second" not in again
    code.write_text("2")
    assert "first" not in finished.Finished("all", ["code"], tmp_path)


def test_an_interrupted_call_goes_on_and_what_failed_is_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(finished, "ROOT", tmp_path)
    monkeypatch.setattr(everything, "Finished", lambda name, code: finished.Finished(name, code, tmp_path))
    monkeypatch.setattr(everything, "MINUTES", {"good": 2, "bad": 3, "later": 4})
    ran = []

    def run(command, **_):
        ran.append(command[-1].removeprefix("benchmarks."))
        return subprocess.CompletedProcess(command, ran == ["good", "bad"])  # the second call fails once

    monkeypatch.setattr(subprocess, "run", run)
    assert everything.main([]) == 1
    assert capsys.readouterr().out.startswith("9 minutes: good 2, bad 3, later 4\n")
    assert everything.main([]) == 0
    assert everything.main(["good"]) == 0
    assert ran == ["good", "bad", "later", "bad", "good"]
    assert everything.main(["godo"]) == 2


def test_every_benchmark_that_is_a_command_is_among_all():
    files = {file.relative_to(ROOT / "benchmarks"): file for file in (ROOT / "benchmarks").rglob("*.py")}
    commands = {".".join(name.with_suffix("").parts).removesuffix(".__main__") for name, file in files.items()
                if 'if __name__ == "__main__"' in file.read_text(encoding="utf-8")}  # fmt: skip
    commands -= {name for name in commands if name.startswith("peers.in_")}  # in the environments of the peers
    # The base of a scenario is shipped; visits need a package index; papers have a target of their own.
    assert commands - {"__main__", "studies.adapters", "speed.visits", "papers"} == set(everything.MINUTES)


def test_fedamp_takes_part_in_the_comparison_of_speed():
    """Its whole run, as the tables of docs/architecture.md time it: the first rounds and the last are not counted."""
    work = replace(simulation.MLP, clients=20, rounds=3)
    measured = simulators.answer(simulator="fedamp", workload=asdict(work), kind="serial", workers=1)
    assert len(measured["seconds"]) == 3
    assert min(measured["seconds"]) > 0
    assert simulation.figures_of([measured], work.clients)["clients_per_second"] > 0


def test_a_comparison_without_fedamp_keeps_the_figures_that_are_stored(tmp_path, monkeypatch):
    failed = Timed(None, 0.0, "AttributeError: gone")
    monkeypatch.setattr(Stopwatch, "ask", lambda *_, **asked: failed)
    (out := tmp_path / "figures.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"^fedamp, 1 worker: AttributeError: gone$"):
        simulation.main(["--quick", "--out", str(out)])
    assert out.read_text() == "{}"


@pytest.fixture
def tasks(monkeypatch, tmp_path):
    """The tasks, without features of Fashion-MNIST and a trained base: they take long, and no scenario reads them."""
    monkeypatch.syspath_prepend(str(federations.SHIPPED))
    monkeypatch.setattr(federation_tasks, "folders", lambda: {True: tmp_path / "tuning", False: tmp_path / "test"})
    monkeypatch.setattr(federation_tasks, "near", lambda: None)
    monkeypatch.setattr(federation_tasks.encoder, "vectors", lambda: tmp_path)
    return TASKS


@pytest.mark.parametrize("task", TASKS)
def test_every_scheme_of_a_task_is_a_scenario(task, tasks):
    found = list(cells(task))
    assert len(found) == len(set(found))
    for cell in found:
        scenario = (
            cell.to_calibrate()
            if cell.epsilon
            else cell._scenario(False, 1, 1.0, (1.0, 1.0), {"noise_multiplier": 0.0})
        )
        assert scenario.privacy.unit == "client"
        assert scenario.privacy.delta * tasks[task].clients < 1


def test_rates_are_chosen_apart_from_the_test(tasks):
    for name, task in tasks.items():
        scenario = Cell(name, next(name for name, scheme in task.schemes.items() if scheme.private), 1.0).to_calibrate()
        apart = task.data(True) != task.data(False)  # another file
        assert apart or task.personal or scenario.federation.validation_share > 0, name


def test_the_readme_shows_what_is_stored():
    bench = Bench(ROOT / federations.RESULTS, quick=False)
    told = {
        "sections, short": table(bench.runs, "sections", federations.SHORT, federations.README_BUDGETS),
        "worth": federations.worth(bench.runs),
    }
    for name, found in told.items():
        assert f"<!-- federations: {name} -->\n{found}\n<!-- end -->" in (ROOT / "README.md").read_text()


def test_pictures_are_drawn_from_what_is_stored(tmp_path):
    runs = Bench(ROOT / federations.RESULTS, quick=False).runs
    for draw in (federations.draw, federations.draw_worth, federations.draw_parts, federations.draw_frontier):
        draw(runs, file := tmp_path / f"{draw.__name__}.png")
        assert file.exists()


def test_the_page_of_the_first_paper_shows_the_stored_submodels(monkeypatch):
    for name, task in submodels.tasks().items():
        monkeypatch.setitem(TASKS, name, task)
    runs = [run for each in (submodels, federations) for run in Bench(ROOT / each.RESULTS, quick=False).runs]
    found = f"<!-- federations: submodels -->\n{submodels.table(runs)}\n<!-- end -->"
    assert found in (ROOT / submodels.PAGE).read_text()


def test_the_pages_show_the_stored_figures():
    """What is measured again stands in its page, or this fails."""
    stored = {
        demo.PAGE: ("demo", demo.told(json.loads(demo.RESULTS.read_text()))),
        simulation_table.PAGE: (
            "table: simulation",
            simulation_table.in_markdown(json.loads((simulation.RESULTS / "simulation.json").read_text())).rstrip(),
        ),
        ROOT / deployment.PAGE: (
            "deployment",
            record.table(deployment.rows(json.loads((ROOT / deployment.RESULTS).read_text()))).rstrip(),
        ),
    }
    for page, (mark, found) in stored.items():
        assert f"<!-- {mark} -->\n{found}\n<!-- end -->" in page.read_text(), mark
    models = json.loads(zoo.RESULTS.read_text())["models"]
    assert zoo.PAGE.read_text() == zoo.page(models)
    assert f"([{len(models)} of them](docs/zoo.md))" in (ROOT / "README.md").read_text()


def test_settings_in_the_words_of_the_first_page_are_those_of_its_figures():
    text, task = " ".join((ROOT / "README.md").read_text().split()), TASKS["sections"]
    rounds, times = (task.federation[key] for key in ("rounds", "check_in"))
    assert f"{task.clients:,} people and teams train a linear layer" in text
    assert f"in {times['k']} of {rounds} rounds each" in text
    words = (
        f"takes part in {idea.CHECK_INS} of {idea.ROUNDS} rounds, at noise multiplier {idea.NOISE.noise_multiplier:g}"
    )
    assert words in text


def test_a_figure_goes_to_its_place_and_never_silently_nowhere(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- deployment -->\nold | 1\n<!-- end -->\n<!-- other -->\nkept\n<!-- end -->\n")
    put_in(page, "deployment", "new\n")
    text = "before\n<!-- deployment -->\nnew\n<!-- end -->\n<!-- other -->\nkept\n<!-- end -->\n"
    assert page.read_text() == text
    with pytest.raises(ValueError, match="0 places <!-- gone -->"):
        put_in(page, "gone", "new")
    assert page.read_text() == text
