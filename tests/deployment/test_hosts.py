"""A deployment on hosts of its own: no common folder or clock, other users, bad links; and what fails between them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployment.hosts import COMPILER, Hosts, Link
from tests.deployment.machines import NODES, Machines
from tests.deployment.rehearsal import BOTH, CLOCKS, FAULTS, LINK, federation, play_fault
from tests.deployment.test_processes import assert_equals_simulation, start_nodes, wait_for_end, write_scenario

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path, proxy) -> Path:
    """For hosts; skips where nobody may make any, and with them their promises."""
    if why := Hosts.why_not(tmp_path):
        pytest.skip(f"nobody may make network namespaces here: {why}; what is promised between hosts is not tested")
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(0o755)
    return tmp_path


def ask(hosts: Hosts, name: str, program: str) -> str:
    """What a program of Python prints on a host; its last line of error where it fails."""
    environment = hosts.environment(name) | {"PATH": "/usr/bin:/bin"}
    words = [*hosts.inside(name), sys.executable, "-SEc", program]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_hosts_have_nothing_in_common(folder, subtests):
    """The harness itself: what its tests say holds between machines only if this does."""
    clocks = {"site0": 3600.0} if COMPILER else {}
    with Hosts(folder, ["server", "site0"], Link(0.01, 0.0, 1.25e6), clocks, disk=1 << 20) as hosts:
        with subtests.test("users and files"):
            (hosts.outside("server") / "secret").write_text("x")
            assert ask(hosts, "site0", "import os; print(os.getuid(), sorted(os.listdir()))") == "30002 []"
            assert "Error" in ask(hosts, "site0", f"open({str(folder / 'server' / 'secret')!r})")
            assert (
                ask(hosts, "site0", "import os; print(len(os.listdir('/root')) < 2, os.listdir('/home'))") == "True []"
            )
        with subtests.test("a full disk"):
            hosts.fill_disk("site0")
            write = "file = open('a', 'w'); file.write('x'); file.close(); print('written')"
            assert "No space left" in ask(hosts, "site0", write)
            assert ask(hosts, "server", write) == "written"
            hosts.free_disk("site0")
            assert ask(hosts, "site0", write) == "written"
        with subtests.test("a link"):
            reach = f"import socket; socket.create_connection(({hosts.address('server')!r}, 9), 3)"
            assert "refused" in ask(hosts, "site0", reach)
            hosts.unplug("site0")
            assert "timed out" in ask(hosts, "site0", reach)
            hosts.join()
            assert "refused" in ask(hosts, "site0", reach)
        if clocks:
            with subtests.test("clocks"):
                here, there = (float(ask(hosts, name, "import time; print(time.time())")) for name in hosts.names)
                assert 3600 <= there - here < 7200
        with subtests.test("a power cut"):
            sleeps = subprocess.Popen([*hosts.inside("site0"), "sleep", "1000"])
            hosts.cut_power("site0")
            assert sleeps.wait() != 0
            assert ask(hosts, "site0", "print(open('a').read())") == "x"


def test_the_page_between_hosts_gives_the_model_of_a_simulation(folder):
    """With clocks that are up to 20 minutes off, which ``fedamp node`` says and stands."""
    with Hosts(folder, ["server", *NODES], LINK, CLOCKS if COMPILER else None) as hosts:
        machines = Machines(folder, NODES, hosts)
        try:
            raw = write_scenario(machines)
            machines.start_server()
            machines.admit_nodes()
            start_nodes(machines)
            machines.start_run(known_seed=True)
            wait_for_end(machines, 600)
            assert_equals_simulation(machines, raw, away=set())
            machines.run("fedamp verify run && fedamp release run --out released && fedamp verify released.zip")
            if COMPILER:
                for name, seconds, side in (("site0", 180, "ahead of"), ("site2", 1200, "behind")):
                    told = re.search(rf"the clock is (\d+) s {side} the server's", machines.log(name))
                    # A node takes the time on the way for a difference: seconds on a busy machine.
                    assert told
                    assert abs(int(told[1]) - seconds) <= 60
                with pytest.raises(AssertionError, match=r"2[0-9]{2}\.\d s from the server's; expected: 5 s"):
                    machines.shell("node: check the way to the server", where="site1")
        finally:
            machines.stop()


@pytest.mark.parametrize("kind", BOTH)
def test_a_run_goes_on_after_each_fault(folder, kind, subtests):
    with federation(folder, kind) as play:
        play.wait_complete(0)
        with subtests.test("metrics"):
            read = (
                "import urllib.request as all; print(all.urlopen('http://{}:9464/metrics', timeout=60).read().decode())"
            )
            assert "fedamp_rounds_total" in ask(play.hosts, "server", read.format("127.0.0.1"))
            assert "refused" in ask(play.hosts, "site0", read.format(play.hosts.address("server")))
        with subtests.test("looks for tasks"):  # often on a node, for each message; seldom on the server, for a run
            starters = play.machines.family("flower-superexe")
            found = sorted(each.environ().get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "") for each in starters)
            assert found == ["", *["0.1"] * len(NODES)]
        for fault in FAULTS:
            if kind in fault.kinds:
                with subtests.test(fault.name):
                    row = play_fault(play, fault)
                    assert row.why == ""
                    said = "\n".join([*row.server, *row.node])
                    assert "Traceback" not in said.replace(row.fault.name, "")
        play.end()
        assert play.stopped() == "interrupted"
