"""A client app for the tests of the engines: what it does follows from the message alone."""

import os
import time

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedamp.engines import flower

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Adds the sum of the listed clients' seeds to every coordinate, the way a client app sums its clients' updates."""
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
    import torch

    arrays = flower.from_record(message.content["arrays"]) if "arrays" in message.content else {}
    told = {
        "pid": os.getpid(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "threads": torch.get_num_threads(),
        "writeable": any(array.flags.writeable for array in arrays.values()),
        "device": context.node_config["device"],
        "partition": context.node_config["partition-id"],
        "partitions": context.node_config["num-partitions"],
    }
    return Message(RecordDict({"node": ConfigRecord(told)}), reply_to=message)
