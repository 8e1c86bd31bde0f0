"""The clients: train and evaluate the model they are sent on records of their own."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received model on this client's records."""
    net, device = received(msg)
    loader, _ = loaders(context)
    loss = train_fn(net, loader, context.run_config["local-epochs"], msg.content["config"]["lr"], device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the received model on this client's validation records."""
    net, device = received(msg)
    _, loader = loaders(context)
    loss, accuracy = test_fn(net, loader, device)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)


def received(msg: Message) -> tuple[Net, torch.device]:
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return net, torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def loaders(context: Context) -> tuple:
    node = context.node_config
    return load_data(node["partition-id"], node["num-partitions"], context.run_config["batch-size"])
