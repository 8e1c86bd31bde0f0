"""The commands that measure: what they skip, what they leave behind, and that the pages show what is stored."""

import itertools
import json
import re
import subprocess
from dataclasses import asdict, replace

import pytest

import benchmarks.__main__ as everything
from benchmarks import record
from benchmarks.record import ROOT, Finished, put_in, table
from benchmarks.speed import deployment, gpu, simulation, simulators, zoo
from benchmarks.studies import (
    correlated,
    demo,
    federation_tasks,
    federations,
    idea,
    install_sizes,
    lora_remedies,
    submodels,
)
from benchmarks.studies.federation_tasks import TASKS
from benchmarks.studies.federations import Bench, Cell, cells

FOLDER = ROOT / "benchmarks"


def test_an_interrupted_call_goes_on_until_the_code_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "ROOT", tmp_path)
    monkeypatch.setattr(everything, "Finished", lambda name, code: Finished(name, code, tmp_path))
    monkeypatch.setattr(everything, "MINUTES", {"speed.good": 2, "speed.bad": 3, "studies.later": 4})
    ran = []

    def run(command, **_):
        ran.append(command[-1].rpartition(".")[2])
        return subprocess.CompletedProcess(command, ran == ["good", "bad"])  # the second call fails once

    monkeypatch.setattr(subprocess, "run", run)
    assert everything.main([]) == 1
    assert capsys.readouterr().out.startswith("9 minutes: speed.good 2, speed.bad 3, studies.later 4\n")
    assert everything.main([]) == 0
    assert everything.main(["speed"]) == 0
    assert ran == ["good", "bad", "later", "bad", "good", "bad"]
    assert everything.main(["sped"]) == 2
    assert len(ran) == 6
    (tmp_path / "fedamp").mkdir()
    (tmp_path / "fedamp" / "changed.py").write_text("")
    assert everything.main([]) == 0
    assert ran[6:] == ["good", "bad", "later"]


def modules() -> dict[str, str]:
    """Texts of the modules, by name: ``speed.noise``, or ``peers`` for a package that is a command."""
    files = {file.relative_to(FOLDER).with_suffix(""): file.read_text() for file in FOLDER.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__main__"): text for name, text in files.items()}


def test_every_benchmark_that_is_a_command_is_among_all():
    commands = {name for name, text in modules().items() if 'if __name__ == "__main__"' in text}
    in_others_environments = {name for name in commands if name.startswith("peers.in_")}
    # The base of a scenario is shipped; papers have a target of their own.
    assert commands - in_others_environments - {"__main__", "studies.adapters", "papers"} == set(everything.MINUTES)


def test_every_result_has_its_module_and_a_page_that_names_its_command():
    pages = " ".join(file.read_text() for file in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    overview = (FOLDER / "README.md").read_text()
    for folder, file in [(each, file) for each in ("speed", "peers", "studies") for file in (FOLDER / each).iterdir()]:
        if file.suffix in (".json", ".jsonl"):
            assert file.with_suffix(".py").exists(), file
            command = "benchmarks.peers" if file.stem == "bench" else f"benchmarks.{folder}.{file.stem}"
            # The README's demo says no command; the overview itself shows the ratio of noise.
            assert f"python -m {command}" in " ".join(pages.split()) or file.stem in ("demo", "noise"), file
            assert f"`{file.stem}`" in overview or f"`python -m {command}`" in overview, file
            if folder != "studies":
                assert '"commit": "' in file.read_text(), file
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", overview):
        assert (FOLDER / target).exists(), target


def test_fedamp_takes_part_in_the_comparison_of_speed():
    """Its whole run, as the tables of docs/research/architecture.md time it: the first rounds and the last are not
    counted."""
    work = replace(simulation.MLP, clients=20, rounds=3)
    measured = simulators.answer(simulator="fedamp", workload=asdict(work), kind="serial", workers=1)
    assert len(measured["seconds"]) == 3
    assert min(measured["seconds"]) > 0
    assert simulation.figures_of([measured], work.clients)["clients_per_second"] > 0


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


def test_pictures_are_drawn_from_what_is_stored(tmp_path):
    runs = Bench(federations.RESULTS, quick=False).runs
    for draw in (federations.draw, federations.draw_worth, federations.draw_parts, federations.draw_frontier):
        draw(runs, file := tmp_path / f"{draw.__name__}.png")
        assert file.exists()


def test_the_pages_show_what_is_stored(monkeypatch):
    """What is measured again is in its page, or this fails."""
    for name, task in submodels.tasks().items():
        monkeypatch.setitem(TASKS, name, task)
    for name, schemes in lora_remedies.SCHEMES.items():
        monkeypatch.setitem(TASKS, name, replace(lora_remedies.FACTORS, schemes=schemes))
    runs, ways, remedies = (Bench(each.RESULTS, False).runs for each in (federations, submodels, lora_remedies))
    noisy, extras = correlated.stored(), json.loads(install_sizes.RESULTS.read_text())["extras"]
    stored = (
        (ROOT / "README.md", "federations: sections, short", federations.short_table(runs)),
        (ROOT / "README.md", "federations: worth", federations.worth(runs)),
        (demo.PAGE, "demo", demo.told(json.loads(demo.RESULTS.read_text())["accuracies"])),
        (simulation.PAGE, "table: simulation", simulation.in_markdown(json.loads(simulation.RESULTS.read_text()))),
        (deployment.PAGE, "deployment", table(deployment.rows(json.loads(deployment.RESULTS.read_text())))),
        (install_sizes.PAGE, "install sizes", install_sizes.main_table(extras)),
        (install_sizes.PAGE, "install sizes: more", install_sizes.more_table(extras)),
        (submodels.PAGE, "federations: submodels", submodels.table(ways + runs)),
        (lora_remedies.PAGE, "federations: remedies", lora_remedies.table(remedies)),
        (correlated.PAGE, "numbers: matrices", table(correlated.matrices_table(noisy))),
        (correlated.PAGE, "numbers: bands", table(correlated.bands_table(noisy))),
    )
    for page, mark, found in stored:
        assert f"<!-- {mark} -->\n{found.rstrip()}\n<!-- end -->" in page.read_text(), mark
    models = json.loads(zoo.RESULTS.read_text())["models"]
    assert f"<!-- zoo -->\n{zoo.page(models)}<!-- end -->\n" in zoo.PAGE.read_text()
    assert f"([{len(models)} of them](docs/research/zoo.md))" in (ROOT / "README.md").read_text()


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


def test_the_benchmark_of_a_gpu_takes_eight_minutes_and_tells_ratios():
    assert sum(gpu.SECONDS.values()) <= 480
    assert gpu.SECONDS.keys() == gpu.PARTS.keys()
    found = {
        "MLP, 9: fedamp": {"clients_per_second": 6.0},
        "MLP, 9: JAX": {"clients_per_second": 8.0},
        "MLP, 9: pfl": {"problem": "not installed"},
        "CNN, 9: JAX": {"clients_per_second": 8.0},
    }
    assert gpu.ratios(found) == {"MLP, 9": {"JAX": 0.75}}


@pytest.mark.slow
def test_the_benchmark_of_a_gpu_runs_on_a_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "workloads", lambda small: [replace(simulation.MLP, clients=4, rounds=1)])
    found = dict(itertools.islice(gpu.speed("cpu", True), 3))
    assert list(found) == [f"MLP 64-128-10, 4: {name}" for name in ("fedamp", "bare vmap", "captured vmap")]
    assert not [figures for figures in found.values() if "problem" in figures]
    assert gpu.ratios(found)["MLP 64-128-10, 4"].keys() == {"bare vmap", "captured vmap"}
