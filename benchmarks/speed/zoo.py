"""A zoo of models as they are: how clients train them, and how fast, over loops written by hand. Makes
docs/research/zoo.md.

python -m benchmarks.speed.zoo [NAME ...]
"""

import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import fedamp
from benchmarks.record import ROOT, made, put_in, store
from fedamp.client.worker import TrainingNode
from fedamp.engines.wire import RoundOrder, rows
from fedamp.errors import FedampError, one_line
from fedamp.federation.losses import form_of
from fedamp.server.preflight import how_clients_train
from fedamp.server.setup import RunInputs, prepare

RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "research" / "zoo.md"
CLIENTS, RECORDS, STEPS, RATE, CLIP, CLASSES = 32, 8, 2, 0.1, 0.5, 10
LORA = {"r": 4, "lora_alpha": 8}


class Recurrent(nn.Module):
    """torch's own recurrent layer, and a linear one."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, kind: str = "GRU") -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(input_shape[1], 64, batch_first=True)
        self.output = nn.Linear(64, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.layer(inputs)[0][:, -1])  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """torch's own transformer encoder."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(input_shape[1], 4, 128, 0.0, batch_first=True)
        self.body, self.output = nn.TransformerEncoder(layer, 2), nn.Linear(input_shape[1], num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.body(inputs).mean(1))  # type: ignore[no-any-return]


class Bag(nn.Module):
    """The mean of the tokens' rows of a table of 20,000, and a linear layer."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(20_000, 32), nn.Linear(32, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(self.table(inputs).mean(1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Animal:
    """A model of the zoo, as a scenario names it."""

    model: dict[str, Any]
    shape: tuple[int, ...]
    loss: str = "cross-entropy"
    own: dict[str, Any] = field(default_factory=dict)  # options of its class

    @property
    def section(self) -> dict[str, Any]:
        return self.model | ({"options": self.own} if self.own else {})


def _text(kind: str, loss: str = "token-cross-entropy", lora: Any = None, **own: Any) -> Animal:
    own |= {"lora": LORA | lora} if lora else {}
    return Animal({"name": f"transformers:{kind}", "vocabulary": 256}, (32,), loss, own)


def _image(kind: str, size: int = 32, lora: Any = None, **own: Any) -> Animal:
    own |= {"lora": LORA | lora} if lora else {}
    return Animal({"name": f"transformers:{kind}"}, (3, size, size), own=own)


_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_HERE = "benchmarks.speed.zoo:"
ZOO = {
    "logistic regression": Animal({"name": "logistic"}, (784,)),
    "two-layer perceptron": Animal({"name": "mlp", "hidden": [128]}, (784,)),
    "convolutional network": Animal({"name": "cnn"}, (1, 28, 28)),
    "ResNet-20": Animal({"name": "resnet20"}, (3, 32, 32)),
    "LSTM of characters": Animal({"name": "lstm", "vocabulary": 96}, (32,), "token-cross-entropy"),
    "nn.GRU": Animal({"name": f"{_HERE}Recurrent"}, (28, 28)),
    "nn.LSTM": Animal({"name": f"{_HERE}Recurrent"}, (28, 28), own={"kind": "LSTM"}),
    "nn.TransformerEncoder": Animal({"name": f"{_HERE}Encoder"}, (16, 64)),
    "table of 20,000 rows": Animal({"name": f"{_HERE}Bag", "vocabulary": 20_000}, (20,)),
    "GPT-2": _text("GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "GPT-2, LoRA": _text(
        "GPT2LMHeadModel",
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=64,
        lora={"target_modules": ["c_attn"], "fan_in_fan_out": True},
    ),
    "Llama": _text("LlamaForCausalLM", **_SMALL),
    "Llama, LoRA": _text("LlamaForCausalLM", **_SMALL, lora={"target_modules": ["q_proj", "v_proj"]}),
    "Mixtral": _text("MixtralForCausalLM", **_SMALL, num_key_value_heads=2, num_local_experts=4),
    "Mamba": _text("MambaForCausalLM", hidden_size=64, num_hidden_layers=2, state_size=8),
    "BERT": _text("BertForSequenceClassification", "cross-entropy", **_SMALL),
    "DistilBERT": _text(
        "DistilBertForSequenceClassification", "cross-entropy", dim=64, hidden_dim=128, n_layers=2, n_heads=4
    ),
    "ViT": _image("ViTForImageClassification", **_SMALL, image_size=32, patch_size=8),
    "ViT, LoRA": _image(
        "ViTForImageClassification",
        **_SMALL,
        image_size=32,
        patch_size=8,
        lora={"target_modules": ["q_proj", "v_proj"]},
    ),
    "Swin": _image(
        "SwinForImageClassification",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "ConvNeXt": _image("ConvNextForImageClassification", hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 2, 1]),
    "ResNet-18": _image(
        "ResNetForImageClassification", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    ),
    "MobileNetV2": _image("MobileNetV2ForImageClassification", depth_multiplier=0.35, image_size=32),
}


def records_of(animal: Animal, count: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    vocabulary = animal.model.get("vocabulary")
    shape = (count, *animal.shape)
    inputs: Any = (
        generator.integers(0, vocabulary, shape) if vocabulary else generator.normal(size=shape).astype(np.float32)
    )
    if animal.loss == "token-cross-entropy":
        labels = generator.integers(0, vocabulary, shape)
        labels.flat[0] = vocabulary - 1  # so many outputs
        return inputs, labels
    return inputs, np.arange(count) % CLASSES


def prepared_of(
    animal: Animal, data: tuple[Any, Any, Any], device: str = "cpu", precision: str = "float32", steps: int = STEPS
) -> tuple[RunInputs, TrainingNode]:
    """A federation of these records (inputs, labels, clients), and the node that trains all of them."""
    scenario = fedamp.load(
        name="zoo",
        data=data,
        test=tuple(each[:10] for each in data[:2]),
        model=animal.section,
        rounds=4,
        check_in={"scheme": "all"},
        client={"steps": steps, "learning_rate": RATE, "loss": animal.loss, "precision": precision},
        privacy={"clip": CLIP, "noise_multiplier": 1.0, "delta": 1e-4},
        engine={"kind": "serial", "device": device},
    )
    prepared, records = prepare(scenario), scenario.data.load(0, Path(), form_of(scenario.client, scenario.model))
    return prepared, TrainingNode(prepared.task, records, scenario.engine.device)


def order_of(prepared: RunInputs, clients: Iterable[int]) -> RoundOrder:
    """A round of these clients, from the initial model; a client has the same seed in every one."""
    seeds = rows(clients, [client.to_bytes(4) * 8 for client in clients])
    return RoundOrder("", 1, (CLIP,), seeds, prepared.state.parameters)


def play(
    animal: Animal,
    clients: int = CLIENTS,
    records: int = RECORDS,
    device: str = "cpu",
    precision: str = "float32",
    steps: int = STEPS,
) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any], RunInputs]:
    """A round in fedamp, in a stack written by hand, in a loop written by hand; and the federation."""
    x, y = records_of(animal, clients * records)
    prepared, node = prepared_of(animal, (x, y, np.repeat(np.arange(clients), records)), device, precision, steps)
    order, module = order_of(prepared, range(clients)), prepared.module.to(device)
    start = {name: torch.from_numpy(value).to(device) for name, value in prepared.state.parameters.items()}
    inputs, labels = (torch.from_numpy(each).to(device).unflatten(0, (clients, records)) for each in (x, y))

    def loss(values: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        outputs = functional_call(module, values, (inputs,))
        return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten())

    def clipped(updates: dict[str, Tensor]) -> Tensor:
        norms = torch.stack([each.flatten(1).square().sum(1) for each in updates.values()]).sum(0).sqrt()
        scales = (CLIP / norms).clamp(max=1.0)
        return {name: torch.tensordot(scales, each, 1) for name, each in updates.items()}  # type: ignore[return-value]

    def stacked() -> None:
        values = {name: value.expand(clients, *value.shape) for name, value in start.items()}
        for _ in range(steps):
            found = vmap(grad(loss))(values, inputs, labels)
            values = {name: value - RATE * found[name] for name, value in values.items()}
        clipped({name: value - start[name] for name, value in values.items()})

    def one_by_one() -> None:
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in range(clients):
            values = {name: value.clone().requires_grad_() for name, value in start.items()}
            for _ in range(steps):
                scalar = loss(values, inputs[client], labels[client])
                found = torch.autograd.grad(scalar, list(values.values()), materialize_grads=True)
                values = {
                    name: (value - RATE * each).detach().requires_grad_()
                    for (name, value), each in zip(values.items(), found, strict=True)
                }
            updates = {name: (value.detach() - start[name])[None] for name, value in values.items()}
            for name, each in clipped(updates).items():  # type: ignore[attr-defined]
                total[name] += each

    return lambda: node.train(order), stacked, one_by_one, prepared


def seconds(play: Callable[[], Any], times: int) -> float:
    """The least of some tries after the first."""
    found = []
    for _ in range(times + 1):
        began = time.perf_counter()
        play()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def measure(animal: Animal) -> dict[str, Any]:
    ours, stacked, one_by_one, prepared = play(animal)
    parameters = sum(value.size for value in prepared.state.parameters.values())
    found: dict[str, Any] = {"how": how_clients_train(prepared), "parameters": parameters}
    found |= {"clients a second": round(CLIENTS / seconds(ours, 2), 1)}
    for name, theirs in (("by hand, stacked", stacked), ("by hand, one by one", one_by_one)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[f"{name}, clients a second"] = round(CLIENTS / seconds(theirs, 2), 1)
        except Exception as error:  # torch raises anything
            found[f"{name}, clients a second"] = None
            found[f"{name}, why not"] = one_line(error)[:100]
    return found


def page(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        "| model | parameters | together | clients a second | times a stack by hand | times one by one by hand |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in found.items():
        ours = each.get("clients a second", 0.0)
        theirs = [each.get(f"by hand, {way}, clients a second") for way in ("stacked", "one by one")]
        ratios = [f"{ours / other:.1f}" if other else "-" for other in theirs]
        how = each.get("how", each.get("refused", "")).split(",")[0]
        how = re.sub(r"(?:up to (\d+) )?clients train (?:together|(one by one))", lambda m: m[1] or "1", how)
        rows.append(f"| {name} | {each.get('parameters', 0):,} | {how} | {ours:g} | {' | '.join(ratios)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    begun = made()
    found = json.loads(RESULTS.read_text())["models"] if RESULTS.exists() and len(sys.argv) > 1 else {}
    for name in sys.argv[1:] or ZOO:
        began = time.perf_counter()
        try:
            found[name] = measure(ZOO[name])
        except FedampError as error:
            found[name] = {"refused": one_line(error)}
        print(name, f"({time.perf_counter() - began:.0f} s)", json.dumps(found[name]), flush=True)
    models = {name: found[name] for name in ZOO if name in found}
    store(RESULTS, begun | {"models": models})
    put_in(PAGE, "zoo", page(models))


if __name__ == "__main__":
    main()
