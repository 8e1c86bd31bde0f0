"""What the doctor says of a deployment, over real TLS to a server of our own."""

import http.server
import json
import ssl
import subprocess
import threading
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from fedamp.cli import doctor
from tests.deployment.machines import DOCUMENTS, free_port


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Keys by the documented command, another authority, and certificates that are wrong."""
    folder = tmp_path_factory.mktemp("deployment")
    for name in ("keys", "foreign"):
        subprocess.run(["sh", str(DOCUMENTS / "keys.sh"), str(folder / name), "127.0.0.1", "site0"], check=True)

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
    *(({"open_path": path}, "ca.crt", "closed", f"{path} answers with 200; anybody who") for path in PATHS),
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
