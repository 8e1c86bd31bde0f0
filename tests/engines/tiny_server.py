"""A server app for the test of stock Flower: one round, whose sum goes to the file that the configuration names."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fedamp.engines import flower

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes: list[int] = []
    while len(nodes) < context.run_config["nodes"]:  # round 1 may come before the nodes
        nodes = sorted(grid.get_node_ids())
        time.sleep(0.1)
    record = flower.to_record({"w": np.arange(5, dtype=np.float32)})
    config = ConfigRecord({"seeds": [1, 2]})
    if context.run_config["stay"]:
        print("the nodes are there", flush=True)
        time.sleep(500)
    sent = [Message(RecordDict({"arrays": record, "config": config}), node, "train") for node in nodes]
    bad = Message(RecordDict({"config": config}), nodes[0], "train.fail")
    *replies, failed = sorted(grid.send_and_receive([*sent, bad], timeout=200), key=lambda reply: reply.has_error())
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
