"""Requests that are answered directly: each gets Flower's own answer, and none goes on to Flower's application."""

import asyncio
import datetime
import importlib.util
import re
import socket
import sys
import threading
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    NOOP_FEDERATION_ID,
    TASK_TOKEN_HEADER,
    TaskType,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedamp.engines import direct
from tests.deployment.machines import free_port
from tests.tools import wait

HANDLERS = direct.superlink_handlers()
PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}


class Servers:
    """Flower's SuperLink, alone and behind what answers directly, which here has no application to go on to."""

    def __init__(self) -> None:
        from flwr.superlink.main import create_app  # takes a second

        flower = create_app()
        self.both = flower, direct.DirectAnswers(SimpleNamespace(state=flower.state), HANDLERS)
        state = flower.state.linkstate_factory.state()
        self.key, public = generate_key_pairs()
        self.public = public_key_to_bytes(public)
        self.node = state.create_node("", "", self.public, 30)
        assert state.activate_node(self.node, 1e6)
        run = state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
        self.token = state.claim_task(state.get_run_info(run_ids=[run])[0].primary_task_id)

    def signed(self, key=None, age: float = 0.0) -> dict[str, str]:
        """The headers of a node."""
        when = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
        return PROTOBUF | {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode(),
            TIMESTAMP_HEADER: when,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(key or self.key, when.encode())).decode(),
        }

    def answer(self, path: str, body: bytes, headers) -> httpx.Response:
        """The answer that both give."""
        flowers, ours = (asyncio.run(post(app, path, body, headers)) for app in self.both)
        assert (ours.status_code, ours.content) == (flowers.status_code, flowers.content)
        assert dict(ours.headers) == dict(flowers.headers)
        return ours


async def post(app, path: str, body: bytes, headers) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://superlink") as client:
        return await client.post(path, content=body, headers=headers)


@pytest.fixture(scope="module")
def servers():
    with pytest.MonkeyPatch.context() as patch:  # a token lasts for a minute without a beat
        patch.setattr("flwr.supercore.corestate.in_memory_corestate.HEARTBEAT_DEFAULT_INTERVAL", 1e6)
        return Servers()


def request_to(path: str, node: int) -> bytes:
    """A request that tells its node alone."""
    request = PROTOBUF_REQUEST_TYPES["POST", path]()
    if "node" in request.DESCRIPTOR.fields_by_name:
        request.node.CopyFrom(Node(node_id=node))
    return request.SerializeToString()


@pytest.mark.parametrize("path", [path for path in HANDLERS if path.startswith("/v1/fleet/")])
def test_a_node_gets_flowers_answer_and_a_stranger_none(servers, path):
    body = request_to(path, servers.node)
    found = servers.answer(path, body, servers.signed())
    assert found.status_code == 200 or "Invalid SuperNode" not in found.text
    strangers = PROTOBUF, servers.signed(generate_key_pairs()[0]), servers.signed(age=3600), servers.signed(age=-60)
    for headers in strangers:
        assert servers.answer(path, body, headers).status_code == 401
    assert servers.answer(path, request_to(path, servers.node + 1), servers.signed()).status_code == 401
    assert servers.answer(path, b"\xff no protobuf", servers.signed()).status_code == 400
    assert servers.answer(path, body, servers.signed() | {"content-type": "text/html"}).status_code == 415


@pytest.mark.parametrize("path", [path for path in HANDLERS if path.startswith("/v1/runtime/")])
def test_an_app_gets_flowers_answer_and_a_stranger_none(servers, path):
    body, own = request_to(path, 1), PROTOBUF | {TASK_TOKEN_HEADER: servers.token}
    taken, other = servers.answer(path, body, own), {TASK_TOKEN_HEADER: "another"}
    assert taken.status_code not in (401, 412) or "Failed to start task" in taken.text
    for headers in (PROTOBUF, PROTOBUF | other, [*own.items(), *other.items()]):
        assert servers.answer(path, body, headers).status_code == 401
    old = {"flwr-package-name": "flwr", "flwr-package-version": "1.2.0", "flwr-component-name": "flwr-serverapp"}
    assert "version" in servers.answer(path, body, own | old).text
    assert servers.answer(path, b"\xff no protobuf", own).status_code == 400


@pytest.fixture(scope="module")
def ports(servers):
    """Flower's application alone, and behind what answers directly, each with Flower's HTTP server on a port."""
    flower, _ = servers.both
    apps = flower, direct.DirectAnswers(flower, HANDLERS)
    configs = [uvicorn.Config(app, port=free_port(), log_level="critical", lifespan="off", ws="none") for app in apps]
    running = [uvicorn.Server(config) for config in configs]
    threads = [threading.Thread(target=server.run) for server in running]
    for thread in threads:
        thread.start()
    wait(lambda: all(server.started for server in running), what="the servers", every=0.01)
    yield [config.port for config in configs]
    for server in running:
        server.should_exit = True
    for thread in threads:
        thread.join()


def said(port: int, request: bytes) -> bytes:
    """All that a server sends until it closes the connection, without the time."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return re.sub(rb"date: [^\r]*\r\n", b"", answer, flags=re.IGNORECASE)


NODES, APPS = "/v1/fleet/pull-messages", "/v1/runtime/pull-object"


def http(path: str, body: bytes, headers, method: str = "POST", length: bool = True, close: bool = True) -> bytes:
    """A request as it is sent."""
    sized = [("content-length", str(len(body)))] if length else []
    lines = ["host: superlink", *(f"{name}: {value}" for name, value in [*headers, *sized])]
    lines += ["connection: close"] if close else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def test_hostile_bytes_get_flowers_answer(servers, ports):
    """Ways around a path, a length or a check: what is no request for a direct answer is Flower's."""
    given = {NODES: [*servers.signed().items()], APPS: [*PROTOBUF.items(), (TASK_TOKEN_HEADER, servers.token)]}
    for path, headers in given.items():
        body = request_to(path, servers.node)
        pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        chunked = [*headers, ("transfer-encoding", "chunked")]
        kept = http(path, body, headers, close=False)
        requests = {
            "as it is": http(path, body, headers),
            **{method: http(path, body, headers, method) for method in ("GET", "HEAD", "OPTIONS", "PUT", "post")},
            **{
                other: http(other, body, headers)
                for other in (
                    f"/{path}",
                    f"{path}/",
                    path.upper(),
                    path.replace("-", "%2d"),
                    path.replace("/v1", "%2fv1"),
                    path.replace("v1/", "v1/x/../"),
                    f"{path}?a=b",
                    f"{path}%3fa",
                    f"{path}%09",
                    f"http://other{path}",
                )
            },
            "chunks": http(path, pieces + b"0\r\n\r\n", chunked, length=False),
            "chunks that are none": http(path, b"z\r\n" + pieces, chunked, length=False),
            "chunks and a length": http(path, pieces + b"0\r\n\r\n", chunked),
            "two lengths": http(path, body, [*headers, ("content-length", "1")]),
            "a negative length": http(path, body, [*headers, ("content-length", "-1")], length=False),
            "three on a connection": 2 * kept + http(path, body, headers),
            "others between": kept + http("/health", b"", [], "GET", close=False) + http(path, body, PROTOBUF.items()),
            "a second content type": http(path, body, [*headers, ("content-type", "text/html")]),
            "another content type first": http(path, body, [("content-type", "text/html"), *headers]),
            "all headers twice": http(path, body, headers + headers),
            "two hosts": http(path, body, [*headers, ("host", "other/?")]),
            "another protocol": http(path, body, [*headers, ("upgrade", "h2c")]),
            "another path in a header": http(path, body, [*headers, ("x-original-url", "/health")]),
            "a node beside its own": http(path, request_to(path, servers.node + 1) + body, headers),
            "another node beside its own": http(path, body + request_to(path, servers.node + 1), headers),
            "nested too deeply": http(path, nested(400), headers),
        }
        answers = {name: [said(port, request) for port in ports] for name, request in requests.items()}
        assert [name for name, (flowers, ours) in answers.items() if flowers != ours] == []
        statuses = {name: flowers[9:12].decode() for name, (flowers, _) in answers.items()}
        assert statuses["as it is"] == statuses["chunks"] == statuses[path.replace("-", "%2d")]
        assert len(set(statuses.values())) >= 4, statuses


def nested(depth: int) -> bytes:
    """A message within a message, and so on, in the first field of each."""
    body = b""
    for _ in range(depth):
        size = len(body)
        body = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + body
    return body


def test_all_other_requests_take_flowers_own_way(servers):
    asked = []

    async def flower(scope, receive, send):
        asked.append((scope["type"], scope.get("method"), scope.get("path")))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    app = direct.DirectAnswers(flower, HANDLERS)
    known = "/v1/fleet/pull-messages"
    for path in ("/v1/control/start-run", "/v1/fleet/activate-node", f"{known}/", known.upper()):
        assert asyncio.run(post(app, path, b"", {})).status_code == 204
        assert asked.pop() == ("http", "POST", path)

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://superlink") as client:
            return await client.get(known)

    assert asyncio.run(get()).status_code == 204
    assert asked == [("http", "GET", known)]


@pytest.mark.parametrize(
    ("version", "traced", "known"),
    [("1.41.0", "", True), ("1.42.3", "0", True), ("1.43.0", "", False), ("1.42.0", "1", False)],
)
def test_another_flower_answers_by_itself(monkeypatch, version, traced, known):
    monkeypatch.setenv("FLWR_TRACING_ENABLED", traced)
    server, made = SimpleNamespace(create_app=lambda **named: SimpleNamespace(**named)), "a_server_of_flower"
    monkeypatch.setitem(sys.modules, made, server)
    monkeypatch.setattr(direct.importlib.metadata, "version", lambda name: version)
    direct.answer_directly(made, lambda: HANDLERS)
    assert isinstance(server.create_app(state=None), direct.DirectAnswers) == known


def test_flowers_commands_look_for_their_application_when_they_start():
    """So it can be another one by then."""
    [package] = importlib.util.find_spec("flwr").submodule_search_locations
    for command, module in [("superlink", "flwr.superlink.main"), ("supernode", "flwr.supernode.main")]:
        source = (Path(package) / command / "cli" / f"flower_{command}.py").read_text()
        assert re.findall(rf"^( *)from {module} import [^)]*\bcreate_app\b", source, re.MULTILINE) == [" " * 4]
