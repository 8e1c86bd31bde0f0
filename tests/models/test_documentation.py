"""docs/models.md: a model of one's own, beside its scenario, from the command line on."""

import json

import pytest

from fedamp.federation import reader
from tests.documentation import commands, run_elsewhere, write_files


@pytest.mark.slow
def test_a_model_beside_its_scenario_is_found_wherever_the_command_is_typed(tmp_path):
    """In a process of its own, as a person would: what the tests can import must not help."""
    assert write_files("docs/models.md", tmp_path) == ["my_loss.py", "huber.yaml", "own.yaml", "my_model.py"]
    run_with_loss, validate, run = commands("docs/models.md")
    run_elsewhere([f"{run_with_loss} --engine serial", validate, f"{run} --engine serial"], tmp_path)
    final = json.loads((tmp_path / "runs" / "huber" / "summary.json").read_text())["final"]
    assert list(final["metrics"]) == ["r2", "mean_absolute_error"]
    summary = json.loads((tmp_path / "runs" / "own" / "summary.json").read_text())
    assert summary["rounds_completed"] == 10
    assert summary["cost"]["parameters_share"] < 0.4  # it was really split in four
    kept = reader.load(tmp_path / "runs" / "own" / "scenario.yaml")  # with which it is resumed, and merged
    assert kept.model.folder == str(tmp_path)
