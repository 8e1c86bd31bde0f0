"""Answer the frequent requests of Flower's HTTP servers directly: Flower's own checks and handlers, in one step.

Flower passes each request through eight middlewares and FastAPI's dependencies, each of which is a task or a thread of
its own. They do nothing for the requests of messages, and take longer than the answers. Here the body is read, and one
thread does the rest: Flower's authentication, and the function of its route. All other requests take Flower's own way,
and so do all where another version of Flower, or its enterprise part, is installed, or tasks are traced.

``fedamp node`` and ``fedamp superlink`` use it.
"""

import importlib.metadata
import os
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

FLOWER = "1.41.", "1.42."  # whose insides are known
MESSAGES = "pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"
OF_APPS = *MESSAGES, "get-nodes", "pull-task-input"

Handler = Callable[[Any, Any], Any]
"""Answers a request, given with the message in its body, by another message; it may raise Flower's errors."""


def is_known() -> bool:
    """Say whether the Flower that is installed is known here, without its enterprise part, and traces no tasks."""
    is_traced = os.environ.get("FLWR_TRACING_ENABLED") == "1"
    return importlib.metadata.version("flwr").startswith(FLOWER) and find_spec("flwr.ee") is None and not is_traced


class DirectAnswers:
    """Answer some requests before they reach one of Flower's applications, as it would.

    This is itself an ASGI application.

    Args:
        app: Flower's, a FastAPI application.
        handlers: by path, what answers a POST.
    """

    def __init__(self, app: Any, handlers: Mapping[str, Handler]) -> None:
        self._app, self._answers = app, {path: _answer_of(path, handler) for path, handler in handlers.items()}
        self._translate_errors: Any = import_module("flwr.supercore.error").http_error_translator
        self._request: Any = import_module("starlette.requests").Request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; lifespans and all that is not known here go to Flower's application."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        answer = self._answers.get(scope["path"]) if is_post else None
        if answer is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        response = await self._translate_errors(self._request(scope, receive), answer)
        await response(scope, receive, send)


def _answer_of(path: str, handler: Handler) -> Callable[[Any], Awaitable[Any]]:
    """Make what reads a request, has a thread answer it, and writes the response."""
    translation: Any = import_module("flwr.supercore.protobuf.translation")
    run_in_threadpool: Any = import_module("starlette.concurrency").run_in_threadpool
    translator, kind = translation.ProtobufTranslationMiddleware, translation.PROTOBUF_REQUEST_TYPES["POST", path]

    async def answer(request: Any) -> Any:
        translator._check_request_media_type(request)
        message = translator._parse_request(await request.body(), kind)
        request.state.protobuf_request = message  # where Flower's authentication looks
        found = await run_in_threadpool(handler, request, message)
        return translation.Response(content=found.SerializeToString(), media_type=translation.PROTOBUF_MEDIA_TYPE)

    return answer


def superlink_handlers() -> dict[str, Handler]:
    """Return what answers the requests of nodes, and of the server's app, at a SuperLink."""
    routes: Any = import_module("flwr.superlink.routers.fleet.router")
    authenticate: Any = import_module("flwr.superlink.routers.fleet.node_auth").authenticate_node

    def of_node(name: str) -> Handler:
        route = getattr(routes, f"fleet_{name.replace('-', '_')}")

        def handle(request: Any, message: Any) -> Any:
            authenticate(request)
            return route(message, routes.get_linkstate(request))

        return handle

    return {f"/v1/fleet/{name}": of_node(name) for name in MESSAGES} | runtime_handlers("SuperLink")


def runtime_handlers(component: str) -> dict[str, Handler]:
    """Return what answers the requests of an app's process.

    Args:
        component: Flower's name of the server, SuperLink or SuperNode.
    """
    routes: Any = import_module("flwr.supercore.routers.runtime.router")
    needs: Any = import_module("flwr.supercore.dependencies.runtime")
    token: Any = import_module("flwr.supercore.constant").TASK_TOKEN_HEADER
    check_version = routes.VersionDependency(
        component_name=component, connection_name=f"Caller <-> {component} Runtime API"
    )

    def of_app(name: str) -> Handler:
        route = getattr(routes, name.replace("-", "_"))

        def handle(request: Any, message: Any) -> Any:
            check_version(request)
            state = needs.get_runtime_state(request)
            task = needs.get_task(request, request.headers.get(token), state)
            return route(message, state, needs.get_runtime_handlers(request), task)

        return handle

    return {f"/v1/runtime/{name}": of_app(name) for name in OF_APPS}


def answer_directly(module: str, handlers: Callable[[], Mapping[str, Handler]]) -> None:
    """Have a server of this process answer directly, once Flower makes its application; not where it is unknown.

    Args:
        module: of Flower, with the function ``create_app``.
        handlers: gives what answers.
    """
    if not is_known():
        return
    server: Any = import_module(module)
    create = server.create_app
    server.create_app = lambda *given, **named: DirectAnswers(create(*given, **named), handlers())
