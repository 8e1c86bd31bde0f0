"""Play what fails between machines, one fault after another, and print what others see of each and what it costs.

    make rehearsal                                            # as root, on Linux; about half an hour on two cores
    python -m tests.deployment.rehearsal plain 'the proxy'    # those whose name begins so; or secure

The server and its nodes are hosts (:mod:`tests.deployment.hosts`): no common folder, users that are not root, clocks
that are minutes apart, links with a delay, lost packets and 10 Mbit/s. What they run are the commands of
docs/deployment.md and docs/secure-aggregation.md. The exit status is the number of faults after which the run did not
go on.
"""

import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.deployment.hosts import COMPILER, Hosts, Link
from tests.deployment.machines import NODES, PAGE, Machines, free_port
from tests.documentation import blocks, shell
from tests.server.plays import rounds_of
from tests.tools import wait

CLIENTS = 60
SECURE = "docs/secure-aggregation.md"
LINK = Link(delay=0.02, loss=0.01, rate=1.25e6)
CLOCKS = {"site0": 180.0, "site1": -240.0, "site2": -1200.0}  # seconds ahead of the server's
DEADLINE = 60  # seconds of a round; of an exchange with secure aggregation
ROUNDS = 120  # more than all faults take


class Play:
    """A federation of hosts, with a run.

    Args:
        machines: with hosts.
        kind: of aggregation: plain or secure.
    """

    def __init__(self, machines: Machines, kind: str) -> None:
        assert machines.hosts is not None
        self.machines, self.hosts, self.kind, self.run = machines, machines.hosts, kind, machines.server / "run"

    def begin(self) -> None:
        """The pages' commands, from keys to nodes that wait for a run."""
        machines = self.machines
        machines.deal_records(CLIENTS)
        block = blocks(PAGE, "yaml")[0] if self.kind == "plain" else blocks(SECURE, "yaml")[1]
        raw = yaml.safe_load(block.text) | {"rounds": ROUNDS}
        raw["check_in"] |= {} if self.kind == "plain" else {"k": ROUNDS // 2}
        raw["federation"] |= {"round_deadline": DEADLINE} | ({"quorum": 0.2} if self.kind == "plain" else {})
        raw["trackers"] = ["prometheus"]
        (machines.server / "hospitals.yaml").write_text(yaml.safe_dump(raw))
        machines.start_server()
        machines.admit_nodes()
        if self.kind == "secure":
            machines.run(shell(SECURE, "server: write the agreement"))
            for name in NODES:
                machines.give(machines.server / "agreement.json", name)
                machines.run(shell(SECURE, "node: join the run"), machines.folder / name, NODE=name)
        for name in NODES:
            self.start_node(name)
        wait(lambda: machines.connected() == len(NODES), 1200, "the nodes", every=2)
        self.start_run()

    def start_node(self, name: str) -> None:
        if self.kind == "plain":
            self.machines.start_node(name)
        else:
            title, settings = "node: start the SuperNode with its agreement", {"RUNTIME_PORT": str(free_port())}
            self.machines.start(name, title, self.machines.folder / name, page=SECURE, NODE=name, **settings)

    def start_run(self, resume: bool = False) -> None:
        command = shell(PAGE, "server: start the run")
        self.machines.run(command.replace("'\n", " resume=true'\n") if resume else command)

    def end(self) -> str:
        """Stop the run after its round, and verify it."""
        self.send("flwr-serverapp", signal.SIGTERM)
        wait(self.stopped, 1200, "the end of the run", every=0.5)
        return self.machines.run(f"fedamp verify {self.run.name}")

    def lines(self) -> list[dict]:
        return rounds_of(self.run) if (self.run / "rounds.jsonl").exists() else []

    def stopped(self) -> str:
        """Why the run has stopped; empty: it goes on."""
        with suppress(OSError, ValueError):
            told = yaml.safe_load((self.run / "summary.json").read_text())
            return str(told["error"] or told["stopped_because"])
        return ""

    def wait_complete(self, after: int) -> None:
        """Wait until a round after this one has every node."""
        wait(lambda: self.stopped() or any(map(whole, self.lines()[after:])), 1200, "a complete round", every=0.5)

    def wait_log(self, pattern: str, name: str = "", before: int | None = None) -> None:
        """Wait for a line in the log of the run, or in that of a machine, behind so many letters."""
        before = len(self.log(name)) if before is None else before
        wait(lambda: re.search(pattern, self.log(name)[before:]), 900, pattern, every=0.5)

    def log(self, name: str) -> str:
        if name:
            return self.machines.log(name)
        file = self.run / "log.txt"
        return file.read_text() if file.exists() else ""

    def send(self, name: str, number: int) -> None:
        """A signal to a part: a machine's process, or one of Flower's by its name."""
        if name in self.machines.processes:
            self.machines.signal(name, number)
        else:
            for process in self.machines.family(name):
                process.send_signal(number)


def whole(line: dict) -> bool:
    """Whether all scheduled units answered in a round, or all nodes, where only these know whose units check in."""
    surplus = line.get("noise_surplus")  # of three nodes, where two are charged
    everybody = line["reported"] == line["scheduled"] if surplus is None else surplus > 0.4
    return everybody and not line["unprotected"].get("missing_nodes")


def lost(line: dict) -> bool:
    """Whether a round has the answer of no node: zeros were released."""
    return bool(line["unprotected"].get("missing_nodes") == len(NODES))


@dataclass(frozen=True)
class Fault:
    """Something that fails, and what ends it.

    Attributes:
        name: in words.
        play: makes it, waits for what others see of it, and ends it.
        cure: what must be done.
        ends_run: whether the run stops, and goes on with ``resume=true``.
        kinds: of aggregation with which it is played.
    """

    name: str
    play: Callable[[Play], None]
    cure: str
    ends_run: bool = False
    kinds: tuple[str, ...] = ("plain",)


BOTH = "plain", "secure"


def pause(part: str, seconds: float) -> Callable[[Play], None]:
    """SIGSTOP, and SIGCONT some seconds later."""

    def play(play: Play) -> None:
        play.send(part, signal.SIGSTOP)
        time.sleep(seconds)
        play.send(part, signal.SIGCONT)

    return play


def stop_node(play: Play) -> None:
    before = len(play.log(""))
    play.send("site2", signal.SIGSTOP)
    play.wait_log("site2", before=before)
    play.send("site2", signal.SIGCONT)


def fill_node(play: Play) -> None:
    play.hosts.fill_disk("site0")
    count = len(play.lines())
    wait(lambda: play.stopped() or len(play.lines()) > count + 1, 900, "two rounds", every=0.5)
    play.hosts.free_disk("site0")


def fill_server(play: Play) -> None:
    play.hosts.fill_disk("server")
    wait(lambda: not play.machines.family("flwr-serverapp"), 900, "the app to end", every=0.5)
    play.hosts.free_disk("server")


def unplug_node(play: Play) -> None:
    play.hosts.unplug("site1")
    time.sleep(100)
    play.hosts.join()


def part_halves(play: Play) -> None:
    play.hosts.part(["server", "site0"], ["site1", "site2"])
    if play.kind == "plain":
        time.sleep(60)
    else:
        wait(play.stopped, 900, "the run to stop", every=0.5)
    play.hosts.join()


def cut_node(play: Play) -> None:
    play.hosts.cut_power("site1")
    play.machines.kill("site1")
    play.start_node("site1")


def renew_node(play: Play) -> None:
    machines = play.machines
    before = len(play.log("site2"))
    machines.shell("server: revoke the key of a node", NODE="site2")
    play.wait_log("the server refuses this node's key", "site2", before)
    machines.kill("site2")
    machines.enroll("site2", renew=True)
    machines.shell("server: admit another key of a node", NODE="site2")
    machines.hand_out("site2")
    play.start_node("site2")


def kill_superlink(play: Play) -> None:
    [superlink] = play.machines.family("flower-superlin")
    superlink.kill()
    wait(lambda: not play.machines.family("flwr-serverapp"), 600, "the app to end", every=0.5)
    play.machines.kill("superlink")
    start_superlink(play)


def start_superlink(play: Play) -> None:
    machines = play.machines
    machines.start("superlink", "server: start the SuperLink", machines.folder / "server")
    machines.wait_for_superlink()
    wait(lambda: machines.connected() == len(NODES), 600, "the nodes to be back", every=2)


def kill_superlink_signed(play: Play) -> None:
    """Behind the signatures, and before the sum is known."""
    play.wait_log("Receiving: train.unmask", "site0")
    kill_superlink(play)


def cut_server(play: Play) -> None:
    play.hosts.cut_power("server")
    for name in ("superlink", "proxy"):
        play.machines.kill(name)
    play.machines.start("proxy", "server: start the proxy", play.machines.folder / "server")
    start_superlink(play)


NOTHING = "nothing"
RESUME = "start the run again with `resume=true`"
FAULTS = (
    Fault("a node stops (SIGSTOP)", stop_node, NOTHING, kinds=BOTH),
    Fault("the proxy stops for 20 s", pause("proxy", 20), NOTHING),
    Fault("the SuperLink stops for 20 s", pause("superlink", 20), NOTHING),
    Fault("the server's app stops for 20 s", pause("flwr-serverapp", 20), NOTHING),
    Fault("the disk of a node is full", fill_node, "free the disk", kinds=BOTH),
    Fault("a node is cut off for 100 s", unplug_node, NOTHING, kinds=BOTH),
    Fault("two of three nodes are cut off for 60 s", part_halves, NOTHING),
    Fault("the power of a node fails", cut_node, "start the node; its service does", kinds=BOTH),
    Fault("a node's key is revoked, and renewed", renew_node, "renew the key"),
    Fault("the disk of the server is full", fill_server, f"free the disk, and {RESUME}", ends_run=True),
    Fault("the SuperLink is killed", kill_superlink, RESUME, ends_run=True),
    Fault("the SuperLink is killed after the signatures", kill_superlink_signed, RESUME, True, kinds=("secure",)),
    Fault("the power of the server fails", cut_server, RESUME, ends_run=True),
)


@dataclass
class Row:
    """What was seen of one fault.

    Attributes:
        fault: that was played.
        incomplete: rounds that were released without a node's units, or with its units at zero.
        lost: those of them that were released as zeros.
        pause: seconds of the longest round, from the fault to the first complete round.
        server, node: lines that the log of the run, and those of the nodes, got of it.
        why: the run did not go on.
    """

    fault: Fault
    incomplete: int = 0
    lost: int = 0
    pause: float = 0.0
    server: list[str] = field(default_factory=list)
    node: list[str] = field(default_factory=list)
    why: str = ""


def told(text: str) -> list[str]:
    """The different lines of a log, without times and numbers of nodes, runs and messages."""
    text = re.sub(r"\x1b\[\d+m", "", text)
    lines = [re.sub(r"^[\d-]+ [\d:,]+ (\w+) fedamp\.\w+: ", "", line) for line in text.splitlines()]
    kept = [line for line in lines if re.match(r"\w", line) and not re.match(r"(INFO|DEBUG)\b|202\d", line)]
    return list(dict.fromkeys(re.sub(r"\(\d{9,}\)|\d{9,}|[\d.]+(?= s)", "N", line)[:300] for line in kept))


def play_fault(play: Play, fault: Fault) -> Row:
    """Wait until the federation is whole, play a fault, and wait until it is whole again."""
    row = Row(fault)
    if play.stopped():
        play.start_run(resume=True)
    play.wait_complete(len(play.lines()))
    first = len(play.lines())
    before = {name: len(play.log(name)) for name in ("", *NODES)}
    fault.play(play)
    if fault.ends_run or play.stopped():
        found = play.stopped()
        row.server.append(f"summary.json: {found}" if found else "no summary.json")
        play.start_run(resume=True)
        wait(lambda: len(play.lines()) > first or play.stopped() != found, 1200, "the run to go on", every=0.5)
    play.wait_complete(max(first, len(play.lines())))
    row.why = why if (why := play.stopped()) not in ("", "finished") else ""
    lines = play.lines()[first:]
    row.incomplete = sum(not whole(line) for line in lines)
    row.lost = sum(map(lost, lines))
    row.pause = max((line["seconds"] for line in lines), default=0.0)
    row.server += told(play.log("")[before[""] :])
    row.node = [f"{name}: {line}" for name in NODES for line in told(play.log(name)[before[name] :])]
    return row


@contextmanager
def federation(folder: Path, kind: str) -> Iterator[Play]:
    """A federation of hosts with a run that has begun; all of it ends with the context.

    Args:
        folder: empty, and open to others.
        kind: plain or secure.
    """
    with Hosts(folder, ["server", *NODES], LINK, CLOCKS if COMPILER else None) as hosts:
        machines = Machines(folder, NODES, hosts)
        try:
            play = Play(machines, kind)
            play.begin()
            yield play
        finally:
            machines.stop()


def main(words: Sequence[str]) -> int:
    """Play faults, and print the table; how many of them the run did not survive."""
    folder = Path(tempfile.mkdtemp(prefix="fedamp-rehearsal-"))
    folder.chmod(0o755)
    if why := Hosts.why_not(folder):
        print(f"error: no hosts can be made here: {why}; expected: root on Linux", file=sys.stderr)
        return 2
    kinds = [kind for kind in BOTH if kind in words] or list(BOTH)
    asked = tuple(word for word in words if word not in BOTH)
    failed, began = 0, time.monotonic()
    for kind in kinds:
        (folder / kind).mkdir()
        print(f"\n{kind} aggregation\n\n| fault | the server's log | a node's log | rounds without a node |", end="")
        print(" longest round, s | what must be done |\n| --- | --- | --- | --- | --- | --- |", flush=True)
        with federation(folder / kind, kind) as play:
            for fault in FAULTS:
                if kind in fault.kinds and fault.name.startswith(asked or ("",)):
                    row = play_fault(play, fault)
                    failed += bool(row.why)
                    seen = ("<br>".join(line.replace("|", "/") for line in lines) for lines in (row.server, row.node))
                    rounds = f"{row.incomplete}, {row.lost} of them lost" if row.lost else row.incomplete
                    cells = [fault.name, *seen, rounds, f"{row.pause:.0f}", row.why or fault.cure]
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)
            print("\n" + play.end())
    print(
        f"{time.monotonic() - began:.0f} s; the logs are in {folder}" if failed else f"{time.monotonic() - began:.0f} s"
    )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
