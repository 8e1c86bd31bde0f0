"""fedamp in a job of NVFlare: its server plays a scenario, and its sites are the nodes.

An aggregator and a filter, NVFlare's usual places for privacy, cannot keep the promise: they come after NVFlare has
chosen who takes part, and what it chooses is seen by every site's log. So the whole round is ours, and NVFlare carries
sealed bytes. Flower's classes of messages are used, and no server or node of Flower.

A job has :class:`PrivateController` on its server, and :class:`PrivateExecutor` for the task ``fedamp`` at its sites;
``job.py`` is one. Filters of NVFlare must leave that task alone.
"""

from collections.abc import Iterable
from time import monotonic, sleep
from typing import Any

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.proto.node_pb2 import NodeInfo
from nvflare.apis.controller_spec import Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedamp.client.app import app
from fedamp.engines import flower
from fedamp.engines.deployment import failed
from fedamp.engines.simulation import FIRST_NODE
from fedamp.engines.wire import RoundAnswer, RoundOrder, message_content, sealed_bytes
from fedamp.errors import FedampError, FederationError, one_line
from fedamp.server.app import main

TASK = "fedamp"
_KIND, _BYTES = "kind", "sealed"
LOOK = 0.05  # seconds between two looks at what has arrived


class NVFlareGrid(flower.OwnGrid):
    """A Flower grid over NVFlare's communicator; nodes have the names of the sites, which NVFlare authenticates.

    A reply must have exactly the bytes that were asked for, or it becomes an error in the name of its site.
    """

    simulated = False

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort: Signal) -> None:
        super().__init__()
        self._controller, self._fl_ctx, self._abort = controller, fl_ctx, abort
        self._node_of: dict[str, int] = {}
        self._pending: dict[str, tuple[Message, RoundOrder, Task]] = {}

    def get_nodes(self) -> list[NodeInfo]:
        for site in self._controller._engine.get_clients():
            self._node_of.setdefault(site.name, FIRST_NODE + len(self._node_of))
        return [NodeInfo(node_id=node, name=name) for name, node in self._node_of.items()]

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and return their ids at once."""
        names = {node: name for name, node in self._node_of.items()}
        sent = []
        for message in messages:
            order, id_ = RoundOrder.of(message.content), str(next(self._numbers))
            flower.set_message_id(message, id_)
            task = Task(TASK, Shareable({_KIND: message.metadata.message_type, _BYTES: order.sealed()}))
            self._controller.send(task, self._fl_ctx, targets=[names[message.metadata.dst_node_id]])
            self._pending[id_] = (message, order, task)
            sent.append(id_)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to such messages that are there now."""
        return [reply for id_ in message_ids if (reply := self._reply(id_)) is not None]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies, ``timeout`` seconds in all; FederationError: the job is aborted."""
        waiting, replies = self.push_messages(messages), []
        deadline = None if timeout is None else monotonic() + timeout
        while waiting and (deadline is None or monotonic() < deadline):
            if self._abort.triggered:
                raise FederationError("NVFlare aborted the job")
            came = self.pull_messages(waiting)
            replies += came
            waiting = [id_ for id_ in waiting if id_ in self._pending]
            if not came:
                sleep(LOOK)
        for id_ in waiting:
            self._controller.cancel_task(self._pending.pop(id_)[2])
        return replies

    def _reply(self, id_: str) -> Message | None:
        message, order, task = self._pending[id_]
        if task.completion_status is None:
            return None
        del self._pending[id_]
        given = task.client_tasks[-1].result if task.client_tasks else None
        try:
            if given is None or given.get_return_code() != ReturnCode.OK:
                raise ValueError("the site did not answer" if given is None else str(given.get_return_code()))
            return Message(RoundAnswer.opened(given[_BYTES], order).content(order), reply_to=message)
        except Exception as error:  # whatever a site sends, it stops no round
            return failed(message, error)


class PrivateController(Controller):  # type: ignore[misc]
    """Plays a scenario on the sites of a job, as ``flwr run .`` does on SuperNodes.

    Args:
        scenario: a file, or a shipped name. ``federation.hosts`` has the names of the sites.
        out: the run's folder.
        resume: go on with the run in that folder.
        known_seed: draw from the scenario's seed, for research.
    """

    def __init__(self, scenario: str, out: str, resume: bool = False, known_seed: bool = False) -> None:
        super().__init__()
        # NVFlare writes a job's arguments from the attributes of their names.
        self.scenario, self.out, self.resume, self.known_seed = scenario, out, resume, known_seed

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is to be prepared."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Play the run; what goes wrong ends the job."""
        config: UserConfig = {"scenario": self.scenario, "out": self.out}
        config |= {"resume": self.resume, "known-seed": self.known_seed}
        try:
            main(NVFlareGrid(self, fl_ctx, abort_signal), Context(1, 1, {}, RecordDict(), config))
        except FedampError as error:
            self.system_panic(one_line(error), fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        self.cancel_all_tasks()

    def process_result_of_unknown_task(self, *_: Any, **__: Any) -> None:
        """An answer that came after its deadline counts for nothing."""


class PrivateExecutor(Executor):  # type: ignore[misc]
    """Trains the units that live at a site.

    Args:
        hosts, data, device: as ``--node-config`` of a SuperNode: docs/deployment.md. ``{site}`` is the site's name.
    """

    def __init__(self, hosts: str = "", data: str = "", device: str = "") -> None:
        super().__init__()
        self.hosts, self.data, self.device = hosts, data, device
        self._context: Context | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            flower.identify()
            flower.deployed_here()
            asked = {"hosts": self.hosts, "data": self.data, "device": self.device}
            name = fl_ctx.get_identity_name()
            config: UserConfig = {key: value.replace("{site}", name) for key, value in asked.items() if value}
            self._context = Context(1, FIRST_NODE, config, RecordDict(), {})

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if task_name != TASK or self._context is None:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        order = Message(message_content(shareable[_BYTES]), FIRST_NODE, shareable[_KIND])
        reply = app(order, self._context)
        return Shareable({_BYTES: sealed_bytes(reply.content)})
