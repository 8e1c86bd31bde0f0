"""Client apps of somebody's own, for the tests: loops that behave, and loops that do anything else."""

import contextlib
import time

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from fedamp.client import PrivateClientApp


def gradient_descent(model, records, context):
    """As fedamp's own client trains: full batches, cross-entropy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=context.settings.learning_rate)
    for _ in range(context.settings.steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.from_numpy(records.inputs)), torch.from_numpy(records.labels)).backward()
        optimizer.step()
    return model


descent_app = PrivateClientApp(train=gradient_descent)


def raising(model, context):
    raise ArithmeticError("it does not add up")


SENT = {  # client: what its loop makes of a dict of arrays
    0: lambda model, context: {name: array + 1e-4 for name, array in model.items()},
    1: lambda model, context: {name: array * np.nan for name, array in model.items()},
    2: lambda model, context: {name: array + np.float32(1e38) for name, array in model.items()},
    3: lambda model, context: {name: array[..., :1] for name, array in model.items()},
    4: raising,
    5: lambda model, context: None,
    6: lambda model, context: {**model, "more": np.ones(3)},
    7: lambda model, context: {name: np.full(array.shape, -np.inf) for name, array in model.items()},
    8: lambda model, context: {name: np.float64(1e300) * np.ones(array.shape) for name, array in model.items()},
    9: lambda model, context: {name: torch.from_numpy(array) + 1 for name, array in model.items()},
}
GOOD, NOT_FINITE, RAISED = (0, 2, 9), (1, 7, 8), (3, 4, 5, 6)

hostile_app = PrivateClientApp(train=lambda model, records, context: SENT[context.client](model, context))


hostile_flower_app = PrivateClientApp()


@hostile_flower_app.train()
def train(message: Message, context: Context) -> Message:
    """A handler as in Flower's quickstart, around the same loops."""
    assert set(message.content["config"]) == {"lr", "server-round"}
    client = context.node_config["partition-id"]
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    trained = SENT[client](model, context)
    arrays = ArrayRecord({name: _array(array) for name, array in trained.items()})
    metrics = MetricRecord({"train_loss": 0.123, "num-examples": 40 + client})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@hostile_flower_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"secret": 1.0})}), reply_to=message)


def _array(value):
    return Array(value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value))


remembering_app = PrivateClientApp()


@remembering_app.train()
def remember(message: Message, context: Context) -> Message:
    """Adds how many times it was called with this state."""
    seen = context.state.config_records.get("seen", {"times": 0})["times"] + 1
    context.state["seen"] = ConfigRecord({"times": seen})
    state = {name: array + seen for name, array in message.content["arrays"].to_torch_state_dict().items()}
    return Message(RecordDict({"arrays": ArrayRecord(state)}), reply_to=message)


TRAINED = []  # (round, client) of each call of the loop


def noting(model, records, context):
    TRAINED.append((context.round, context.client))
    return model


noting_app = PrivateClientApp(train=noting)


def endless(model, records, context):
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


endless_app = PrivateClientApp(train=endless)


nameless_app = ClientApp()


@nameless_app.query()
def nobody(message: Message, context: Context) -> Message:
    """It does not say which clients live here."""
    return Message(RecordDict({"node": ConfigRecord({"nodes": 1})}), reply_to=message)
