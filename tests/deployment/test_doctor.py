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


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Keys by the documented command, and others that are wrong."""
    folder = tmp_path_factory.mktemp("deployment")
    for name, host in [("keys", "127.0.0.1"), ("foreign", "127.0.0.1"), ("elsewhere", "fl.example.org")]:
        subprocess.run(["sh", str(DOCUMENTS / "keys.sh"), str(folder / name), host, "site0"], check=True)
    made = folder / "keys"
    (made / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    openssl("req", "-new", "-key", "server.key", "-subj", "/CN=x", "-out", "csr", folder=made)
    for name, days in [("soon", "3"), ("expired", "-1")]:
        authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
        openssl("x509", "-req", "-in", "csr", *authority, "-days", days, "-out", f"{name}.crt", folder=made)
    # The name of another host, signed by our authority.
    (made / "other").write_text("subjectAltName=DNS:fl.example.org\nauthorityKeyIdentifier=keyid\n")
    authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "other")
    openssl("x509", "-req", "-in", "csr", *authority, "-days", "365", "-out", "misnamed.crt", folder=made)
    return made


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
    return {check.name: (check.fine, check.found) for check in doctor.examine_superlink(address, authority)}


def test_a_sound_deployment_is_fine(serve, keys):
    found = checks(serve(), keys / "ca.crt")
    assert all(fine for fine, _ in found.values())
    expected = [
        "versions",
        "authority",
        "address",
        "certificate",
        "certificate's validity",
        "service",
        "clock",
        "closed",
    ]
    assert list(found) == expected
    assert found["certificate's validity"][1] in ("364 days left", "365 days left")


WRONG = [
    ({"certificate": "expired.crt"}, "ca.crt", "certificate", "expired"),
    ({"certificate": "soon.crt"}, "ca.crt", "certificate's validity", "3 days left; make new ones"),
    ({"certificate": "misnamed.crt"}, "ca.crt", "certificate", "not valid for '127.0.0.1'"),
    ({}, "../foreign/ca.crt", "certificate", "refused:"),
    ({}, None, "certificate", "refused:"),
    ({"certificate": None}, "ca.crt", "certificate", "no TLS on 127.0.0.1"),
    ({"skew": 90.0}, "ca.crt", "clock", "s from the server's; expected: 5 s"),
    ({"skew": -90.0}, "ca.crt", "clock", "s from the server's; expected: 5 s"),
    ({"status": 404}, "ca.crt", "service", "answers /health with 404"),
    *(
        ({"open_path": path}, "ca.crt", "closed", f"{path} answers with 200; whoever reaches this port can run code")
        for path in ("/v1/control/list-runs", "/v1/runtime/get-nodes", "/v1/fleet/../control/list-runs")
    ),
    (
        {"open_path": "/v1/runtime/get-nodes", "control": 401},
        "ca.crt",
        "closed",
        "/v1/runtime/get-nodes answers with 401",
    ),
]


def test_what_is_wrong_is_named(serve, keys, subtests):
    for server, authority, name, said in WRONG:
        with subtests.test(said):
            found = checks(serve(**server), None if authority is None else keys / authority)
            wrong = {key: text for key, (fine, text) in found.items() if not fine}
            assert list(wrong) == [name]
            assert said in wrong[name]


def test_a_server_that_is_not_there_is_named(keys):
    found = checks(f"127.0.0.1:{free_port()}", keys / "ca.crt")
    assert not found["address"][0]
    assert "is the SuperLink running?" in found["address"][1]


def test_another_version_of_flower_is_named(serve, keys, monkeypatch):
    real = doctor.importlib.metadata.version
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "1.29.0" if name == "flwr" else real(name))
    fine, found = checks(serve(), keys / "ca.crt")["versions"]
    assert not fine
    assert "flwr 1.29.0; expected: " in found


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
