"""The scripts for Slurm: bash reads them, and they start what the pages start (docs/research/machines.md)."""

import re
import shlex
import subprocess

import pytest
import typer

from fedamp.cli.commands import app
from tests.deployment.machines import PAGE
from tests.deployment.test_services import options
from tests.documentation import ROOT, shell
from tests.tools import needs_ray

SCRIPTS = {name: ROOT / "packaging" / "slurm" / f"{name}.sbatch" for name in ("federation", "ray")}


def started(name: str, program: str) -> list[str]:
    """The commands of a script that start a program, each as one line."""
    lines = SCRIPTS[name].read_text().replace("\\\n", " ").splitlines()
    return [line.partition(program)[2] for line in lines if program in line and not line.startswith("#")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_and_slurm_read_the_script(name):
    subprocess.run(["bash", "-n", SCRIPTS[name]], check=True)
    text = SCRIPTS[name].read_text()
    asked = re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE)
    known = {"job-name", "nodes", "ntasks-per-node", "exclusive", "time", "cpus-per-task"}
    assert {option for option, _ in asked} <= known
    assert "set -euo pipefail" in text
    assert "umask 077" in text


def test_the_federation_starts_what_the_page_starts():
    for program, title in [
        ("fedamp superlink", "server: start the SuperLink"),
        ("fedamp node", "node: start the SuperNode"),
    ]:
        [command] = started("federation", program)
        assert options(command) == options(shell(PAGE, title))
    assert "--exclusive" in SCRIPTS["federation"].read_text()  # others could reach Flower's ports


@needs_ray
def test_ray_and_fedamp_know_the_options_of_the_script():
    from ray.scripts.scripts import cli

    commands = started("ray", "ray start")
    assert len(commands) == 2
    for words in commands:
        known = re.sub(r'"\$\{\w+\[@\]\}"|&', "", words)
        cli.commands["start"].make_context("start", shlex.split(re.sub(r'"\$(port|cores)"', "1", known)))
    [run] = started("ray", "fedamp run")
    command = typer.main.get_command(app).commands["run"]
    command.make_context("run", shlex.split(run.replace("${RESUME:-}", "--resume")))
    assert "RAY_AUTH_MODE=token" in SCRIPTS["ray"].read_text()
