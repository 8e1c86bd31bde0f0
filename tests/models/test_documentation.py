"""docs/models.md: a model of one's own, beside its scenario, from the command line on."""

import json
import os
import subprocess
import sysconfig

from fedamp.scenario import scenario_file
from tests.documentation import commands, write_files


def test_a_model_beside_its_scenario_is_found_wherever_the_command_is_typed(tmp_path):
    """In a process of its own, as a person would: what the tests can import must not help."""
    beside = tmp_path / "beside"
    beside.mkdir()
    assert write_files("docs/models.md", beside) == ["my_loss.py", "huber.yaml", "own.yaml", "my_model.py"]
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PATH": path}

    def shell(command, where):
        done = subprocess.run(["sh", "-c", command], cwd=where, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    run_with_loss, validate, run = commands("docs/models.md")
    shell(f"{run_with_loss} --engine serial", beside)
    final = json.loads((beside / "runs" / "huber" / "summary.json").read_text())["final"]
    assert list(final["metrics"]) == ["r2", "mean_absolute_error"]
    assert validate == "fedamp scenarios validate own.yaml"  # as the run does first
    shell(f"{run} --engine serial", beside)
    summary = json.loads((beside / "runs" / "own" / "summary.json").read_text())
    assert summary["rounds_completed"] == 10
    assert summary["cost"]["parameters_share"] < 0.4  # it was really split in four
    kept = scenario_file.load(beside / "runs" / "own" / "scenario.yaml")  # with which it is resumed, and merged
    assert kept.model.folder == str(beside)
