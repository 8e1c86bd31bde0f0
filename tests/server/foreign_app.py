"""Client apps that know nothing of fedamp: Flower's quickstart, as ``flwr new`` writes it, but for the data."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedamp.engines.wire import AnswerStatus, RoundAnswer, RoundOrder

app = ClientApp()
hosting = ClientApp()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


@app.train()
@hosting.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy(model(torch.randn(8, 64)), torch.randint(10, (8,)))
    loss.backward()
    optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"train_loss": loss.item(), "num-examples": 8}),
        }
    )
    return Message(content=content, reply_to=msg)


@hosting.query()
def query(msg: Message, context: Context) -> Message:
    """Says that all clients live here, and trains them as it likes."""
    answer = RoundAnswer(status=AnswerStatus.ANY_UNIT)
    return Message(answer.content(RoundOrder.of(msg.content)), reply_to=msg)
