"""What Flower tells a registered node: by default, and with each protection, the same whoever else checks in."""

import itertools
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Context, RecordDict
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, run_pb2
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message as ProtobufMessage

from fedamp.engines.deployment import DeploymentGrid
from fedamp.engines.wire import RoundOrder
from fedamp.federation import reader
from fedamp.federation.plan import make_plan
from fedamp.server.app import app
from tests.deployment.hostile import LONGEST_SILENCE, Order, WireNode
from tests.deployment.machines import NODES, PAGE, Machines, deployed, partition_digits
from tests.deployment.test_processes import CLIENTS, write_scenario
from tests.documentation import blocks, shell, text
from tests.engines.superlink import Link, superlink
from tests.server.plays import ledger_of

pytestmark = pytest.mark.usefixtures("few_tries")
ROUNDS, SECURE = 2, "docs/secure-aggregation.md"
OBSERVER, OTHERS = NODES[0], NODES[1:]
HOSTS = {"site0": "0-19", "site1": "20-39", "site2": "40-59"}
SAME = "the same value"
OWN = "of the node itself, or drawn: as many values, as long"
MANY = "a time, or bytes that the counters count: as many values"
COUNTER = "the same value, but for the lengths of a run's random numbers"
FIELDS: dict[str, dict[str, str]] = {
    "RegisterNode": {"node_id": OWN},
    "ActivateNode": {"node_id": OWN},
    "DeactivateNode": {},
    "UnregisterNode": {},
    "SendNodeHeartbeat": {"success": SAME},
    "PullMessages": {
        "reconnect.reconnect": SAME,
        **{f"messages_list.metadata.{key}": SAME for key in ("src_node_id", "group_id", "ttl", "message_type")},
        **{f"messages_list.metadata.{key}": SAME for key in ("dst_node_id", "reply_to_message_id", "dst_task_id")},
        **{f"messages_list.metadata.{key}": OWN for key in ("run_id", "message_id", "src_task_id")},
        "messages_list.metadata.created_at": MANY,
        "messages_list.content": SAME,  # none: it comes as objects
        "messages_list.error": SAME,
        "message_object_trees.object_id": OWN,
    },
    "PushMessages": {
        "reconnect.reconnect": SAME,
        "results.key": OWN,
        "results.value": SAME,
        "objects_to_push": OWN,
        "session_id": OWN,
    },
    "GetRun": {
        **{f"run.{key}": SAME for key in ("fab_id", "fab_version", "fab_hash", "finished_at", "status")},
        **{f"run.{key}": SAME for key in ("flwr_aid", "federation", "account_name", "primary_task_type")},
        "run.clientapp_runtime": SAME,  # of all nodes together, and so are these:
        **{f"run.{key}": COUNTER for key in ("bytes_sent", "bytes_recv")},
        **{f"run.{key}": OWN for key in ("run_id", "series_id", "primary_task_id", "override_config")},
        **{f"run.{key}": MANY for key in ("pending_at", "starting_at", "running_at")},
    },
    "GetFab": {"fab": SAME},
    "PushObject": {"stored": SAME},
    "PullObject": {"object_found": SAME, "object_available": SAME, "object_content": MANY},
    "ConfirmMessageReceived": {},
}
"""Every field of every answer of Flower's Fleet API, or a message of which all fields are alike."""


def leaves(kind: Descriptor, around: tuple[Descriptor, ...] = ()) -> Iterator[str]:
    for field in kind.fields:
        inner = field.message_type
        if inner is None:
            yield field.name
        elif inner not in (kind, *around):  # a tree
            yield from (f"{field.name}.{leaf}" for leaf in leaves(inner, (kind, *around)))


def kind_of(call: str, leaf: str) -> str | None:
    return next((FIELDS[call][key] for key in FIELDS[call] if leaf == key or leaf.startswith(f"{key}.")), None)


def values(answer: ProtobufMessage, path: str = "") -> Iterator[tuple[str, Any]]:
    """All values of an answer that are set, with their paths."""
    for field, value in answer.ListFields():
        several = list(value) if field.is_repeated else [value]
        if field.message_type and field.message_type.GetOptions().map_entry:
            several = [field.message_type._concrete_class(key=key, value=value[key]) for key in sorted(value)]
        for each in several:
            if isinstance(each, ProtobufMessage):
                name = path if each.DESCRIPTOR is answer.DESCRIPTOR else f"{path}{field.name}."
                yield from values(each, name)
            else:
                yield f"{path}{field.name}", each


def told_by(call: str, answer: ProtobufMessage) -> list[tuple[str, Any]]:
    """What of an answer must not depend on others' check-ins."""
    found = []
    for leaf, value in values(answer):
        kind = kind_of(call, leaf)
        length = len(value) if kind == OWN and isinstance(value, str | bytes) else None
        found.append((leaf, value if kind == SAME else length))
    return found


def test_every_field_of_every_answer_is_decided_upon():
    calls = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].methods_by_name
    assert set(FIELDS) == set(calls)
    for name, call in calls.items():
        found = set(leaves(call.output_type))
        assert {leaf for leaf in found if kind_of(name, leaf) is None} == set()
        assert {key for key in FIELDS[name] if not any(f"{leaf}.".startswith(f"{key}.") for leaf in found)} == set()


class Telling(WireNode):
    """A node that reports the number of units that it trained, in place of seconds.

    Attributes:
        told: calls, and what of their answers must not depend on others' check-ins.
        counters: at each look the orders and answers of all nodes so far, and the bytes that Flower tells.
    """

    def __init__(self, machines: Machines, name: str, **config: str) -> None:
        super().__init__(machines, name)
        self.told: list[tuple[str, list[tuple[str, Any]]]] = []
        self.counters: list[tuple[int, int, int, int]] = []
        self.config |= config
        self.client = _Noted(self.client, self.told)

    def close(self) -> None:
        self.leave()
        super().close()

    def look(self, run: int, orders: int, answers: int) -> None:
        about = self.client.GetRun(run_pb2.GetRunRequest(node=self.node, run_id=run)).run
        self.client.GetFab(fab_pb2.GetFabRequest(node=self.node, run_id=run, hash_str=about.fab_hash))
        self.counters.append((orders, answers, about.bytes_sent, about.bytes_recv))
        beat = heartbeat_pb2.SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=LONGEST_SILENCE)
        self.client.SendNodeHeartbeat(beat)

    def react(self, order: Order) -> None:
        asked = opened(order)
        self.runtime = json.loads(asked.task or "{}").get("answer_after") or float(len(asked.ids))
        self.confirm(order)
        super().react(order)


class _Noted:
    """A client of the Fleet API that notes the answers; that nothing has come yet is told as often as one asks."""

    def __init__(self, client: Any, told: list) -> None:
        self._client, self._told = client, told

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name not in FIELDS:
            return call

        def noted(request: ProtobufMessage) -> ProtobufMessage:
            answer = call(request)
            waiting = {"PullMessages": "messages_list", "PullObject": "object_available"}.get(name)
            if waiting is None or getattr(answer, waiting):
                self._told.append((name, told_by(name, answer)))
            return answer

        return noted


def opened(order: Order) -> RoundOrder:
    return RoundOrder.of(order.message.content)


def serve(nodes: dict[str, Telling], asked: Callable[[int], set[str]], ended: Callable[[], bool]) -> None:
    """Answer what nodes are asked. The observer looks when all have their orders, when all others have answered."""
    deadline, orders, came, answered = time.monotonic() + 1200, dict[str, Order](), 0, 0
    while not ended():
        assert time.monotonic() < deadline
        for name, node in nodes.items():
            if name not in orders and (order := node.pull()) is not None:
                orders[name] = order
        rounds = {opened(order).round for order in orders.values()}
        if not orders or set(orders) < (asked(max(rounds)) if max(rounds) else set(nodes)):
            time.sleep(0.05)
            continue
        came += len(orders)
        observed = orders.pop(OBSERVER, None)
        for name, order in [*sorted(orders.items()), *([(OBSERVER, observed)] if observed else [])]:
            if observed:
                nodes[OBSERVER].look(order.message.metadata.run_id, came, answered)
            nodes[name].react(order)
            answered += 1
        orders.clear()


@pytest.fixture(scope="module")
def processes(tmp_path_factory, proxy) -> Iterator[Machines]:
    """A deployment of its own: Flower takes no second node with the key of one that other tests have left."""
    with deployed(tmp_path_factory.mktemp("told")) as machines:
        write_scenario(machines)
        yield machines


class Here:
    """The same in this process: Flower's SuperLink, of whose runs it is the server, and nodes without TLS."""

    authority = None

    def __init__(self, folder: Path, link: Link) -> None:
        self.folder, self.server, self.records = folder, folder / "server", folder
        self.link, self.port = link, link.port
        self.names = NODES
        write_scenario(self)
        for name in NODES:
            key = generate_private_key(SECP384R1())
            (folder / name / name).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
            link.state.create_node("", "", public_key_to_bytes(key.public_key()), LONGEST_SILENCE, name=name)

    def deal_records(self, clients: int) -> None:
        """Give the nodes their records."""
        partition_digits(self.folder, self.names, clients)

    def play(self, out: str, **config: Any) -> None:
        """A new run of the scenario, to its end; others answer for the nodes."""
        told = {"scenario": str(self.server / "hospitals.yaml"), "out": str(self.server / out)}
        told |= {key.replace("_", "-"): value for key, value in config.items()}
        with closing(DeploymentGrid(self.link.grid())) as grid:
            app(grid, Context(self.link.run_id, 1, {}, RecordDict(), told))


@pytest.fixture(scope="module", params=["here", pytest.param("processes", marks=pytest.mark.slow)])
def place(request, tmp_path_factory) -> Iterator[Machines | Here]:
    if request.param == "processes":
        yield request.getfixturevalue("processes")
    else:
        with superlink() as link:
            yield Here(tmp_path_factory.mktemp("here"), link)


def scenario(machines: Machines | Here, seed: int = 0, **federation: Any) -> dict[str, Any]:
    raw = yaml.safe_load((machines.server / "hospitals.yaml").read_text())
    changed = {"seed": seed, "known_seed": True, "rounds": ROUNDS, "check_in": {"scheme": "poisson", "rate": 0.1}}
    told = {"nodes": 3, "round_deadline": 600, "quorum": 0, "hosts": HOSTS} | federation
    return raw | changed | {"federation": told}


def joined_by(machines: Machines, name: str) -> dict[str, str]:
    """A node's configuration after it has joined the agreement of a run with secure aggregation."""
    folder = machines.folder / name
    shutil.rmtree(folder / "state", ignore_errors=True)
    shutil.copy(machines.server / "agreement.json", folder)
    machines.run(shell(SECURE, "node: join the run"), folder, NODE=name)
    return {"agreement": str(folder / "agreement.json"), "key": str(folder / name), "state": str(folder / "state")}


def cohorts(raw: dict[str, Any]) -> list[set[str]]:
    """The nodes with a unit in the cohort of each round."""
    attendance = make_plan(reader.validate_scenario(raw, "hospitals"), CLIENTS).attendance
    return [{NODES[unit // 20] for unit in attendance.cohort_of(round_).tolist()} for round_ in range(1, ROUNDS + 1)]


def two_seeds(machines: Machines | Here) -> list[int]:
    """Of one all nodes have a unit in each round, of the other the observer and some."""
    check_in = make_plan(reader.validate_scenario(scenario(machines), "hospitals"), CLIENTS).check_in

    def first(condition: Callable[[set[str]], bool]) -> int:
        for seed in itertools.count():
            cohorts = check_in.cohorts(ROUNDS, CLIENTS, seed)
            if all(condition({NODES[unit // 20] for unit in cohort.tolist()}) for cohort in cohorts):
                return seed
        raise AssertionError

    return [first(lambda names: len(names) == 3), first(lambda names: len(names) < 3 and OBSERVER in names)]


def told_in(machines: Machines | Here, raw: dict[str, Any], joined: bool = False) -> tuple[list, list, dict]:
    """What the observer is told in a run, the counters, and the run's ledger.

    In each message are random numbers of the run, of one or two lengths. The queries at the start, which depend on no
    check-in, tell by how much that makes an order or an answer longer: the counters are without it.
    """
    (machines.server / "hospitals.yaml").write_text(yaml.safe_dump(raw))
    if joined:
        machines.run(shell(SECURE, "server: write the agreement"))
    run, sparse = machines.server / f"run{len(list(machines.server.glob('run*')))}", cohorts(raw)
    every = make_plan(reader.validate_scenario(raw, "hospitals"), CLIENTS).protection != "none"

    def asked(round_: int) -> set[str]:
        return set(NODES) if every else sparse[round_ - 1]

    with ExitStack() as stack:
        if isinstance(machines, Here):
            machines.link.begin(fab=b"the app")
        joining = {name: joined_by(machines, name) if joined else {} for name in NODES}
        nodes = {name: stack.enter_context(closing(Telling(machines, name, **joining[name]))) for name in NODES}
        if isinstance(machines, Machines):
            machines.run(shell(PAGE, "server: start the run").replace('"run"', f'"{run.name}"'))
            serve(nodes, asked, (run / "summary.json").exists)
        else:
            ended = threading.Event()
            answering = stack.enter_context(ThreadPoolExecutor(1)).submit(serve, nodes, asked, ended.is_set)
            stack.callback(ended.set)
            machines.play(run.name)
            ended.set()
            answering.result()
    ledger, looks = ledger_of(run), nodes[OBSERVER].counters
    order, answer = looks[0][2] / looks[0][0], looks[1][3] - looks[0][3]
    counters = [(sent - orders * order, got - answers * answer) for orders, answers, sent, got in looks]
    return nodes[OBSERVER].told, counters, ledger


def test_the_page_prints_what_check_prints_of_its_scenario(fedamp, tmp_path, monkeypatch):
    [block] = blocks(PAGE, "yaml")
    partition_digits(tmp_path, NODES, CLIENTS)
    (tmp_path / "server" / "hospitals.yaml").write_text(block.text)
    monkeypatch.chdir(tmp_path / "server")
    printed = " ".join(fedamp("check", "hospitals.yaml").out.replace("│", " ").split())  # in frames, and wrapped
    shown = re.findall(r"^(?:registered nodes|a node's round) {2,}(.*)$", text(PAGE), re.MULTILINE)
    assert len(shown) == 2
    assert all(line in printed for line in shown), printed


def test_by_default_all_that_a_node_is_told_is_the_same(place):
    one, other = (told_in(place, scenario(place, seed)) for seed in two_seeds(place))
    assert one[:2] == other[:2]
    assert {name for name, _ in one[0]} == set(FIELDS) - {"RegisterNode", "UnregisterNode", "ActivateNode"}
    assert one[2]["epsilon_nodes"] == one[2]["whole_run_epsilon"]


@pytest.mark.slow
def test_without_dummies_the_counters_tell_and_nodes_are_charged_unamplified(place):
    one, other = (told_in(place, scenario(place, seed, dummies=False)) for seed in two_seeds(place))
    assert abs(one[1][3][0] - other[1][3][0]) > 1000  # the first look of round 1
    assert one[2]["epsilon_nodes"]["upper"] > 1.5 * one[2]["whole_run_epsilon"]["upper"]


@pytest.mark.slow
def test_nodes_that_answer_at_a_fixed_time_are_told_the_same(processes):
    one, other = (told_in(processes, scenario(processes, seed, answer_after=1)) for seed in two_seeds(processes))
    assert one[:2] == other[:2]
    assert one[2]["epsilon_nodes"] == one[2]["whole_run_epsilon"]


@pytest.mark.slow
@pytest.mark.parametrize("drawn_by", ["server", "node"])
def test_with_secure_aggregation_nodes_are_told_the_same(processes, drawn_by):
    runs = []
    for seed in two_seeds(processes):
        raw = scenario(processes, seed, agreement="agreement.json")
        raw |= {"aggregation": {"scheme": "secure", "dropped": 0.34}}
        raw["check_in"] |= {"drawn_by": drawn_by}
        runs.append(told_in(processes, raw, joined=True))
    one, other = runs
    assert one[:2] == other[:2]
    assert one[2]["epsilon_nodes"] == one[2]["whole_run_epsilon"]
