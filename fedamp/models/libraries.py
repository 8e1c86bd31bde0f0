"""Models of Hugging Face's ``transformers``, with adapters of ``peft``, such as ``transformers:GPT2LMHeadModel``."""

import importlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedamp.errors import ModelError, one_line
from fedamp.models import frozen
from fedamp.models.section import OF_LIBRARY, Model
from fedamp.models.units import Units


class Logits(nn.Module):
    """A network that answers with logits alone. ``pad``: the token that no other one attends to."""

    def __init__(self, network: nn.Module, pad: int | None = None) -> None:
        super().__init__()
        self.network, self.pad = network, pad

    def forward(self, inputs: Tensor) -> Tensor:
        masked = {} if self.pad is None else {"attention_mask": (inputs != self.pad).long()}
        found = self.network(inputs, **masked)
        return found if isinstance(found, Tensor) else found.logits

    def units_to_split(self) -> Sequence[Units]:
        return ranks(self) or [*_nodes(self, _NEURONS, None), *_nodes(self, _HEADS, _heads(self.network))]


# Of common families: layers whose outputs are nodes side by side, the one that a mask silences, and the layer behind.
_NEURONS = (
    (("mlp.c_fc",), "mlp.c_fc", "mlp.c_proj"),
    (("mlp.fc1",), "mlp.fc1", "mlp.fc2"),
    (("ffn.lin1",), "ffn.lin1", "ffn.lin2"),
    (("intermediate.dense",), "intermediate.dense", "output.dense"),
    (("mlp.gate_proj", "mlp.up_proj"), "mlp.up_proj", "mlp.down_proj"),
)
_HEADS = (
    *(
        ((f"{where}.q_proj", f"{where}.k_proj", f"{where}.v_proj"), f"{where}.v_proj", f"{where}.o_proj")
        for where in ("self_attn", "attention")
    ),
    (("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.v_lin", "attention.out_lin"),
    (
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.self.value",
        "attention.output.dense",
    ),
)
_Layers = tuple[tuple[str, ...], str, str]


def _nodes(model: Logits, families: Sequence[_Layers], count: int | None) -> list[Units]:
    """Neurons (``count`` None), or attention heads, of all layers that are trained."""
    found, modules = [], dict(model.named_modules())
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    for path in modules:
        for before, silenced, behind in families:
            owned = {}
            for name in (*before, behind):
                layer = modules.get(f"{path}.{name}")
                rows = 0 if isinstance(layer, nn.Linear) else 1  # GPT-2 has its weights the other way round
                owned[f"{path}.{name}.weight"] = rows if name != behind else 1 - rows
                if name != behind and getattr(layer, "bias", None) is not None:
                    owned[f"{path}.{name}.bias"] = 0
            if trained.issuperset(owned) and (count or _starts_at_zero(model)):
                first = f"{path}.{before[0]}.weight"
                size = count or model.get_parameter(first).shape[owned[first]]
                found.append(Units(f"{path}.{before[0]}", size, owned, f"{path}.{silenced}", along=-1))
    return found


def _heads(network: nn.Module) -> int:
    """Heads that share keys and values are one node."""
    config: Any = network.config
    heads: Any = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    return int(heads)


def _starts_at_zero(model: Logits) -> bool:
    """Whether a neuron without input is silent."""
    config: Any = model.network.config
    known = importlib.import_module("transformers.activations").ACT2FN
    names = [getattr(config, name, None) for name in ("hidden_act", "activation_function", "activation")]
    named = next((name for name in names if isinstance(name, str)), "sigmoid")
    return bool((known[named](torch.zeros(1)) == 0).all())


def ranks(module: nn.Module) -> list[Units]:
    """The ranks of LoRA adapters as nodes: rank j owns row j of A and column j of B."""
    found = []
    for path, submodule in module.named_modules():
        for adapter, first in getattr(submodule, "lora_A", {}).items():
            name = f"{path}.lora_A.{adapter}"
            owned = {f"{name}.weight": 0, f"{path}.lora_B.{adapter}.weight": 1}
            found.append(Units(layer=path, count=first.out_features, owned=owned, output=name, along=-1))
    return found


def from_transformers(config: Model, num_classes: int) -> nn.Module:
    """The network of a class of ``transformers``: from a folder (``model.initial``), or with random weights.

    Options are those of the class's configuration, ``lora``: those of ``peft.LoraConfig``, and ``pad``: a token to
    which no other one attends. Dropout is 0, batch norms become group norms, and attention is computed so that clients
    can train together.

    Raises:
        ModelError: no such class, or it cannot be built; a library is not installed.
    """
    options = dict(config.options)
    lora, pad = options.pop("lora", None), options.pop("pad", None)
    try:
        with warnings.catch_warnings(), _silent():
            warnings.simplefilter("ignore")  # of one library about another
            network = _network(config, num_classes, options)
            _replace_batch_norm(network)
            if lora is not None:
                peft = importlib.import_module("peft")
                network = peft.get_peft_model(network, peft.LoraConfig(**lora))
    except ImportError as error:
        raise ModelError(f"model.name {config.name}: {one_line(error)}") from None
    except Exception as error:  # a library may raise anything
        raise ModelError(
            f"model {config.name} cannot be built with options={config.options} ({one_line(error)})"
        ) from error
    return Logits(network.train(), pad)


def _network(config: Model, num_classes: int, options: Mapping[str, Any]) -> nn.Module:
    kind = getattr(importlib.import_module("transformers"), config.name.removeprefix(OF_LIBRARY))
    known, sizes = kind.config_class(), {"vocab_size": config.vocabulary, "num_labels": num_classes}
    fitting = {name: size for name, size in sizes.items() if size is not None and hasattr(known, name)}
    silent = {name: 0.0 for name, value in vars(known).items() if _is_dropout(name, value)}
    options = {"attn_implementation": "eager", "use_cache": False, **silent, **fitting, **options}
    if config.initial is None:
        made: nn.Module = kind(kind.config_class(**options))
    else:
        place = frozen.place_of(config.initial)
        settings = kind.config_class.from_pretrained(place, **options)
        made = kind.from_pretrained(place, config=settings, local_files_only=True)
    return made


@contextmanager
def _silent() -> Iterator[None]:
    """Without advice of ``transformers`` about tokens of a vocabulary that is not in use, and about faster kernels."""
    logging = importlib.import_module("transformers.utils.logging")
    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _is_dropout(name: str, value: Any) -> bool:
    return isinstance(value, float) and "drop" in name


def _replace_batch_norm(module: nn.Module) -> None:
    for each in module.modules():
        for name, child in each.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                each.add_module(name, nn.GroupNorm(math.gcd(32, child.num_features), child.num_features))
