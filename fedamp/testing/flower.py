"""Play any Flower app in one process, for tests of an app: no SuperLink, no nodes, no Ray.

    from fedamp.testing import play_flower

    def test_my_app(tmp_path):
        play_flower("my-app", nodes=4, run_config={"num-server-rounds": 2, "out": str(tmp_path)})

It needs no private app and no pytest. :class:`fedamp.engines.simulation.InProcessGrid` carries the messages.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedamp.base.devices import one_thread
from fedamp.base.reading import read_regular
from fedamp.engines import flower
from fedamp.engines.simulation import FIRST_NODE, InProcessGrid, load_app
from fedamp.errors import InputError

Value = bool | float | int | str
Apps = tuple[ServerApp | str, ClientApp | str]


class PlayedGrid(InProcessGrid):
    """A Flower grid whose nodes are contexts in this process. A client app that raises ends the play.

    Args:
        client_app: that answers for all nodes.
        contexts: of the nodes, by their ids; each keeps the state of its node.
    """

    def __init__(self, client_app: ClientApp, contexts: Mapping[int, Context]) -> None:
        super().__init__()
        self.workers, self._app, self._contexts = len(contexts), client_app, contexts

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes."""
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Have the nodes answer messages in turn; no deadline passes.

        Raises:
            Exception: what the client app raises.
        """
        replies = []
        for message in self._numbered(messages):
            with one_thread():
                replies.append(self._app(flower.copy_message(message), self._contexts[message.metadata.dst_node_id]))
        return replies


def play_flower(
    app: str | Path | Apps,
    nodes: int = 2,
    run_config: Mapping[str, Value] | None = None,
    node_config: Mapping[str, Value] | None = None,
) -> Context:
    """Run a Flower app from start to end in this process, one node after the other.

    Each node has ``partition-id`` and ``num-partitions`` in its configuration, as in Flower's simulation, and keeps
    its state between rounds.

    Args:
        app: the folder of an app (its ``pyproject.toml`` names server and client), or the ServerApp and the ClientApp:
            objects, or import paths such as ``"my_app.client_app:app"``.
        nodes: their number, at least 1.
        run_config: values in place of those of ``[tool.flwr.app.config]``.
        node_config: further values for each node.

    Returns:
        The server's context, with the state that its app left.

    Raises:
        InputError: the folder holds no app, or lacks a key of ``run_config``.
        Exception: whatever the server app or the client app raises, with its traceback.

    Example:
        >>> from flwr.app import Message, MetricRecord, RecordDict
        >>> from flwr.clientapp import ClientApp
        >>> from flwr.serverapp import ServerApp
        >>> server, client = ServerApp(), ClientApp()
        >>> @client.query()
        ... def answer(message, context):
        ...     return Message(RecordDict({"number": MetricRecord({"of": context.node_config["partition-id"]})}),
        ...                    reply_to=message)
        >>> @server.main()
        ... def main(grid, context):
        ...     asked = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
        ...     print([reply.content["number"]["of"] for reply in grid.send_and_receive(asked)])
        >>> _ = play_flower((server, client), nodes=3)
        [0, 1, 2]
    """
    if nodes < 1:
        raise InputError(f"nodes: got {nodes}; expected: a whole number >= 1")
    flower.identify()
    given = dict(run_config or {})
    with _found(app) as ((server, client), defaults):
        if defaults is not None and (unknown := sorted(given.keys() - defaults.keys())):
            known = ", ".join(defaults) or "none"
            raise InputError(f"run_config: {unknown[0]}: no key of [tool.flwr.app.config]; expected: {known}")
        config = {**(defaults or {}), **given}
        here = [{"partition-id": number, "num-partitions": nodes, **(node_config or {})} for number in range(nodes)]
        contexts = {
            FIRST_NODE + number: Context(1, FIRST_NODE + number, each, RecordDict(), dict(config))
            for number, each in enumerate(here)
        }
        context = Context(1, flower.SERVER_NODE, {}, RecordDict(), config)
        serve: ServerApp = load_app(server) if isinstance(server, str) else server
        answer: ClientApp = load_app(client) if isinstance(client, str) else client
        serve(PlayedGrid(answer, contexts), context)
    return context


@contextmanager
def _found(app: str | Path | Apps) -> Iterator[tuple[Apps, dict[str, Value] | None]]:
    """Yield the apps and the run configuration of a folder, whose modules can be imported while the context lasts.

    Afterwards they are forgotten, so that another folder may have modules of the same names.
    """
    if isinstance(app, tuple):
        yield app, None
        return
    folder = Path(app).resolve()
    try:
        said = tomllib.loads(read_regular(folder / "pyproject.toml").decode())["tool"]["flwr"]["app"]
        paths = said["components"]["serverapp"], said["components"]["clientapp"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{app}: no Flower app ({why}); expected: a folder whose pyproject.toml names one") from None
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield paths, _flat_config(said.get("config", {}))
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]


def _flat_config(config: Mapping[str, Any], above: str = "") -> dict[str, Value]:
    """Write the keys of nested tables with dots, as Flower does."""
    flat: dict[str, Value] = {}
    for key, value in config.items():
        flat |= _flat_config(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return flat
