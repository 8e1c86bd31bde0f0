"""What a registered node can do at the wire, with any bytes: be left out, and named."""

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.deployment.hostile import BOMB, CALLS, Attacker, Fuzzer, Order, WireNode, serve
from tests.deployment.machines import NODES, Machines, deployed, wait
from tests.deployment.test_processes import assert_equals_simulation, wait_for_end, write_scenario
from tests.deployment.test_told import HOSTS, Here
from tests.engines.superlink import superlink

# Of the attacks: one a round; after each silence one without the attacker, at most; and two with its ping.
ROUNDS = {4: 4, 9: 14}
REQUESTS = 150


class Attacking(Attacker):
    """It sends crafted requests with each of its first orders.

    Not in between: a valid request for its messages would take the next order away, and the server wait for the answer.

    Attributes:
        memory: in each pause the number of attacks so far, and bytes that the server app has had at most.
    """

    def __init__(self, machines: Machines | Here, victim: int, requests: int) -> None:
        super().__init__(machines, NODES[2], victim)
        self.left, self.fuzzer, self.memory = requests, Fuzzer(self, seed=1), []
        self.at_a_time = -(-requests // 4)
        self.server = psutil.Process() if isinstance(machines, Here) else None

    def spy(self, mine: Order, others: list[Order]) -> None:
        self.fuzzer.see(mine)
        super().spy(mine, others)
        count = min(self.at_a_time, self.left)
        self.left -= count
        self.fuzzer.send(count)

    def has_seen_an_order(self) -> bool:
        return self.fuzzer.run != 0

    def pause(self) -> None:
        if self.server is None and self.has_seen_an_order():
            [self.server] = self.machines.family("flwr-serverapp")
        with suppress(OSError, AttributeError):  # it is not there yet, or has ended
            place = Path(f"/proc/{self.server.pid}")
            if not self.memory:
                (place / "clear_refs").write_text("5")  # the peak begins here: this process may have had a larger one
            told = (place / "status").read_text()
            self.memory.append((len(self.tried), 1024 * int(told.partition("VmHWM:")[2].split()[0])))
        super().pause()


@dataclass(frozen=True)
class Attacked:
    """A run with two honest nodes and the attacker, after its end."""

    machines: Machines | Here
    raw: dict
    attacker: Attacking
    attacks: int

    @property
    def log(self) -> str:
        """The server's; in this process the SuperLink writes there, too."""
        written = (self.machines.server / "run" / "log.txt").read_text()
        return re.sub(
            r"^2\S+ \S+ [A-Z]+ flwr: .*\n(?:(?!2\d{3}-).*\n)*", "", written, flags=re.M
        )  # it cites ids as sent


@pytest.fixture(scope="module", params=["here", pytest.param("processes", marks=pytest.mark.slow)])
def attacked(request, tmp_path_factory) -> Iterator[Attacked]:
    """Four attacks on a server in this process, or all of them on real ones (quickly: test_outside.py)."""
    folder, attacks = tmp_path_factory.mktemp("attacked"), 4 if request.param == "here" else 9
    federation = {"nodes": 3, "round_deadline": 1800, "quorum": 0, "hosts": HOSTS}  # no round waits so long
    with ExitStack() as stack:
        if request.param == "here":
            machines: Machines | Here = Here(folder, stack.enter_context(superlink()))
        else:
            request.getfixturevalue("proxy")
            machines = stack.enter_context(deployed(folder))
        raw = write_scenario(machines, rounds=ROUNDS[attacks], federation=federation)
        honest = [stack.enter_context(closing(WireNode(machines, name))) for name in NODES[:2]]
        attacker = stack.enter_context(closing(Attacking(machines, honest[0].id, REQUESTS)))

        def serve_until(ended: Callable[[], bool]) -> None:
            serve(attacker, honest, ended)

        if isinstance(machines, Here):
            ended = threading.Event()
            answering = stack.enter_context(ThreadPoolExecutor(1)).submit(serve_until, ended.is_set)
            stack.callback(ended.set)
            machines.play("run", known_seed=True)
            ended.set()
            answering.result()
        else:
            machines.start_run(known_seed=True)
            serve_until((machines.server / "run" / "summary.json").exists)
            wait_for_end(machines, 30)
        yield Attacked(machines, raw, attacker, attacks)


def test_the_model_is_that_of_the_honest_nodes(attacked):
    assert len(set(attacked.attacker.tried)) == attacked.attacks
    assert_equals_simulation(attacked.machines, attacked.raw, away=set(range(1, ROUNDS[attacked.attacks] + 1)))


def test_each_attack_is_told_in_one_printable_line_that_names_the_node(attacked):
    lines = attacked.log.splitlines()
    assert len(lines) >= attacked.attacks
    for line in lines:
        node = rf"nodes? (site2 \({attacked.attacker.id}\)|{attacked.attacker.id} is lost)"
        assert re.match(rf"2\S+ \S+ WARNING fedamp.server: (reply refused: )?{node}", line)
        assert line.isprintable()
        assert len(line) < 500
        assert "site0" not in line.partition("?")[0]  # what the node says comes after its name and an unprintable sign


def test_a_node_does_not_see_whether_others_are_asked(attacked):
    assert attacked.attacker.looks > 0  # how often it is in time depends on the machine; each look must see nothing
    assert attacked.attacker.seen == []
    assert attacked.attacker.common == set()


def test_a_chunk_that_is_named_many_times_takes_no_memory(attacked):
    memory = attacked.attacker.memory
    before = max(size for attacks, size in memory if attacks < 2)
    assert max(size for _, size in memory) - before < (BOMB << 20) / 2  # on Flower's own grid it is more than twice
    assert "longer than" in attacked.log


def test_random_and_crafted_bytes_at_each_call_change_nothing(attacked):
    statuses = attacked.attacker.fuzzer.statuses
    assert statuses.total() == REQUESTS
    assert {call for call, _ in statuses} == set(CALLS)
    assert attacked.attacker.post("pull-messages", b"\n\0") == 401  # the SuperLink is well


@pytest.mark.slow
def test_thousands_of_crafted_requests_and_forged_orders_beside_real_nodes(machines):
    machines.start_server()
    machines.admit_nodes()
    rounds, federation = 8, {"nodes": 3, "round_deadline": 60, "hosts": HOSTS}
    raw = write_scenario(machines, rounds=rounds, federation=federation)
    for name in NODES[:2]:
        machines.start_node(name)
    told = re.compile(r"SuperNode ID: (\d+)")
    wait(lambda: told.search(machines.log("site0")), 120, "the node's id")
    victim = int(told.search(machines.log("site0"))[1])
    with closing(Attacking(machines, victim, requests=5000)) as attacker:
        machines.start_run(known_seed=True)
        serve(attacker, [], attacker.has_seen_an_order)
        attacker.order_another(attacker.fuzzer.run)
        serve(attacker, [], (machines.server / "run" / "summary.json").exists)
        assert attacker.left == 0
    assert "the message is not sealed" in machines.log("site0")
    wait_for_end(machines, 60)
    assert_equals_simulation(machines, raw, away=set(range(1, rounds + 1)))
    wait(lambda: machines.connected() >= 2, 60, "the nodes")
