"""A lasting node's parent and the program that asks it, with a small task in place of Flower's program."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedamp.client import node, program
from tests.tools import wait

SECRET = "a-token-that-is-nowhere-else"
# What a fork runs: it tells what it was given, and does what its first argument says.
PARENT = """
import json, os, signal, socket, sys, threading, time
from fedamp.client import node

def run():
    print(json.dumps([sys.argv, os.environ.get("TOLD"), os.getcwd(), sys.stdin.read(3)]), flush=True)
    match sys.argv[1]:
        case "exit": sys.exit(int(sys.argv[2]))
        case "raise": raise ValueError("as an app may")
        case "die": os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
            print("waiting", flush=True)
            time.sleep(300)
            open("done", "w").close()
        case "descriptors":
            while not os.path.exists(sys.argv[2]): time.sleep(0.01)
            print(json.dumps([os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")[:-1]]))
        case "sleep":
            print("sleeping", flush=True)
            time.sleep(float(sys.argv[2]))
            open("done", "w").close()

def prepare():
    if sys.argv[2] == "threads":
        threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
    if sys.argv[2] == "full":  # no memory, or no process, is left
        os.fork = lambda: os.stat("/proc/no such process")
    return run

node.parent(socket.socket(fileno=int(sys.argv[1])), prepare)
"""
# The program that asks: how long it waits for a parent that is busy says how busy the machine is.
PROGRAM = f"""
import sys
sys.path.append({str(Path(program.__file__).parent)!r})
import program
program.PATIENCE = 3600.0
sys.exit(program.main("flwr-clientapp", sys.argv[1], sys.argv[2:]))
"""


class Parent:
    """A parent, its socket, and programs that ask it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "parent"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.place))
        self.listener.listen()
        own = folder / "flowers"  # stands for Flower's own program, which is next on the PATH
        own.mkdir()
        (own / "flwr-clientapp").write_text('#!/bin/sh\necho "by itself: $*"\n')
        (own / "flwr-clientapp").chmod(0o700)
        self.environment = os.environ | {"PATH": os.pathsep.join([str(folder), str(own), os.environ["PATH"]])}

    def begin(self, how: str = "") -> None:
        command = [sys.executable, "-c", PARENT, str(self.listener.fileno()), how]
        with (self.folder / "parent.log").open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, pass_fds=[self.listener.fileno()])

    def ask(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-ISc", PROGRAM, str(self.place), *arguments]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, cwd=self.folder, env=self.environment | environment, text=True, **streams)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def parent(tmp_path):
    started = Parent(tmp_path)
    started.begin()
    yield started
    started.end()
    started.listener.close()


def told(process: subprocess.Popen[str], given: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(given)
    return process.returncode, out, err


def test_a_fork_is_given_what_a_process_would_be_and_ends_for_it(parent):
    code, out, _ = told(parent.ask("exit", "3", TOLD="here"), "in!")
    assert (code, out) == (3, f'[["flwr-clientapp", "exit", "3"], "here", "{parent.folder}", "in!"]\n')
    assert told(parent.ask("exit", "0"))[0] == 0
    code, _, err = told(parent.ask("raise"))
    assert code == 1
    assert "ValueError: as an app may" in err
    assert told(parent.ask("die"))[0] == -signal.SIGKILL
    assert [told(parent.ask("exit", str(code)))[0] for code in (255, 1)] == [255, 1]


def test_the_parent_keeps_nothing_of_a_message(parent):
    assert told(parent.ask("exit", "0", SECRET, TOLD=SECRET[::-1]), "in!")[0] == 0
    kept = b""
    with open(f"/proc/{parent.process.pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{parent.process.pid}/maps").read_text().splitlines():
            area, rights, *_, name = line.split(maxsplit=5) + [""] * (len(line.split(maxsplit=5)) < 6)
            first, last = (int(number, 16) for number in area.split("-"))
            if rights.startswith("rw") and "[v" not in name:
                memory.seek(first)
                kept += memory.read(last - first)
    assert PARENT[:40].encode() in kept  # what it does have is found
    assert SECRET.encode() not in kept
    assert SECRET[::-1].encode() not in kept


def test_signals_reach_the_fork_and_a_killed_program_takes_it_along(parent):
    waiting = parent.ask("wait")
    waiting.stdin.close()
    assert "waiting" in [waiting.stdout.readline(), waiting.stdout.readline()][1]
    waiting.terminate()
    assert waiting.wait() == 7
    killed = parent.ask("wait")
    killed.stdin.close()
    assert "waiting" in [killed.stdout.readline(), killed.stdout.readline()][1]
    killed.kill()
    assert killed.stdout.read() == ""  # until nobody has its standard output any more
    assert not (parent.folder / "done").exists()
    many = [parent.ask("exit", str(code)) for code in range(20)]
    for process in many[::3]:
        process.kill()
    assert [told(process)[0] for number, process in enumerate(many) if number % 3] == [n for n in range(20) if n % 3]
    assert told(parent.ask("exit", "7"))[0] == 7
    assert parent.process.poll() is None  # it is still the first one


def test_a_fork_holds_nothing_of_its_neighbours(parent):
    """Neither the descriptor by which one could be killed, nor the link to its program, nor the parent's socket."""
    first = parent.ask("descriptors", "both")
    first.stdin.close()
    first.stdout.readline()  # it is there
    second = parent.ask("descriptors", "both")
    second.stdin.close()
    second.stdout.readline()
    (parent.folder / "both").touch()
    held = [json.loads(each.stdout.read()) for each in (first, second)]
    assert [[what for what in each if "pidfd" in what or "socket" in what] for each in held] == [[], []]
    assert len(held[0]) == len(held[1])


def test_a_node_says_why_it_is_refused_and_signs_by_the_servers_clock():
    """Flower says that it could not establish a connection."""
    program = """
import http.server, threading
from datetime import UTC, datetime, timedelta
import httpx
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from flwr.supernode import node_auth_http_interceptor as signer
from flwr.supernode.fleet_http_client import FleetHttpClient
from fedamp.client import node

statuses = iter([200, 503, 412, 401, 401])

class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        age = (datetime.now(UTC) - datetime.fromisoformat(self.headers[signer.TIMESTAMP_HEADER])).total_seconds()
        self.send_response(next(statuses) if -5 < age < 305 else 401)  # as Flower does
        self.send_header("content-length", "0")
        self.end_headers()

server = http.server.HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
signer.now = lambda: datetime.now(UTC) + timedelta(hours=1)
node._watch_refusals()
client = FleetHttpClient.from_server_address(
    f"127.0.0.1:{server.server_port}", True, None, [signer.NodeAuthHttpInterceptor(*generate_key_pairs())]
)
for _ in range(5):
    try:
        client.ActivateNode(ActivateNodeRequest())
        print(200)
    except httpx.HTTPStatusError as error:
        print(error.response.status_code)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert answer.stdout.split() == ["200", "503", "412", "401", "401"], answer.stderr
    clock, taken, key = (line for line in answer.stderr.splitlines() if line.startswith("fedamp node: "))
    ahead = re.match(
        r"fedamp node: the clock is (\d+) s ahead of the server's; the node signs by the server's; ", clock
    )
    assert abs(int(ahead[1]) - 3600) < 600  # a busy machine may take its time
    assert taken.startswith("fedamp node: the server takes this node up to a minute after its former process")
    assert key.startswith("fedamp node: the server refuses this node's key (is it revoked?)")


def test_a_message_goes_on_where_the_parent_dies_and_the_next_waits_for_another(parent):
    sleeping = parent.ask("sleep", "1")
    sleeping.stdin.close()
    assert "sleeping" in [sleeping.stdout.readline(), sleeping.stdout.readline()][1]
    parent.end()
    following = parent.ask("exit", "5")
    assert sleeping.wait() == 1  # how it ended, nobody knows
    wait((parent.folder / "done").exists, what="the fork to end")
    parent.begin()
    assert told(following)[0] == 5


def test_without_a_parent_that_can_fork_flowers_own_program_runs(parent):
    parent.end()
    parent.begin("threads")
    code, out, err = told(parent.ask("exit", "3"))
    assert (code, out) == (0, "by itself: exit 3\n")
    assert err == (
        "fedamp node: a process of its own for this app, as Flower starts it "
        "(the parent of its messages runs 2 threads)\n"
    )
    parent.end()
    parent.begin("full")
    for _ in range(2):  # it is still there
        code, out, err = told(parent.ask("exit", "5"))
        assert (code, out) == (0, "by itself: exit 5\n")
        assert "as Flower starts it ([Errno 2] No such file" in err
    parent.listener.close()
    parent.end()
    code, out, err = told(parent.ask("exit", "4"))
    assert (code, out) == (0, "by itself: exit 4\n")
    assert "Connection refused" in err
    parent.begin = lambda: None


# A heartbeat and a look for orders are refused together: Flower's thread raises, and a second signal meets its exit.
REFUSED = """
import threading
import httpx
import flwr.supernode.cli
from fedamp.client.node import supernode

def heartbeat():
    raise httpx.HTTPStatusError("401 Unauthorized", request=None, response=None)

def flower_supernode():
    thread = threading.Thread(target=heartbeat)
    thread.start()
    thread.join()
    raise KeyboardInterrupt

flwr.supernode.cli.flower_supernode = flower_supernode
supernode([])
"""


def test_a_node_that_is_refused_twice_ends_without_a_traceback(tmp_path):
    done = subprocess.run([sys.executable, "-c", REFUSED], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr


# Flower's SuperNode gets a second SIGTERM while it tells the server that it is gone.
LEAVING = """
import signal
import flwr.supernode.cli
from flwr.supernode import start_client_internal
from fedamp.client.node import supernode

def tell():
    signal.raise_signal(signal.SIGTERM)
    print("told")

def flower_supernode():
    start_client_internal.register_signal_handlers(event_type=None, exit_handlers=[tell])
    signal.raise_signal(signal.SIGTERM)

flwr.supernode.cli.flower_supernode = flower_supernode
supernode([])
"""


def test_a_node_that_is_told_twice_to_end_tells_the_server():
    """As where a manager of services signals all processes: else the server refuses the node for a minute."""
    quiet = os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", LEAVING], env=quiet, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr


# What keeps both, which is given all orphans, as the first process of a container is.
KEEPER = """
import ctypes, sys
from fedamp.client import node

subreaper = 36  # of sys/prctl.h
assert ctypes.CDLL(None).prctl(subreaper, 1) == 0
node.program_of = lambda role, *_: [sys.executable, "-c", sys.argv[1 + (role == "parent")]]
sys.exit(node.keep([]))
"""
# Ends when the one orphan that it makes has been waited for, or is not after a minute.
ORPHANING = """
import os, sys, time

reader, writer = os.pipe()
if os.fork() == 0:
    orphan = os.fork()
    if orphan:
        os.write(writer, str(orphan).encode())
    os._exit(0)
os.wait()
orphan, until = int(os.read(reader, 20)), time.monotonic() + 60
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < until:
    time.sleep(0.01)
print("left" if os.path.exists(f"/proc/{orphan}") else "gone")
sys.exit(2)  # as with wrong arguments
"""
STAYING = "import time; time.sleep(300)"


def test_the_first_process_of_a_container_takes_orphans_for_orphans(tmp_path):
    """Else it says every 5 s that the parent has ended, and what waits for the end of an orphan waits for ever."""
    words = [sys.executable, "-c", KEEPER, ORPHANING, STAYING]
    place = os.environ | {"RUNTIME_DIRECTORY": str(tmp_path)}
    done = subprocess.run(words, env=place, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "gone\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["node", "superlink"])
def test_a_place_in_which_no_folder_can_be_made_is_one_line(command, tmp_path):
    """The manager of services names several places with colons; the first one counts."""
    place = os.environ | {"RUNTIME_DIRECTORY": f"{tmp_path}/gone:{tmp_path}"}
    words = [os.path.join(sysconfig.get_path("scripts"), "fedamp"), command, "--insecure"]
    done = subprocess.run(words, env=place, capture_output=True, text=True)
    expected = "no folder can be made there (No such file or directory); expected: a folder that this user may write in"
    assert (done.returncode, done.stderr) == (2, f"error: RUNTIME_DIRECTORY {tmp_path}/gone: {expected}\n")


# Ends with an error, and when it is started again, as with wrong arguments.
TWICE = """
import os, sys

place = os.path.join(os.environ["RUNTIME_DIRECTORY"], "once")
if os.path.exists(place):
    sys.exit(2)
open(place, "w").close()
sys.exit(7)
"""


def test_what_is_started_again_is_told_with_how_busy_the_machine_is(tmp_path):
    words = "from fedamp.base import devices; devices.busy_words = lambda: '; busy'; node.PAUSE = 0.5; sys.exit"
    keeper = KEEPER.replace("sys.exit", words)
    place = os.environ | {"RUNTIME_DIRECTORY": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", keeper, TWICE, STAYING], env=place, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "fedamp node: the SuperNode ended with 7; started again in 0.5 s; busy\n",
    )


# A SuperNode that leaves when its parent, whom the signal reaches as well, has ended for long.
SLOW = """
import os, signal, sys, time

def leave(*_):
    time.sleep(1)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
print("there", flush=True)
time.sleep(300)
"""


def test_a_node_that_is_stopped_with_all_its_processes_starts_none_again(tmp_path):
    started = tmp_path / "started"
    parent = f"import os, time; print(os.getpid(), file=open({str(started)!r}, 'a'), flush=True); time.sleep(300)"
    place = os.environ | {"RUNTIME_DIRECTORY": str(tmp_path)}
    words, streams = [sys.executable, "-c", KEEPER, SLOW, parent], dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    keeper = subprocess.Popen(words, env=place, text=True, **streams)
    assert keeper.stdout.readline() == "there\n"
    wait(lambda: started.exists() and started.read_text().endswith("\n"), what="the parent")
    keeper.terminate()
    os.kill(int(started.read_text()), signal.SIGTERM)
    assert keeper.communicate()[1] == ""
    assert keeper.returncode == 0
    assert len(started.read_text().split()) == 1


# Starts a parent that becomes one when this process has ended, as where it is killed soon after its start.
SHORT = """
import os, sys
from pathlib import Path
from fedamp.client.node import Forks

late = f'''
import os, socket, sys, time
from fedamp.client import node

while os.getppid() == {os.getpid()}:
    time.sleep(0.01)
node.parent(socket.socket(fileno=int(sys.argv[1])), lambda: sys.exit(print("it lives")))
'''
Forks(Path(sys.argv[1]), "flwr-clientapp").start_parent([sys.executable, "-c", late])
os._exit(0)
"""


def test_a_parent_that_comes_after_the_end_of_its_node_ends(tmp_path):
    """The kernel tells it nothing of an end that was before it asked."""
    done = subprocess.run([sys.executable, "-c", SHORT, tmp_path], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# What Flower does for each message: it opens a client, unpacks the file of the app, and fedamp reads the task.
MESSAGE = """
import io, sys, zipfile
print(sorted({'fedamp.accounting', 'numba', 'torch', 'fedamp.client.app'} & set(sys.modules)))
before = set(sys.modules)
import httpx
from fedamp.federation.first_releases import first_releases
httpx.Client(verify=False).close()
first_releases()
file = io.BytesIO()
with zipfile.ZipFile(file, "w") as packed:
    packed.writestr("app.py", "")
zipfile.ZipFile(file).read("app.py")
print(sorted(set(sys.modules) - before))
"""


def test_the_real_parent_has_one_thread_and_neither_the_accountant_nor_numba(tmp_path):
    """It forks only where it counts a single thread; in a fork, all is imported that a message needs."""
    real = Parent(tmp_path)
    code = (
        f"import socket, sys; from fedamp.client import node; kept = node.everything(); run = lambda: exec({MESSAGE!r})"
    )
    code += "; node.parent(socket.socket(fileno=int(sys.argv[1])), lambda: run)"
    one_thread = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = [real.listener.fileno()]
    real.process = subprocess.Popen([sys.executable, "-c", code, str(kept[0])], pass_fds=kept, env=one_thread)
    try:
        status, out, err = told(real.ask())
        assert (status, err) == (0, "")
        assert out == "['fedamp.client.app', 'torch']\n[]\n"
    finally:
        real.end()
        real.listener.close()


# A parent that has drawn from each generator, so that a fork which goes on with its state would draw as its neighbour.
DRAWING = """
import json, random, secrets, socket, ssl, sys, tempfile, types, uuid
import numpy
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from fedamp import rng
from fedamp.client import node

sys.modules["torch"] = types.SimpleNamespace(set_num_threads=id)  # which starts alike in all new processes

def draw():
    return {
        "python": random.random(),
        "numpy": numpy.random.random(),
        "numpy's new ones": numpy.random.default_rng().random(),
        "the system": secrets.token_hex(),
        "OpenSSL of Python": ssl.RAND_bytes(16).hex(),
        "OpenSSL of keys": str(generate_private_key(SECP384R1()).private_numbers().private_value),
        "seeds": str(rng.seed_from_system()),
        "bytes": rng.fresh_bytes(16).hex(),
        "ids": str(uuid.uuid4()),
        "files": tempfile.mktemp(),
    }

def run():
    node.act_as_new_process()
    print(json.dumps(draw()))

draw()
node.parent(socket.socket(fileno=int(sys.argv[1])), lambda: run)
"""


def test_forks_share_no_random_numbers(tmp_path):
    asked = Parent(tmp_path)
    kept = [asked.listener.fileno()]
    asked.process = subprocess.Popen([sys.executable, "-c", DRAWING, str(kept[0])], pass_fds=kept)
    try:
        first, second = (json.loads(told(asked.ask())[1]) for _ in range(2))
        assert [source for source in first if first[source] == second[source]] == []
    finally:
        asked.end()
        asked.listener.close()


@pytest.mark.parametrize(("flower", "runs"), [("1.43.0", True), ("1.42.0", False)])
def test_without_lasting_processes_a_line_says_why_and_flowers_are_used(tmp_path, monkeypatch, capfd, flower, runs):
    began = []
    monkeypatch.setattr(node, "_flower_version", lambda: flower)
    monkeypatch.setattr(node.os, "access", lambda *_: runs)  # False: as on a file system that runs no programs
    code = "import os; print(os.environ['PATH']); raise SystemExit(2)"
    monkeypatch.setattr(node, "program_of", lambda *words: began.append(words[0]) or [sys.executable, "-c", code])
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert node.keep(["--superlink", "nowhere"]) == 2
    told = capfd.readouterr()
    assert began == ["supernode"]
    assert str(tmp_path) not in told.out
    reason = "Flower 1.43.0 is untried; expected: 1.42.x" if runs else f"no program may run in {tmp_path}; "
    line = "fedamp node: each app gets a process of its own, as Flower starts it: "
    assert told.err.startswith(line + reason)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_socket_leaves_the_programs_to_flower(tmp_path, capfd):
    """As a full disk does; the paths of sockets have some 100 letters."""
    folder = tmp_path / ("long" * 30) / "within"
    folder.mkdir(parents=True)
    with closing(node.Forks(folder, "flwr-serverapp")) as forks:
        assert str(folder) not in forks.path
    reason = f"{folder.parent} takes no program with a socket (AF_UNIX path too long); expected: RUNTIME_DIRECTORY "
    line = f"fedamp superlink: each app gets a process of its own, as Flower starts it: {reason}"
    assert capfd.readouterr().err.startswith(line)


SUPERNODE = """
import sys, uvicorn
from fedamp.client import node

def config(app, **others):
    sys.exit(type(app).__name__)

uvicorn.Config = config
node.supernode(["--insecure", "--superlink", "127.0.0.1:1"])
"""


def test_the_supernode_answers_its_apps_directly():
    done = subprocess.run([sys.executable, "-c", SUPERNODE], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "DirectAnswers", done.stderr


def test_flowers_loop_uses_of_time_its_sleep_alone():
    """:class:`Waits` stands for the module there."""
    [package] = importlib.util.find_spec("flwr").submodule_search_locations
    source = (Path(package) / "supernode" / "start_client_internal.py").read_text()
    assert set(re.findall(r"\btime\.(\w+)", source)) == {"sleep"}
    assert source.count("time.sleep(3)") == 1


def test_a_wait_is_short_at_first_and_never_longer_than_flowers(monkeypatch):
    now, waited = [100.0], []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(node, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", sleep)
    waits = node.Waits()
    for _ in range(60):
        waits.sleep(3)
    assert waited[0] == node.Looks.LEAST
    assert waited == sorted(waited)
    assert waited[-1] == 3
    # A message that has come after some time waits for a fifth of it at most, but for the rounding of sums.
    assert all(wait <= max(node.Looks.LEAST, sum(waited[:n]) / 5) + 1e-9 for n, wait in enumerate(waited))
    waited.clear()
    for _ in range(60):
        waits.sleep(0.5)
    assert (waited[0], waited[-1]) == (node.Looks.LEAST, 0.5)


def looks(waits: node.Waits, now: list[float], after: float, training: float = 0.4) -> tuple[int, float]:
    """Look until a message is there that came so long after the last reply, and wait for its own: looks and delay."""
    came, count = now[0] + after, 0
    while now[0] < came:
        waits.sleep(3)
        count += 1
    delay, trained = now[0] - came, now[0] + training
    while now[0] < trained:
        waits.sleep(0.5)
    return count, delay


@pytest.mark.parametrize("after", [0.3, 1.0, 8.0, 40.0])
def test_looks_for_a_message_follow_the_rhythm_of_the_rounds(monkeypatch, after):
    now = [100.0]
    monkeypatch.setattr(node, "monotonic", lambda: now[0])
    monkeypatch.setattr(node.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    waits = node.Waits()
    first, _ = looks(waits, now, after)
    played = [looks(waits, now, after) for _ in range(20)]
    assert all(count <= 1 + first / 2 for count, _ in played)
    assert all(delay <= max(node.Looks.LEAST, min(3, after / 5)) + 1e-9 for _, delay in played)
    # Rounds that become three times as fast are seen within two of them; slower ones have some looks in vain.
    faster = [looks(waits, now, after / 3)[1] for _ in range(6)]
    assert all(delay <= 3 for delay in faster)
    assert all(delay <= max(node.Looks.LEAST, after / 15) + 1e-9 for delay in faster[3:])
    assert looks(waits, now, 10 * after)[0] <= 1 + looks(node.Waits(), now, 10 * after)[0]


def test_a_request_for_a_task_is_kept_until_a_message_comes(monkeypatch):
    monkeypatch.setattr(node, "TASK_WAIT", 60.0)
    waits, asked, tasks = node.Waits(), [], []

    def acquire(*request):
        asked.append(request)
        return SimpleNamespace(token=tasks.pop() if tasks else "")

    kept = waits.kept_until_a_message(acquire)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(kept, "request", "state")
        wait(lambda: asked, what="the first look")
        waits.sleep(0.01)  # none has come
        wait(lambda: len(asked) == 2, what="the second look")
        tasks.append("token")
        waits.sleep(0.01)  # a message has come, and Flower's loop waits for its reply
        assert answer.result().token == "token"
    assert asked == [("request", "state")] * 3
    tasks.append("at once")
    assert kept().token == "at once"
    monkeypatch.setattr(node, "TASK_WAIT", 0.0)
    assert kept().token == ""


def test_a_further_request_for_a_task_takes_no_thread_for_long(monkeypatch):
    monkeypatch.setattr(node, "TASK_WAIT", 1e6)
    waits, asked, token = node.Waits(), [], [""]

    def acquire(who):
        asked.append(who)
        return SimpleNamespace(token=token[0])

    kept = waits.kept_until_a_message(acquire)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(kept, "first")
        wait(lambda: asked, what="the first request")
        further = pool.submit(kept, "further")
        try:
            wait(further.done, what="the answer to a further request")
            assert not first.done()
        finally:
            token[0] = "token"
            while not (first.done() and further.done()):
                waits.sleep(0.01)
    assert (first.result().token, further.result().token) == ("token", "")
