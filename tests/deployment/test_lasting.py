"""``fedamp node`` among real processes: what is killed comes back, and what ends it ends all."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.deployment.machines import Machines, wait
from tests.deployment.test_processes import (
    assert_equals_simulation,
    start_to_first_round,
    wait_for_end,
    wait_for_round,
    write_scenario,
)
from tests.server.plays import rounds_of


def part(machines: Machines, name: str, role: str) -> psutil.Process:
    """Of a node: its ``parent``, its ``supernode``, or what keeps both."""
    process = psutil.Process(machines.processes[name].pid)
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if each.cmdline()[3:5] == ["fedamp.client.node", role]:
                return each
    raise AssertionError(f"{name} has no {role}")


@pytest.mark.slow
def test_the_parent_and_the_supernode_come_back_and_a_signal_ends_the_node(machines):
    rounds = 16
    raw = write_scenario(machines, rounds=rounds, federation={"nodes": 3, "round_deadline": 60, "hosts": "trusted"})
    start_to_first_round(machines)
    told = "Start `flwr-clientapp` process"
    before = machines.log("site0").count(told)
    killed = part(machines, "site0", "parent")
    assert killed.num_threads() == 1
    killed.kill()
    wait_for_round(machines, 3, 120)
    assert part(machines, "site0", "parent").pid != killed.pid
    assert machines.log("site0").count(told) > before
    assert "a process of its own for this app" not in machines.log("site0")
    part(machines, "site2", "supernode").kill()
    wait(lambda: "the SuperNode ended with -9; started again in 5 s" in machines.log("site2"), 60, "its end")
    wait_for_end(machines, 600)
    lines = rounds_of(machines.server / "run")
    assert len(lines) == rounds
    away = {line["round"] for line in lines if line["reported"] < line["scheduled"]}
    assert_equals_simulation(machines, raw, away)
    node = part(machines, "site1", "keep")
    everybody = [node, *node.children(recursive=True)]
    place = Path(part(machines, "site1", "supernode").environ()["PATH"].partition(":")[0])
    assert place.stat().st_mode & 0o077 == 0
    machines.processes["site1"].terminate()
    assert machines.processes["site1"].wait(120) == 0
    assert psutil.wait_procs(everybody, timeout=1800)[1] == []
    assert not place.exists()


@pytest.mark.slow
def test_when_the_node_is_killed_nothing_of_it_stays(machines):
    machines.start_server()
    machines.admit_nodes()
    machines.start_node("site0")
    wait(lambda: machines.connected() == 1, 120, "the node", every=1)
    node = part(machines, "site0", "keep")
    family = node.children(recursive=True)
    node.kill()
    assert psutil.wait_procs(family, timeout=1800)[1] == []


@pytest.mark.slow
def test_a_node_whose_key_is_revoked_says_so_in_its_log(machines):
    machines.start_server()
    machines.admit_nodes()
    machines.start_node("site0")
    wait(lambda: machines.connected() == 1, 120, "the node", every=1)
    assert "refuses" not in machines.log("site0")
    machines.shell("server: revoke the key of a node", NODE="site0")
    line = "the server refuses this node's key (is it revoked"
    wait(lambda: line in machines.log("site0"), 600, "the line", every=1)


@pytest.mark.slow
def test_arguments_that_flower_does_not_take_end_the_node_with_its_status(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fedamp", "node", "--superlink"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert "argument --superlink: expected one argument" in done.stderr
    assert "started again" not in done.stderr
