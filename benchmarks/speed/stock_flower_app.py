"""The client app for stock Flower: a client a node, trained by the plain loop. A module, because Flower imports it."""

from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.speed.workloads import Workload, records_of, train_one

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    config: dict[str, Any] = dict(message.content["config"])  # type: ignore[arg-type]
    workload, dataset, module = _prepared(str(config["workload"]))
    received = message.content["arrays"].to_torch_state_dict()  # type: ignore[union-attr]
    inputs, labels = records_of(dataset, int(context.node_config["partition-id"]))
    update = train_one(module, received, inputs, labels, workload.steps)
    trained = {name: received[name] + value for name, value in update.items()}
    content = RecordDict({"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


@lru_cache(maxsize=1)
def _prepared(text: str) -> tuple[Workload, Any, Any]:
    import json

    torch.set_num_threads(1)
    workload = Workload(**json.loads(text))
    dataset = workload.dataset()
    return workload, dataset, workload.module(dataset)
