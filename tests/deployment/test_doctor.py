"""What the doctor says of a deployment, over real TLS to a server of our own."""

import http.server
import json
import select
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from contextlib import chdir
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest

from fedamp.base import devices
from fedamp.errors import DeploymentError
from fedamp.extensions.deployment import doctor, membership
from fedamp.extensions.population.store import Population
from tests.deployment.machines import free_port


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Keys by the documented command, another authority, and certificates that are wrong."""
    folder = tmp_path_factory.mktemp("deployment")
    for name in ("foreign", "keys"):
        with chdir(folder):
            membership.certify("127.0.0.1")
        if name != "keys":
            (folder / "keys").rename(folder / name)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder / "keys", check=True, capture_output=True)

    openssl("req", "-new", "-key", "server.key", "-subj", "/CN=x", "-out", "csr")
    here, elsewhere = "IP:127.0.0.1", "DNS:fl.example.org"
    for name, days, host in [("soon", "3", here), ("expired", "-1", here), ("misnamed", "365", elsewhere)]:
        (folder / "keys" / "ext").write_text(f"subjectAltName={host}\nauthorityKeyIdentifier=keyid\n")
        authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
        openssl("x509", "-req", "-in", "csr", *authority, "-days", days, "-out", f"{name}.crt")
    return folder / "keys"


class Health(http.server.BaseHTTPRequestHandler):
    """Answers as a SuperLink behind its proxy does."""

    skew, status, control, open_path = 0.0, 200, 200, None

    def do_GET(self) -> None:
        self.send_response_only(self.status)
        self.send_header("date", formatdate(time.time() + self.skew, usegmt=True))
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.send_response_only(self.control if self.open_path == self.path else 403)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def serve(keys):
    servers = []

    def start(certificate: str | None = "server.crt", **answers: object) -> str:
        handler = type("Handler", (Health,), answers)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys / certificate, keys / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def checks(address: str, authority: Path | None) -> dict[str, tuple[bool, str]]:
    return {check.name: (check.passed, check.found) for check in doctor.examine_superlink(address, authority)}


def test_a_sound_deployment_is_fine(serve, keys):
    found = checks(serve(), keys / "ca.crt")
    assert all(fine for fine, _ in found.values())
    expected = "versions, authority, address, certificate, certificate's validity, service, clock, closed"
    assert ", ".join(found) == expected
    assert found["certificate's validity"][1] in ("364 days left", "365 days left")


class ForwardProxy(socketserver.StreamRequestHandler):
    """Opens tunnels, and nothing else; ``asked`` has where to."""

    asked: list[str] = []  # noqa: RUF012

    def handle(self) -> None:
        verb, place, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        self.asked.append(f"{verb} {place}")
        host, port = place.split(":")
        with socket.create_connection((host, int(port))) as there:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            ends = {self.connection: there, there: self.connection}
            while all(data := [(each, each.recv(65536)) for each in select.select(list(ends), [], [])[0]]):
                for each, piece in data:
                    if not piece:
                        return
                    ends[each].sendall(piece)


def test_the_way_through_a_forward_proxy_is_checked_as_nodes_go_it(serve, keys, monkeypatch):
    address = serve()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), ForwardProxy) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        way = f"127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv("https_proxy", f"http://{way}")
        found = checks(address, keys / "ca.crt")
        with httpx.Client(verify=ssl.create_default_context(cafile=keys / "ca.crt")) as client:  # as Flower makes it
            assert client.get(f"https://{address}/health").status_code == 200
        proxy.shutdown()
    assert all(fine for fine, _ in found.values())
    assert found["address"][1] == f"the proxy {way} answers, on the way to {address}"
    assert ForwardProxy.asked[-1] == f"CONNECT {address}"
    assert len(ForwardProxy.asked) >= 2
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert checks(address, keys / "ca.crt")["address"][1] == f"{address} answers"
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("https_proxy", "http://proxy:x")
    with pytest.raises(DeploymentError, match="HTTPS_PROXY http://proxy:x: expected: as http"):
        checks(address, keys / "ca.crt")


PATHS = ("/v1/control/list-runs", "/v1/runtime/get-nodes", "/v1/fleet/../control/list-runs")
RUNTIME = "/v1/runtime/get-nodes"
WRONG = [
    ({"certificate": "expired.crt"}, "ca.crt", "certificate", "expired"),
    ({"certificate": "soon.crt"}, "ca.crt", "certificate's validity", "3 days left; make new ones"),
    ({"certificate": "misnamed.crt"}, "ca.crt", "certificate", "not valid for '127.0.0.1'"),
    ({}, "../foreign/ca.crt", "certificate", "refused:"),
    ({}, None, "certificate", "refused:"),
    ({"certificate": None}, "ca.crt", "certificate", "no TLS on 127.0.0.1"),
    *(({"skew": skew}, "ca.crt", "clock", "s from the server's; expected: 5 s") for skew in (90.0, -90.0)),
    ({"status": 404}, "ca.crt", "service", "answers /health with 404"),
    *(({"open_path": path}, "ca.crt", "closed", f"{path} answers with 200; anyone who") for path in PATHS),
    ({"open_path": RUNTIME, "control": 401}, "ca.crt", "closed", f"{RUNTIME} answers with 401"),
]


def test_what_is_wrong_is_named(serve, keys, subtests):
    for server, authority, name, said in WRONG:
        with subtests.test(said):
            found = checks(serve(**server), None if authority is None else keys / authority)
            wrong = {key: text for key, (fine, text) in found.items() if not fine}
            assert list(wrong) == [name]
            assert said in wrong[name]


def test_a_missing_server_and_another_version_of_flower_are_named(keys, monkeypatch):
    real = doctor.importlib.metadata.version
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "1.29.0" if name == "flwr" else real(name))
    found = checks(f"127.0.0.1:{free_port()}", keys / "ca.crt")
    assert [name for name, (fine, _) in found.items() if not fine] == ["versions", "address"]
    assert "is the SuperLink running?" in found["address"][1]
    assert "flwr 1.29.0; expected: " in found["versions"][1]


def test_the_command_prints_a_table_or_json_and_its_exit_status_tells(serve, keys, fedamp):
    authority = ("--root-certificates", keys / "ca.crt")
    answer = fedamp("doctor", "--superlink", serve(), *authority)
    assert answer.status == 0
    assert "365 days left" in answer.out.replace("364", "365")
    answer = fedamp("doctor", "--superlink", serve(skew=60), *authority, "--json")
    assert answer.status == 1
    found = json.loads(answer.out)["deployment"]
    assert found["fine"] is False
    assert [check["name"] for check in found["checks"] if not check["fine"]] == ["clock"]
    assert answer.err.startswith("failed: clock: ")
    assert answer.err.count("\n") == 1


def named(checks: list) -> dict[str, tuple[str, str]]:
    return {check.name: (check.verdict, check.found) for check in checks}


def test_each_thing_that_a_node_lacks_has_its_command(tmp_path, serve, keys, monkeypatch):
    """Each cure mends its line, and the next look says so."""
    with chdir(tmp_path):
        found = named(doctor.examine_site("site0"))
        assert found["site0"] == ("fail", "there is no site0; fedamp enroll site0")
        membership.enroll("site0", None, False)
        Path("site0").chmod(0o640)
        found = named(doctor.examine_site("site0"))
        assert found["site0"] == ("fail", "others may read it; chmod 600 site0")
        Path("site0").chmod(0o600)
        follow = "fedamp enroll site0 --admission site0.admission"
        assert found["authority"] == ("fail", f"there is no ca.crt; {follow}")
        assert found["server"] == ("fail", f"node.conf names none; {follow}")
        given = {"name": "site0", "key": membership.NodeRequest.read(Path("site0.request")).key, "address": serve()}
        membership.NodeAdmission(**given, authority=(keys / "ca.crt").read_text()).write(Path("site0.admission"))
        membership.enroll("site0", Path("site0.admission"), False)
        assert found["records"][0] == "fail"
        Path("data").mkdir()
        for file in ("train.npz", "federation.json"):
            (Path("data") / file).touch()
        assert found["policy"][0] == "caution"
        Path("policy.yaml").write_text("least_people: none")
        assert named(doctor.examine_site("site0"))["policy"][1].endswith("correct policy.yaml")
        Path("policy.yaml").write_text(f"{{least_people: 5, tasks: {{digits: {'a' * 64}}}}}")
        found = named(doctor.examine_site("site0"))
        expected = "the tasks digits, with at least 5 people here, where --node-config has it"
        assert found["policy"] == ("pass", expected)
        monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
        Path("policy.yaml").write_text("population: people.db")
        found = named(doctor.examine_site("site0"))
        assert found["population"][0] == "fail"
        assert found["population"][1].endswith("no such population; expected: a file of fedamp population new")
        Population.new(Path("people.db"), [("0", "0"), ("1", "1")], 8.0, 1e-6)
        found = named(doctor.examine_site("site0"))
        assert found["population"] == ("pass", "2 people; each has at least 100 % left")
        assert {verdict for verdict, _ in found.values()} == {"pass"}
        assert "closed" in found  # it has looked at the server as well


def test_each_thing_that_a_server_lacks_has_its_command(tmp_path):
    found = named(doctor.examine_server(tmp_path))
    assert found["superlink.key"] == ("fail", f"there is no {tmp_path}/keys/superlink.key; fedamp certify HOST")
    with chdir(tmp_path):
        membership.certify("127.0.0.1")
    (tmp_path / "keys" / "superlink.key").chmod(0o644)
    found = named(doctor.examine_server(tmp_path))
    assert found["superlink.key"][1] == f"others may read it; chmod 600 {tmp_path}/keys/superlink.key"
    assert found["authority's key"][0] == "caution"
    assert (
        found["proxy's server.key"][1] == f"not as in keys; cp {tmp_path}/keys/server.key {tmp_path}/proxy/server.key"
    )
    (tmp_path / "keys" / "superlink.key").chmod(0o600)
    (tmp_path / "keys" / "ca.key").unlink()
    (tmp_path / "proxy").mkdir()
    for file in ("ca.crt", "server.crt", "server.key"):
        (tmp_path / "proxy" / file).write_bytes((tmp_path / "keys" / file).read_bytes())
    certificate = (tmp_path / "keys" / "server.crt").read_bytes()
    (tmp_path / "keys" / "server.crt").write_bytes(b"none")
    told = named(doctor.examine_server(tmp_path))["server.crt's validity"][1]
    assert told.endswith("0 days left; fedamp certify HOST")
    (tmp_path / "keys" / "server.crt").write_bytes(certificate)
    (tmp_path / "superlink.db").touch(0o644)
    assert named(doctor.examine_server(tmp_path))["superlink.db"][0] == "fail"
    (tmp_path / "superlink.db").chmod(0o600)
    assert named(doctor.examine_server(tmp_path))["nodes"][1].endswith("--address HOST:PORT")
    membership.RegisteredNodes(numbers={"site0": "7"}).write(tmp_path / "nodes.json")
    assert {verdict for verdict, _ in named(doctor.examine_server(tmp_path)).values()} == {"pass"}


@pytest.mark.parametrize(
    ("load", "free", "verdicts"),
    [(0.5, 8e9, ["pass", "pass"]), (50.0, 8e9, ["pass", "caution"]), (0.5, 1e8, ["fail", "pass"])],
)
def test_a_machine_that_is_too_small_or_busy_is_named(monkeypatch, load, free, verdicts):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("fedamp.base.devices.memory", lambda: (16e9, free))
    checks = doctor.examine_capacity()
    assert [check.verdict for check in checks] == verdicts
    assert checks[1].found.startswith(f"{load / 2:.1f} processes wait for each core")


def test_the_limit_of_a_container_is_the_size_of_its_machine(monkeypatch, tmp_path):
    """Its kernel tells the memory of the host; beyond the limit, the container is killed."""
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    own.write_text("1:name=systemd:/\n0::/pods/node\n")
    pods, node = groups / "pods", groups / "pods" / "node"
    node.mkdir(parents=True)
    monkeypatch.setattr("fedamp.base.devices._OWN_GROUP", own)
    monkeypatch.setattr("fedamp.base.devices._GROUPS", groups)
    total, free = devices.memory()  # of the host

    def limit(folder, most, used, files=0):
        for name, value in {"max": most, "current": used, "stat": f"anon 5\ninactive_file {files}"}.items():
            (folder / f"memory.{name}").write_text(f"{value}\n")

    limit(node, 900_000_000, 600_000_000, 100_000_000)
    assert devices.memory() == (900_000_000, min(free, 400_000_000))
    assert named(doctor.examine_capacity())["size"][0] == "fail"
    limit(pods, 700_000_000, 650_000_000)  # of all nodes there
    assert devices.memory() == (700_000_000, 50_000_000)
    limit(node, "max", 600_000_000)
    limit(pods, "max", 650_000_000)
    assert devices.memory()[0] == total
