"""What holds for every page: commands that exist, scenarios that are valid, links that lead somewhere.

That the commands do what a page says is tested where their code is tested (tests/*/test_documentation.py,
tests/deployment, tests/engines), and below for the README and the pages about everyday work.
"""

import ast
import importlib.util
import json
import re
import shlex

import numpy as np
import pytest
import yaml

from fedamp.accounting import Gaussian, Poisson, Repeat
from fedamp.cli.commands import SETTINGS
from fedamp.federation import reader
from tests.documentation import PAGES, ROOT, blocks, command_of, commands, find, python, text, write_files

# Programs of others, which the tests of their pages start.
FOREIGN = {
    "cat",
    "cmp",
    "cp",
    "rm",
    "docker",
    "export",
    "flower-superlink",
    "flower-supernode",
    "flwr",
    "umask",
    "for",
    "done",
    "mkdir",
    "patch",
}
FOREIGN |= {"fedamp-accounting", "kubectl", "nginx", "openssl", "pip", "ray", "sh", "sha256sum", "ssh-keygen"}
FOREIGN |= {"apt", "echo", "install", "systemctl", "useradd"}  # of the system, as root: nobody but a reader runs these

BASE = {
    "name": "base",
    "data": {"name": "digits", "clients": 60},
    "model": {"name": "mlp"},
    "rounds": 60,
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0},
}


def test_there_are_pages():
    assert "README.md" in PAGES
    assert len(PAGES) > 12


def test_what_a_page_says_is_so(subtests):
    for page in PAGES:
        with subtests.test(page):
            prose = re.sub(r"^```.*?^```", "", text(page), flags=re.DOTALL | re.MULTILINE)
            commands_exist(commands(page))
            commands_in_prose_exist(prose)
            names_exist(prose)
            scenarios_are_valid(page)
            for block in blocks(page, "python"):
                if not block.text.startswith(">>>"):
                    ast.parse(block.text)
            for target in re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", text(page)):
                assert ((ROOT / page).parent / target).exists(), target


def commands_exist(lines):
    for line in lines:
        program, *words = shlex.split(line)
        match program.rpartition("/")[2], words:
            case "fedamp", _:
                command, rest = command_of(words)
                command.make_context("fedamp", rest, **SETTINGS)  # parses, and runs nothing
            case "make", [target, *_]:
                assert re.search(rf"^{target}:", text("Makefile"), re.MULTILINE), line
            case "python" | "python3", ["-m", module, *_]:
                assert importlib.util.find_spec(module) is not None, line
            case name, _:
                assert name in FOREIGN, line


def commands_in_prose_exist(prose):
    """Commands between backticks may leave out arguments, but what they name exists."""
    for inline in re.findall(r"`fedamp ([^`]+)`", prose):
        command, rest = command_of(" ".join(inline.split()).split())
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in rest if word.startswith("--")} <= known, inline
    for target in re.findall(r"`make ([\w-]+)", prose):
        assert re.search(rf"^{target}:", text("Makefile"), re.MULTILINE), target
    for module in re.findall(r"`python -m ([\w.]+)", prose):
        assert importlib.util.find_spec(module) is not None, module


def names_exist(prose):
    """What is named of the code, as ``fedamp.accounting.Gaussian`` or ``fedamp/check_in.py``, is there."""
    for name in re.findall(r"`(fedamp(?:\.\w+)+)", prose):
        find(name)
    for file in re.findall(r"`((?:fedamp|tests|scenarios|benchmarks|docs|packaging)/[\w./-]+)`", prose):
        assert (ROOT / file).exists(), file


def scenarios_are_valid(page):
    """A whole one, or sections that can stand in one; those of the page of additions name what it adds."""
    if page == "docs/research/additions.md":
        return
    for block in blocks(page, "yaml"):
        raw = yaml.safe_load(block.text)
        if "variants" in raw:  # a study, which its page's test plays
            continue
        if isinstance(raw.get("model"), dict) and ":" in raw["model"]["name"]:
            raw["model"].pop("options", None)
        reader.validate_scenario(raw if "name" in raw else BASE | raw, page)


def test_every_page_that_the_code_names_is_there(subtests):
    """In errors, notes and docstrings; what an attacker or a fixture invents has other names."""
    files = [
        file for folder in ("fedamp", "benchmarks", "scenarios", "examples") for file in (ROOT / folder).rglob("*")
    ]
    for file in [file for file in files if file.suffix in (".py", ".yaml", ".j2", ".sh")]:
        for page in re.findall(r"(?<![\w/.])docs/[\w/-]+\.md", file.read_text("utf-8")):
            with subtests.test(str(file.relative_to(ROOT)), page=page):
                assert (ROOT / page).is_file()


def test_the_readme_leads_to_every_page():
    linked = set(re.findall(r"\((docs/[\w./-]+\.md)\)", text("README.md")))
    assert {page for page in PAGES if page.count("/") == 1} <= linked


# --- the pages about everyday work -----------------------------------------------------------------------------------


def run_commands(fedamp, lines) -> None:
    for line in lines:
        program, *words = shlex.split(line)
        assert program.rpartition("/")[2] == "fedamp"
        answer = fedamp(*words)
        assert answer.status == 0, line
        assert not re.search("^(error|failed|caution)", answer.err, re.MULTILINE), line  # a slow run tells its progress


@pytest.mark.slow
def test_the_readme(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    exec(python("README.md"), names := {})
    printed = capsys.readouterr().out
    trained, accounted = (block.text for block in blocks("README.md", "text"))
    costs, quality = trained.splitlines()
    spent = quality.partition(", ")[2]  # the accuracy before it is another one in each run
    assert all(line in printed for line in (costs, spent))
    shown, found = (
        re.findall(r"^([\d.]+) \(at least ([\d.]+)\)$", each, re.MULTILINE) for each in (accounted, printed)
    )
    # Sampled ends are from draws, which processors round unlike: they are within a step of the pilot's.
    assert np.array(found, float) == pytest.approx(np.array(shown, float), abs=0.005)
    first, then, last = (f"{float(upper):.1f}" for upper, _ in shown)
    assert f"**from {first} to {then}**, and hidden submodels **to {last}**" in " ".join(text("README.md").split())
    known, poisson, *hidden = (
        float(upper) for upper in re.findall(r"\| ([\d.]+) \|$", text("docs/idea.md"), re.MULTILINE)
    )
    assert [known, *hidden] == pytest.approx([float(upper) for upper, _ in found], abs=0.015)  # upwards to two decimals
    assert poisson == pytest.approx(Repeat(Poisson(Gaussian(1.0), 0.1), 100).epsilon(1e-5).upper, abs=0.01)
    assert f"# {names['scenario'].data.clients} clients, three digits each" in text("README.md")


@pytest.mark.slow
def test_from_python(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    exec(python("docs/python.md"), {})
    assert "privacy cost" in capsys.readouterr().out
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    assert len((tmp_path / "runs" / "watched" / "rounds.jsonl").read_text().splitlines()) == 20


@pytest.mark.slow
def test_write_a_scenario(fedamp, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert write_files("docs/scenarios.md", tmp_path) == ["mine.yaml"]
    # Without Ray, whose start takes as long as all of them; that its model is the same: tests/engines/test_grids.py.
    lines = commands("docs/scenarios.md")
    run_commands(fedamp, [line + " --engine serial" if line == "fedamp run mine.yaml" else line for line in lines])
    models = [(tmp_path / "runs" / name / "model.safetensors").read_bytes() for name in ("mine", "mine-2", "three")]
    assert models[0] == models[1]
    assert models[0] != models[2]


def test_read_a_ledger(fedamp, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    run_commands(fedamp, commands("docs/results.md"))
    exec(python("docs/results.md"), {})
    expression, comparison = capsys.readouterr().out.splitlines()
    assert expression.startswith("12 times (Poisson sampling at rate 0.1 of (Gaussian noise of multiplier ")
    lower, _, theirs, _, upper = comparison.split()
    # Theirs rounds losses up to a grid of 1e-4, twelve times.
    assert float(lower) <= float(theirs)
    assert float(upper) == pytest.approx(float(theirs), rel=2e-3)


@pytest.mark.slow
def test_a_year_of_a_hospital(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDAMP_HOME", "")  # the tutorial sets it; afterwards it is as before
    exec(python("docs/budget.md"), {})
    printed = capsys.readouterr().out
    assert "'settled': 3" in printed  # two trials and the run
    assert re.search(r"the person of unit 0 \(and 799 more\) has [\d.]+ % .* left, .* privacy.epsilon at most", printed)
    assert not re.search("^(fail|caution)", printed, re.MULTILINE)


@pytest.mark.slow
def test_sweeps_and_trackers(fedamp, monkeypatch, tmp_path, capsys):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    write_files("docs/studies.md", tmp_path)
    for page in ("docs/studies.md",):
        # Tuning needs a scenario of the reader's: tests/extensions/tune.
        run_commands(fedamp, [line for line in commands(page) if not re.search("^pip |tune", line)])
        exec(python(page), {})
    assert "Nothing is charged for choosing" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "sweeps" / "rates" / "sweep.json").read_text())["runs"]) == 8
    assert "k of T & " in (tmp_path / "studies" / "check-in" / "table.tex").read_text()
    assert list((tmp_path / "runs" / "tracked" / "tensorboard").iterdir())
    assert list((tmp_path / "runs" / "called" / "tensorboard").iterdir())
