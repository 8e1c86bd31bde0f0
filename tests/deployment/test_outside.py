"""What somebody who reaches a deployment's port can do there: without a key nothing, with a revoked one neither."""

import re
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack, closing

import httpx
import pytest
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedamp.extensions.deployment import doctor, membership
from tests.deployment.hostile import WireNode
from tests.deployment.machines import NODES, Machines
from tests.deployment.test_processes import assert_equals_simulation, write_scenario

_METHODS = [name for name in vars(FleetHttpClient) if not name.startswith("_")]
FLEET = {"/v1/fleet/" + re.sub("(?<!^)(?=[A-Z])", "-", name).lower() for name in _METHODS}
ALLOWED = FLEET | {"/health"}


def ask(federation: Machines, request: str, port: int | None = None) -> str:
    """Send bytes as they are; returns the first line of every answer until the server closes."""
    context = ssl.create_default_context(cafile=federation.server / "keys" / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", port or federation.port), timeout=120) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(request.encode("latin-1"))
        answer = b""
        while part := secured.recv(65536):
            answer += part
    return " ".join(re.findall(r"^HTTP/1\.[01] (\d+)", answer.decode("latin-1"), re.MULTILINE))


def post(path: str, *headers: str, body: str = "") -> str:
    lines = [f"POST {path} HTTP/1.1", "Content-Type: application/protobuf", "Connection: close"]
    if not any(header.lower().startswith(("host:",)) for header in headers):
        lines.append("Host: fl.example.org")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", *headers, "", body])


def passed(federation: Machines) -> set[str]:
    """The paths of all requests that the SuperLink got from the proxy, which names no port of the caller's."""
    return set(re.findall(r'127\.0\.0\.1:0 - "\S+ (\S+)', federation.log("superlink")))


INNER = "/v1/control/list-runs"
HIDDEN = [  # ways to say INNER, or another path that is not a node's, that a proxy or a server may read otherwise
    *(INNER, "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/runtime/get-nodes"),
    *("/docs", "/openapi.json", "/", "/v1/fleet", "/v1/fleet/", "/v1/fleet/other", "/v1/fleet/get-run/", "/health/"),
    *(
        "//v1/control/list-runs",
        "/v1//control/list-runs",
        "/./v1/control/list-runs",
        "/health/..//v1/control/list-runs",
    ),
    *("/v1/fleet/../control/list-runs", "/v1/fleet/get-run/../../control/list-runs"),
    *("/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/..%2fcontrol/list-runs", "/v1/fleet%2f..%2fcontrol%2flist-runs"),
    *("/v1/fleet/%252e%252e/control/list-runs", "/v1/fleet/..\\control\\list-runs", "/v1/fleet/..;/control/list-runs"),
    *("/V1/CONTROL/list-runs", "/v1/%63ontrol/list-runs", "/v1/control/list-runs/"),
    *(f"{INNER}{sign}/v1/fleet/get-run" for sign in ("?", "#", ";", "%3f", "%23", "%00", "%0a", "%0d%0a")),
    *(f"/v1/fleet/get-run{sign}{INNER}" for sign in (";", "%3f", "%23", "%00", "%0d%0aHost:%20x%0d%0a%0d%0aPOST%20")),
    *(f"https://localhost{INNER}", f"https://127.0.0.1:9090{INNER}", f"*{INNER}", INNER[1:]),
]
HOSTS = [f"x{INNER}?", "x/v1/runtime/push-object?", f"x{INNER}#", "x\\", "127.0.0.1:9090", "x@localhost", ""]
SMUGGLED = post(INNER)


def test_no_path_but_a_nodes_reaches_the_superlink(superlink, subtests):
    assert ask(superlink, post(INNER), superlink.inner_port) == "200"  # so that there is something to hide
    for path in HIDDEN:
        with subtests.test(path):
            assert ask(superlink, post(path)) in {"403", "400", ""}
    assert passed(superlink) <= ALLOWED


def test_headers_and_bodies_do_not_take_a_request_elsewhere(superlink, subtests):
    length = len(SMUGGLED)
    attempts = {
        **{f"host {host}": post("/v1/fleet/push-object", f"Host: {host}") for host in HOSTS},
        "two hosts": post("/v1/fleet/get-run", "Host: localhost", f"Host: x{INNER}?"),
        "forwarded": post("/v1/fleet/get-run", "X-Forwarded-Proto: https://x/?", f"X-Forwarded-Prefix: {INNER}"),
        "root path": post("/v1/fleet/get-run", "X-Original-URL: " + INNER, "X-Rewrite-URL: " + INNER),
        "upgrade": post("/v1/fleet/get-run", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
        "chunks and a length": post("/v1/fleet/get-run", "Transfer-Encoding: chunked", body="0\r\n\r\n" + SMUGGLED),
        "odd chunks": post("/v1/fleet/get-run", "Transfer-Encoding: xchunked", body="0\r\n\r\n" + SMUGGLED),
        "two lengths": post("/v1/fleet/get-run", f"Content-Length: {length}", body=SMUGGLED),
        "pipelined": post("/v1/fleet/get-run").replace("close", "keep-alive") + SMUGGLED,
        "other methods": post("/v1/fleet/get-run").replace("POST", "GET") + post("/health"),
        "bare line feeds": post("/v1/fleet/get-run").replace("\r\n", "\n") + SMUGGLED,
    }
    for name, request in attempts.items():
        with subtests.test(name):
            # 401: passed to the SuperLink as a node's request, which it refuses for want of a key.
            assert set(ask(superlink, request).split()) <= {"400", "401", "403", "501"}
    assert passed(superlink) <= ALLOWED


def test_what_a_node_needs_is_passed(superlink):
    assert ask(superlink, post("/health").replace("POST", "GET")) == "200"
    for path in FLEET:
        assert ask(superlink, post(path)) == "401"  # by the SuperLink, for want of a key
    assert passed(superlink) >= FLEET
    large = post("/v1/fleet/push-object", body="x" * 20_000_000)
    assert ask(superlink, large) == "401"  # and not "too large": it arrived


def test_flowers_commands_are_refused_from_outside(superlink):
    home = superlink.folder / "stranger"
    home.mkdir()
    authority = superlink.server / "keys" / "ca.crt"
    (home / "config.toml").write_text(
        f'[superlink.there]\naddress = "127.0.0.1:{superlink.port}"\nroot-certificates = "{authority}"\n'
    )
    environment = superlink.environment() | {"FLWR_HOME": str(home)}
    command = ["flwr", "run", "app", "there"]
    done = subprocess.run(command, env=environment, cwd=superlink.server, capture_output=True, text=True)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "403" in said or "denied" in said.lower(), said
    assert passed(superlink) <= ALLOWED


def test_the_doctor_sees_whether_there_is_a_proxy(superlink):
    def closed(port: int) -> tuple[str, str]:
        checks = doctor.examine_superlink(f"127.0.0.1:{port}", superlink.server / "keys" / "ca.crt")
        [check] = [check for check in checks if check.name == "closed"]
        return check.verdict, check.found

    assert closed(superlink.port) == ("pass", "the nodes' API is open, and nothing else")
    verdict, found = closed(superlink.inner_port)
    assert verdict == "fail"
    assert "/v1/control/list-runs answers with 200" in found
    assert "/v1/runtime/get-nodes answers with 401" in found


def test_a_run_with_registered_nodes_equals_its_simulation_and_a_key_is_revoked(federation, monkeypatch):
    """The page's commands from the keys to the end of a run, with nodes in this process; and then the database."""
    raw, run = write_scenario(federation, rounds=1), federation.server / "run"
    with ExitStack() as stack:
        nodes = [stack.enter_context(closing(WireNode(federation, name))) for name in NODES]
        federation.start_run(known_seed=True)
        while not (run / "summary.json").exists():
            for node in nodes:
                if (order := node.pull()) is not None:
                    node.confirm(order)
                    node.react(order)
            time.sleep(0.3)
        assert_equals_simulation(federation, raw, away=set())
        stolen = nodes[2]
        monkeypatch.setenv("FLWR_HOME", federation.environment()["FLWR_HOME"])
        monkeypatch.chdir(federation.server)
        membership.admit(revoke=[stolen.name])
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            stolen.pull()
    before = sum(file.stat().st_size for file in federation.server.glob("superlink.db*"))
    assert before > 10_000
    federation.kill("superlink")
    federation.shell("server: delete the database")
    assert list(federation.server.glob("superlink.db*")) == []
