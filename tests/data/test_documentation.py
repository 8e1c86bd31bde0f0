"""docs/data.md: its snippets run, its scenarios load what the snippets wrote, and one of them trains."""

import json
import shlex
import subprocess
import sys

import pytest
import yaml
from pydantic import TypeAdapter

from fedamp.data.sections import Data
from tests.documentation import blocks, commands, python, write_files

PAGE = "docs/data.md"
SECTIONS = [block.text for block in blocks(PAGE, "yaml") if block.file in (None, "", "sensors.yaml")]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder in which the page's snippets ran, one after the other."""
    folder = tmp_path_factory.mktemp("documentation")
    result = subprocess.run([sys.executable, "-c", python(PAGE)], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize(
    ("number", "clients", "input_shape", "classes"),
    [(0, 50, (20,), 2), (1, 8, (2,), 2), (2, 12, (1, 8, 8), 3), (3, 12, (4,), 2)],
)
def test_every_section_loads_what_the_snippet_before_it_wrote(written, number, clients, input_shape, classes):
    config = TypeAdapter(Data).validate_python(yaml.safe_load(SECTIONS[number])["data"])
    dataset = config.load(7, written)
    assert (dataset.num_clients, dataset.input_shape, dataset.num_classes) == (clients, input_shape, classes)
    assert config.count_clients(written) == clients
    assert len(SECTIONS) == 6  # the last two need other data: see test_published.py, tests/extensions/standardise


@pytest.mark.slow
def test_from_the_file_to_a_private_model(written, fedamp, monkeypatch):
    folder = written
    monkeypatch.chdir(folder)
    assert write_files(PAGE, folder) == ["sensors.yaml", "notes.yaml", "letters.yaml"]
    show, run, run_tokens, run_texts = commands(PAGE)
    assert "50 clients" in " ".join(fedamp(*shlex.split(show)[1:]).out.split())
    assert fedamp(*shlex.split(run)[1:], "--engine", "serial").status == 0
    assert fedamp(*shlex.split(run_tokens)[1:], "--engine", "serial").status == 0
    assert fedamp(*shlex.split(run_texts)[1:], "--engine", "serial").status == 0
    assert json.loads((folder / "runs" / "sensors" / "summary.json").read_text())["final"]["accuracy"] is None
    assert "perplexity" in json.loads((folder / "runs" / "notes" / "summary.json").read_text())["final"]["metrics"]
    assert json.loads((folder / "runs" / "sensors" / "summary.json").read_text())["epsilon"]["upper"] <= 8
