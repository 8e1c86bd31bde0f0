"""docs/data.md: its snippets run, and its scenarios load what the snippets wrote."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from fedamp import scenario
from fedamp.data import count_clients, load

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder in which the page's snippets ran, one after the other, and what they printed."""
    folder = tmp_path_factory.mktemp("documentation")
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(PYTHON)], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


@pytest.mark.parametrize(
    ("number", "clients", "input_shape", "classes"),
    [(0, 50, (20,), 2), (1, 8, (2,), 2), (2, 12, (1, 8, 8), 3), (3, 12, (4,), 2)],
)
def test_every_scenario_loads_what_the_snippet_before_it_wrote(written, number, clients, input_shape, classes):
    config = TypeAdapter(scenario.Data).validate_python(yaml.safe_load(YAML[number])["data"])
    dataset = load(config, 7, written[0])
    assert (dataset.num_clients, dataset.input_shape, dataset.num_classes) == (clients, input_shape, classes)
    assert count_clients(config, written[0]) == clients
    assert len(YAML) == 4


def test_the_last_snippet_prints_the_natural_partition(written):
    # 12 records a client, of which the test set takes about a fifth.
    assert re.match(r"50 \(2, (9|10|11|12), 20\) \[\[", written[1])
