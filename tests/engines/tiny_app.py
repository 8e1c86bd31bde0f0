"""A client app whose answers follow from the messages alone, and a server app of one round.

Orders of a run are answered as fedamp's app does, so that both can use the same workers.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedamp.client.app import app as ours
from fedamp.engines import flower

app, server = ClientApp(), ServerApp()


def is_tiny(message: Message) -> bool:
    return "seeds" in message.content.config_records.get("config", {})


@app.train()
def train(message: Message, context: Context) -> Message:
    """Adds the sum of the listed clients' seeds to every coordinate, the way a client app sums its clients' updates."""
    if not is_tiny(message):
        return ours(message=message, context=context)
    seeds = message.content["config"]["seeds"]
    arrays = {
        name: array + np.float64(sum(seeds)) for name, array in flower.from_record(message.content["arrays"]).items()
    }
    content = RecordDict({"arrays": flower.to_record(arrays), "metrics": MetricRecord({"count": len(seeds)})})
    return Message(content, reply_to=message)


@app.train("fail")
def fail(message: Message, context: Context) -> Message:
    raise ArithmeticError("clients 3 and 4 do not add up")


@app.train("sleep")
def sleep(message: Message, context: Context) -> Message:
    time.sleep(message.content["config"]["seconds"])
    return train(message, context)


@app.train("die_once")
def die_once(message: Message, context: Context) -> Message:
    """Kills its own process the first time, as the out-of-memory killer does."""
    mark = message.content["config"]["mark"]
    if not os.path.exists(mark):
        with open(mark, "w"):
            os.kill(os.getpid(), 9)
    return train(message, context)


@app.train("die")
def die(message: Message, context: Context) -> Message:
    os.kill(os.getpid(), 9)
    raise AssertionError("not reached")


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who and where this node is."""
    if not is_tiny(message):
        return ours(message=message, context=context)
    import torch

    from fedamp.base import devices

    fraction, _, index = os.environ.get("TOLD_FRACTION", "1 0").partition(" ")
    assert index == "0", "the only GPU that the worker is shown"
    arrays = flower.from_record(message.content["arrays"]) if "arrays" in message.content else {}
    told = {
        "pid": os.getpid(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "fraction": float(fraction),
        "memory": devices.total_memory(context.node_config["device"]) or 0,
        "threads": torch.get_num_threads(),
        "writeable": any(array.flags.writeable for array in arrays.values()),
        "device": context.node_config["device"],
        "partition": context.node_config["partition-id"],
        "partitions": context.node_config["num-partitions"],
    }
    return Message(RecordDict({"node": ConfigRecord(told)}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """The sum of the round goes to the file that the configuration names."""
    nodes: list[int] = []
    while len(nodes) < context.run_config["nodes"]:  # round 1 may come before the nodes
        nodes = sorted(grid.get_node_ids())
        time.sleep(0.1)
    record = flower.to_record({"w": np.arange(5, dtype=np.float32)})
    config = ConfigRecord({"seeds": [1, 2]})
    sent = [Message(RecordDict({"arrays": record, "config": config}), node, "train") for node in nodes]
    bad = Message(RecordDict({"config": config}), nodes[0], "train.fail")
    *replies, failed = sorted(grid.send_and_receive([*sent, bad], timeout=3000), key=lambda reply: reply.has_error())
    total = sum(reply.content["arrays"]["w"].numpy() for reply in replies)
    result = {
        "total": total.tolist(),
        "replies": len(replies),
        "code": failed.error.code,
        "simulation": flower.is_simulated(grid),
    }
    Path(context.run_config["out"]).write_text(json.dumps(result))
    if context.run_config["fail"]:
        raise ValueError("the server app\ngave up")
