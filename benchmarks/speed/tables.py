"""Embedding tables: a client's time in fedamp over that of a hand-written loop on the rows that it touches.

python -m benchmarks.speed.tables
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedamp
from benchmarks.speed.simulation import machine
from fedamp.client.worker import TrainingNode
from fedamp.engines.wire import RoundOrder, rows
from fedamp.federation.losses import form_of
from fedamp.server.setup import prepare

RESULTS = Path(__file__).with_suffix(".json")
TOKENS, NUMBERS, CLIENTS, RECORDS, LENGTH, STEPS, RATE, CLIP = 50_000, 64, 200, 8, 20, 3, 0.5, 0.5
GENERATOR = np.random.default_rng(0)
X, Y = (
    GENERATOR.integers(0, TOKENS, (CLIENTS * RECORDS + 10, LENGTH)),
    GENERATOR.integers(0, 10, CLIENTS * RECORDS + 10),
)


class Bag(nn.Module):
    """The mean of the tokens' rows, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(TOKENS, NUMBERS), nn.Linear(NUMBERS, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.table(inputs).mean(1))  # type: ignore[no-any-return]


def in_fedamp(weight_decay: float) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A round of all clients on one core's node, and the start. With a weight decay whole tables are trained."""
    scenario = fedamp.load(
        name="tables",
        data=(X[:-10], Y[:-10], np.repeat(np.arange(CLIENTS), RECORDS)),
        test=(X[-10:], Y[-10:]),
        model=Bag,
        rounds=4,
        check_in={"scheme": "balanced", "k": 2},
        client={"steps": STEPS, "learning_rate": RATE, "weight_decay": weight_decay},
        privacy={"clip": CLIP, "noise_multiplier": 1.0, "delta": 1e-4},
        **{"model.vocabulary": TOKENS},
    )
    prepared = prepare(scenario)
    node = TrainingNode(prepared.task, scenario.data.load(0, Path(), form_of(scenario.client, scenario.model)))
    seeds = [bytes([client % 256]) * 32 for client in range(CLIENTS)]
    order = RoundOrder("", 1, (CLIP,), rows(range(CLIENTS), seeds), prepared.state.parameters)
    return lambda: node.train(order), dict(prepared.state.parameters)


def by_hand(start: dict[str, Any]) -> dict[str, Tensor]:
    """The same, client by client, in plain torch."""
    table, weight, bias = (torch.from_numpy(start[name]) for name in ("table.weight", "head.weight", "head.bias"))
    sums = [torch.zeros_like(each, dtype=torch.float64) for each in (table, weight, bias)]
    for client in range(CLIENTS):
        own = slice(client * RECORDS, (client + 1) * RECORDS)
        rows, places = torch.unique(torch.from_numpy(X[own]), return_inverse=True)
        first = [table[rows], weight, bias]
        values = [each.clone().requires_grad_() for each in first]
        for _ in range(STEPS):
            outputs = values[0][places].mean(1) @ values[1].T + values[2]
            gradients = torch.autograd.grad(functional.cross_entropy(outputs, torch.from_numpy(Y[own])), values)
            with torch.no_grad():
                torch._foreach_add_(values, gradients, alpha=-RATE)
        updates = [(value.detach() - each).double() for value, each in zip(values, first, strict=True)]
        factor = min(1.0, CLIP / float(torch.sqrt(sum(each.square().sum() for each in updates))))  # type: ignore[arg-type]
        sums[0].index_add_(0, rows, updates[0] * factor)
        for total, update in zip(sums[1:], updates[1:], strict=True):
            total += update * factor
    return dict(zip(("table.weight", "head.weight", "head.bias"), sums, strict=True))


def seconds(play: Callable[[], Any], times: int) -> float:
    """The least of some tries after the first."""
    found = []
    for _ in range(times + 1):
        began = time.perf_counter()
        play()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def main() -> None:
    rows, start = in_fedamp(0.0)
    whole, _ = in_fedamp(1e-12)
    sums, _ = rows()
    hand = by_hand(start)
    assert all(np.allclose(sums[name], hand[name].numpy(), atol=1e-6) for name in sums)
    taken = {"rows": seconds(rows, 5), "whole tables": seconds(whole, 1), "by hand": seconds(lambda: by_hand(start), 5)}
    result = {
        "machine": machine(),
        "milliseconds a client": {name: round(1000 * each / CLIENTS, 3) for name, each in taken.items()},
        "over by hand": {name: round(each / taken["by hand"], 2) for name, each in taken.items()},
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
