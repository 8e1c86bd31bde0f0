"""The grids as a Flower server app sees them: the same replies and models, whatever happens to Ray's workers.

One Ray serves all quick tests: its start takes longer than they do.
"""

import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedamp.engines import engines, flower
from fedamp.engines.engines import open_grid
from fedamp.engines.ray import private_ray
from fedamp.errors import FederationError, InputError
from fedamp.federation.running import Engine
from fedamp.runs.folder import RunFolder
from fedamp.server.launch import launch
from tests.federations import Silent, small
from tests.server.plays import ledger_of

APP = "tests.engines.tiny_app:app"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "log.txt"


@pytest.fixture(scope="module")
def ray_grid(log):
    pytest.importorskip("ray")
    with open_grid(Engine(kind="ray", workers=2), log, APP) as grid:
        yield grid


@pytest.fixture
def ray_starts(monkeypatch):
    """A busy machine has time to start Ray."""
    pytest.importorskip("ray")
    monkeypatch.setattr("fedamp.engines.ray.START_DEADLINE", 3000.0)


@pytest.fixture(scope="module")
def serial_grid(log):
    with open_grid(Engine(kind="serial"), log, APP) as grid:
        yield grid


@pytest.fixture(params=["serial", "ray"])
def grid(request):
    return request.getfixturevalue(f"{request.param}_grid")


def message(node: int, action: str = "train", size: int = 5, record=None, **config) -> Message:
    arrays = record or flower.to_record({"w": np.arange(size, dtype=np.float32), "b": np.ones((), np.float32)})
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"seeds": [1, 2], **config})}), node, action)


def round_of(grid, clients: int, size: int) -> np.ndarray:
    """Total over all clients, partitioned among the nodes."""
    nodes = grid.get_node_ids()
    record = flower.to_record({"w": np.linspace(0, 1, size, dtype=np.float32)})
    shares = [list(range(clients))[i :: len(nodes)] for i in range(len(nodes))]
    sent = [message(node, record=record, seeds=share) for node, share in zip(nodes, shares, strict=True)]
    replies = grid.send_and_receive(sent)
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    assert sum(reply.content["metrics"]["count"] for reply in replies) == clients
    ones = sum(reply.content["arrays"]["w"].numpy() for reply in replies)
    return ones - (len(nodes) - 1) * record["w"].numpy().astype(np.float64)  # each node adds the global model once


def tell(grid) -> list[dict]:
    record = flower.to_record({"w": np.zeros(100_000, np.float32)})
    replies = grid.send_and_receive([message(node, "query", record=record) for node in grid.get_node_ids()])
    return [reply.content["node"] for reply in replies]


def test_the_client_apps_sums_are_the_same_to_the_bit(grid):
    replies = grid.send_and_receive([message(node) for node in grid.get_node_ids()])
    for reply in replies:
        assert reply.content["arrays"]["w"].numpy().tobytes() == np.arange(3.0, 8.0).tobytes()
        assert reply.content["metrics"]["count"] == 2


def test_same_replies_inside_the_call_and_through_shared_memory(serial_grid, ray_grid):
    for size in (5, 50_000, 1_000_000):
        expected = round_of(serial_grid, clients=7, size=size)
        np.testing.assert_allclose(round_of(ray_grid, clients=7, size=size), expected, rtol=1e-12)


def test_replies_come_in_send_order_and_once(grid):
    first, last = grid.get_node_ids()[0], grid.get_node_ids()[-1]
    sent = [message(first, "train.sleep", seconds=0.3), message(last), message(first, "train.fail"), message(last)]
    ids = grid.push_messages(sent)
    pulled = []
    while len(pulled) < 4:
        pulled += grid.pull_messages(ids)
        time.sleep(0.01)
    assert sorted(reply.metadata.reply_to_message_id for reply in pulled) == sorted(ids)
    assert grid.pull_messages(ids) == []
    replies = grid.send_and_receive([message(first, "train.sleep", seconds=0.3), message(last)])
    assert [reply.metadata.src_node_id for reply in replies] == [first, last]
    with pytest.raises(ValueError, match="dst_node_id must be one of"):
        grid.push_messages([message(99)])


def test_an_exception_becomes_an_error_reply_and_the_log_has_its_traceback(grid, log):
    failing, fine = grid.get_node_ids()[0], grid.get_node_ids()[-1]
    bad, good = grid.send_and_receive([message(failing, "train.fail"), message(fine)])
    assert (bad.error.code, bad.error.reason) == (2, "ArithmeticError: clients 3 and 4 do not add up")
    assert good.has_content()
    assert "tiny_app.py" in log.read_text()


@pytest.mark.parametrize("grid", ["serial", pytest.param("ray", marks=pytest.mark.slow)], indirect=True)
def test_late_replies_are_absent_and_named_and_do_not_delay_the_next_round(grid, log):
    nodes = grid.get_node_ids()
    first, others = nodes[0], nodes[1:]
    timeout, seconds = (120, 10_000) if others else (0.5, 0.6)  # the serial grid cannot interrupt a message
    sent = [message(first, "train.sleep", seconds=seconds), *map(message, others)]
    replies = grid.send_and_receive(sent, timeout=timeout)
    assert [reply.metadata.src_node_id for reply in replies] == others
    assert f"node {first} did not answer the train.sleep message" in log.read_text()
    again = grid.send_and_receive(list(map(message, nodes)))
    assert [reply.metadata.src_node_id for reply in again] == nodes


def test_nodes_train_with_one_thread_and_cannot_change_the_global_model(grid):
    import torch

    torch.set_num_threads(2)
    told, workers = tell(grid), grid.workers
    assert [node["threads"] for node in told] == [1] * workers
    assert torch.get_num_threads() == 2
    assert not any(node["writeable"] for node in told)
    places = [(node["partition"], node["partitions"], node["device"]) for node in told]
    assert places == [(place, workers, "cpu") for place in range(workers)]
    assert len({node["pid"] for node in told} | {os.getpid()}) == (3 if workers == 2 else 1)


# --- strangers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def processes(ray_grid) -> psutil.Process:
    """The driver of Ray, whose descendants are all that Ray started."""
    ray_grid.get_node_ids()
    [driver] = [each for each in psutil.Process().children() if "fedamp.engines.ray_driver" in each.cmdline()]
    return driver


def of_each(process: psutil.Process, question):
    """Each process of Ray with its answer, but for those that Ray has just ended."""
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            yield one, question(one)


def descendant(process: psutil.Process, name: str) -> psutil.Process:
    [found] = [one for one, called in of_each(process, psutil.Process.name) if called == name]
    return found


def listeners(process: psutil.Process) -> list[tuple[str, int]]:
    found = of_each(process, lambda one: one.net_connections("tcp"))
    return [tuple(each.laddr) for _, some in found for each in some if each.status == psutil.CONN_LISTEN]


def test_nothing_of_a_run_listens_beyond_this_machine(processes):
    found = listeners(processes)
    assert len(found) >= 5  # head, raylet, its object manager, driver, two workers, runtime environments
    assert {address for address, _ in found} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_ray_answers_nobody_without_the_token(processes):
    """The head, the raylet, the driver and the workers, each asked what a stranger would, with a guess too."""
    questions = ["NodeInfoGcsService/CheckAlive", "NodeManagerService/RequestWorkerLease", "CoreWorkerService/PushTask"]
    questions += ["ObjectManagerService/Pull", "JobInfoGcsService/AddJob", "ActorInfoGcsService/RegisterActor"]
    guess, refused = [("authorization", "Bearer " + "0" * 64)], set()
    for _, port in listeners(processes):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for question, metadata in itertools.product(questions, ([], guess)):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(f"/ray.rpc.{question}")(b"", timeout=60, metadata=metadata)
                if caught.value.code() == grpc.StatusCode.UNAUTHENTICATED:
                    refused.add((question, len(metadata)))
    assert refused == set(itertools.product(questions, (0, 1)))


@pytest.mark.slow
def test_a_program_with_another_token_cannot_run_anything(processes):
    """One with none is refused at the first question, as all are above."""
    [port] = {port for _, port in listeners(descendant(processes, "gcs_server"))}
    code = "import ray, sys; ray.init(sys.argv[1]); print(ray.get(ray.remote(lambda: 'it ran').remote()))"
    without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    without |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_NUM_REDIS_GET_RETRIES": "2"}
    guess = without | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    command = [sys.executable, "-c", code, f"127.0.0.1:{port}"]
    stranger = subprocess.run(command, env=guess, capture_output=True, text=True)
    assert stranger.returncode != 0
    assert "it ran" not in stranger.stdout
    assert "Unauthenticated" in stranger.stderr


def test_the_folder_of_rays_sockets_and_logs_is_the_owners(processes):
    arguments = descendant(processes, "raylet").cmdline()
    [socket_] = [word.partition("=")[2] for word in arguments if word.startswith("--raylet_socket_name=")]
    folder = next(parent for parent in Path(socket_).parents if parent.name.startswith("fedamp-"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_token_is_fresh_and_stands_in_no_command_line(processes):
    assert len({private_ray()["RAY_AUTH_TOKEN"] for _ in range(10)}) == 10
    token = descendant(processes, "raylet").environ()["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    assert not any(token in word for _, words in of_each(processes, psutil.Process.cmdline) for word in words)


# --- workers that die -------------------------------------------------------------------------------------------------


def test_killed_worker_is_started_again_with_the_same_message(ray_grid, tmp_path, log, capfd):
    grid, nodes = ray_grid, ray_grid.get_node_ids()
    expected = grid.send_and_receive([message(node) for node in nodes])
    before = {node["pid"] for node in tell(grid)}
    sent = [message(nodes[0], "train.die_once", mark=str(tmp_path / "mark")), message(nodes[1])]
    replies = grid.send_and_receive(sent)
    for reply, wanted in zip(replies, expected, strict=True):
        assert reply.content["arrays"]["w"] == wanted.content["arrays"]["w"]
    [new] = {node["pid"] for node in tell(grid)} - before
    assert f"node {nodes[0]}: its worker died" in log.read_text()
    assert capfd.readouterr() == ("", "")
    os.kill(new, signal.SIGKILL)  # between rounds
    assert all(reply.has_content() for reply in grid.send_and_receive([message(node) for node in nodes]))


@pytest.mark.slow
def test_message_that_kills_every_worker_ends_in_an_error_reply(ray_grid):
    nodes = ray_grid.get_node_ids()
    bad, good = ray_grid.send_and_receive([message(nodes[0], "train.die"), message(nodes[1])])
    assert (bad.error.code, bad.error.reason) == (8, "the worker died 3 times; its clients count as zero")
    assert bad.metadata.src_node_id == nodes[0]
    assert good.has_content()
    assert len(tell(ray_grid)) == 2  # the node is back


@pytest.mark.slow
def test_worker_that_dies_is_not_taken_for_a_slow_one(ray_grid):
    """On an idle machine it dies fewer than three times before the deadline."""
    nodes = ray_grid.get_node_ids()
    bad, good = ray_grid.send_and_receive([message(nodes[0], "train.die"), message(nodes[1])], timeout=10)
    assert bad.error.reason.startswith("the worker died")
    assert good.has_content()


# --- runs ------------------------------------------------------------------------------------------------------------

SCHEMES = {
    "whole": ("evaluation={on: clients, noise_multiplier: 5}",),
    "disjoint": ("submodels={scheme: disjoint, count: 3}", "evaluation={on: clients, noise_multiplier: 5, every: 2}"),
    "dropout": ("submodels={scheme: dropout, keep: 0.5}",),
    "records": ("privacy.unit=sample", "client.steps=1", "check_in={scheme: poisson, rate: 0.05}"),
}
# Several batches a round, so that the workers really share the work, and unlike numbers of records.
COMMON = (
    "rounds=4",
    "model={name: mlp, hidden: [12]}",
    "engine.clients_per_batch=7",
    "data.partition={scheme: dirichlet, alpha: 1}",
)


def released(folder: Path, scheme: str, kind: str, workers: int) -> tuple[bytes, str]:
    """The model and the ledger of a run."""
    scenario = small(*COMMON, *SCHEMES[scheme], f"engine.kind={kind}", f"engine.workers={workers}")
    run = RunFolder(launch(scenario, Silent(), folder / f"{kind}-{workers}"))
    return run.model.read_bytes(), json.dumps(ledger_of(run.path))


@pytest.mark.few(1)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_serial_and_ray_give_the_same_bytes(tmp_path, monkeypatch, ray_grid, scheme):
    serial = released(tmp_path, scheme, "serial", 1)
    asked = []

    def opened(engine, log, *app):
        asked.append((engine.kind, engine.workers))
        return nullcontext(ray_grid)

    monkeypatch.setattr(engines, "open_grid", opened)
    assert released(tmp_path, scheme, "ray", 2) == serial
    assert asked == [("ray", 2)]


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    pytest.importorskip("ray")
    assert len({released(tmp_path, "disjoint", "ray", workers) for workers in (1, 2, 3)}) == 1


# --- sessions that end or do not start --------------------------------------------------------------------------------


@pytest.mark.slow
def test_client_app_that_cannot_be_imported_is_named_at_once(tmp_path):
    pytest.importorskip("ray")
    with (
        pytest.raises(FederationError, match=r"could not load nowhere:app: .*No module named 'nowhere'"),
        open_grid(Engine(kind="ray", workers=1), tmp_path / "log.txt", "nowhere:app") as grid,
    ):
        grid.get_node_ids()


def test_missing_ray_is_answered_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(InputError, match=r"^.*pip install 'fedamp\[ray\]', or engine.kind: serial$"),
        open_grid(Engine(kind="ray"), tmp_path / "log.txt"),
    ):
        pass


PROGRAM = """
import pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background processes with it ignored
sys.path.insert(0, sys.argv[1])
from tests.engines.test_grids import APP, Engine, message, open_grid, tell
with open_grid(Engine(kind="ray", workers=1), pathlib.Path(sys.argv[2]), APP) as grid:
    print(tell(grid)[0]["pid"], flush=True)
    grid.send_and_receive([message(grid.get_node_ids()[0], "train.sleep", seconds=500)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_running(tmp_path, end):
    pytest.importorskip("ray")
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[2]), str(tmp_path / "log.txt")]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    worker = psutil.Process(int(program.stdout.readline()))
    time.sleep(0.5)
    os.killpg(program.pid, end) if end == signal.SIGINT else program.kill()
    _, errors = program.communicate()
    assert [line for line in errors.splitlines() if not line.startswith((" ", "Traceback", "KeyboardInterrupt"))] == []
    assert program.returncode == -end
    assert psutil.wait_procs([worker], timeout=1800)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "share"), [("auto", 1), (4, 1 / 2)])
def test_each_worker_is_shown_one_gpu_and_takes_its_share_of_it(
    workers, share, tmp_path, monkeypatch, serial_grid, ray_starts
):
    """All of it but the GPUs: Ray is told of them, and the app makes torch believe in them."""
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 8, "GPU": 2}')
    engine = Engine(kind="ray", device="cuda", workers=workers)
    with open_grid(engine, tmp_path / "log.txt", "tests.engines.gpu_app:app") as gpus:
        told, each = tell(gpus), round(1 / share)
        assert [node["device"] for node in told] == ["cuda"] * 2 * each
        assert sorted(node["gpus"] for node in told) == ["0"] * each + ["1"] * each
        assert {(node["fraction"], node["memory"]) for node in told} == {(share, int(share * (80 << 30)))}
        np.testing.assert_allclose(round_of(gpus, 9, size=5), round_of(serial_grid, 9, size=5), rtol=1e-12)
        node = gpus.get_node_ids()[0]
        [reply] = gpus.send_and_receive([message(node, "train.die_once", mark=str(tmp_path / "mark"))])
        assert reply.has_content()  # another worker found a place
        [first, *_] = tell(gpus)
        assert (first["gpus"] in ("0", "1"), first["fraction"]) == (True, share)


@pytest.mark.slow
def test_a_gpu_that_ray_counts_and_torch_does_not_see_is_refused(tmp_path, monkeypatch, ray_starts):
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"CPU": 8, "GPU": 2}')
    engine = Engine(kind="ray", device="cuda")
    with open_grid(engine, tmp_path / "log.txt", APP) as none, pytest.raises(InputError, match="torch sees 0 GPU"):
        none.get_node_ids()
