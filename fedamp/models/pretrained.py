"""Pretrained models: weights in files, models of ``transformers`` with adapters of ``peft``, and frozen parameters.

Frozen weights are what a model starts from and does not train. They become buffers, which are never sent or noised.
"""

import importlib
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedamp.base.reading import read_typed, regular, regular_inside
from fedamp.errors import ModelError, one_line
from fedamp.models.model import OF_LIBRARY, Model
from fedamp.models.units import Units

_IN_FOLDERS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")  # of Hugging Face
_PICKLES = (".pt", ".pth", ".bin")
_FACTORS = "factors.safetensors"  # of adapters, in the folder of ``model.initial``: names as ``peft`` saves them
TrainedFactors = Literal["both", "frozen", "middle"]  # what is trained of an adapter B A


_NAME_CODE = {"attn_implementation", "experts_implementation", "megatron_config", "quantization_config"}  # of options


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern, such as ``lora_*`` or ``head``, is a dotted name, or some of its parts in a row."""
    parts = name.split(".")
    ranges = ((first, last) for first in range(len(parts)) for last in range(first + 1, len(parts) + 1))
    return any(fnmatchcase(".".join(parts[first:last]), pattern) for first, last in ranges)


def matching(names: Sequence[str], patterns: Sequence[str], key: str) -> frozenset[str]:
    """The names that some pattern matches; ModelError, which names the scenario's ``key``, where one matches none."""
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ModelError(f"{key}: {pattern!r} matches no parameter; expected: such as {names[-1]}")
    return frozenset(name for name in names if any(matches(name, pattern) for pattern in patterns))


def place_of(initial: str) -> Path:
    """Where the weights of ``model.initial`` are: on a node, which is told a name alone, in ``$FEDAMP_MODELS``."""
    return Path(os.environ.get("FEDAMP_MODELS", "")) / initial


def choose_trainable(module: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze every parameter that no pattern matches; ModelError where a pattern matches none."""
    chosen = matching([name for name, _ in module.named_parameters()], patterns, "model.trainable")
    for name, parameter in module.named_parameters():
        if name in chosen and not parameter.dtype.is_floating_point:
            raise ModelError(f"model.trainable: parameter {name} is {parameter.dtype}, which cannot be trained")
        parameter.requires_grad_(name in chosen)


def freeze(module: nn.Module) -> None:
    """Make all parameters without ``requires_grad`` buffers, so that only what is trained is a parameter.

    Its smaller networks would not have the frozen values: a module that makes some is trained under masks instead.
    """
    found = False
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                del each._parameters[name]
                each.register_buffer(name, parameter.detach())
                found = True
    if found and callable(getattr(module, "smaller", None)):
        module.smaller = None  # type: ignore[assignment]


def load_start(module: nn.Module, path: Path, names: Mapping[str, str | None]) -> None:
    """Fill a module with frozen parameters from a file or folder; every frozen parameter must be there. ModelError: the
    file cannot be read; names are missing or unexpected; a shape is another.

    Args:
        path: a safetensors file, a ``state_dict`` that ``torch.load`` reads, or a folder of Hugging Face.
        names: prefixes of names in the file, and what stands for them in the model; None leaves the tensors out.
    """
    given = read_tensors(path, names)
    state = module.state_dict(keep_vars=True)
    frozen = {name for name, value in state.items() if isinstance(value, nn.Parameter) and not value.requires_grad}
    tied = {name for name in frozen if any(state[name] is state[each] for each in given if each in state)}
    problems = {"lacks": frozen - given.keys() - tied, "has unexpected": given.keys() - state.keys()}
    if any(problems.values()):
        found = "; ".join(f"{problem} {_shown(wrong)}" for problem, wrong in problems.items() if wrong)
        raise ModelError(f"model.initial {path}: {found}; model.initial_names maps prefixes")
    for name, value in given.items():
        if state[name].shape != value.shape:
            must = f"must have shape {list(state[name].shape)}, got {list(value.shape)}"
            raise ModelError(f"model.initial {path}: {name} {must}")
    module.load_state_dict(given, strict=False)


def _shown(names: Iterable[str]) -> str:
    first, *rest = sorted(names)
    return ", ".join([first, *rest[:4]]) + (f" and {len(rest) - 4} more" if len(rest) > 4 else "")


def read_tensors(path: Path, names: Mapping[str, str | None] = MappingProxyType({})) -> dict[str, Tensor]:
    """All tensors of a file, or of a folder of Hugging Face, by their names in the model; see :func:`load_start`."""
    found = {}
    for name, value in _read(path).items():
        prefix = max((prefix for prefix in names if name.startswith(prefix)), key=len, default=None)
        to = "" if prefix is None else names[prefix]
        if to is not None:
            found[to + name.removeprefix(prefix or "")] = value
    return found


def _read(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        file = next((path / name for name in _IN_FOLDERS if (path / name).is_file()), None)
        if file is None:
            raise ModelError(f"model.initial {path}: no weights; expected: a folder with {', '.join(_IN_FOLDERS)}")
        path = file
    try:
        if path.suffix == ".json":
            files = sorted(set(json.loads(read_typed(path))["weight_map"].values()))
            return {name: value for file in files for name, value in load_file(regular(path.parent / file)).items()}
        if path.suffix not in _PICKLES:
            return load_file(regular(path))
        loaded = torch.load(regular(path), map_location="cpu", weights_only=True)
        return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    except Exception as error:  # a pickle may raise anything
        kind = "a state_dict" if path.suffix in _PICKLES else "safetensors"
        raise ModelError(f"model.initial {path}: cannot be read as {kind} ({one_line(error)})") from error


class Logits(nn.Module):
    """A network that answers with logits alone.

    Args:
        pad: the token that no other one attends to.
        head: takes the mean of the last layer over the other tokens, of length 1; None: the network has its own.
    """

    def __init__(self, network: nn.Module, pad: int | None = None, head: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.pad, self.head = network, pad, head

    def forward(self, inputs: Tensor) -> Tensor:
        real = None if self.pad is None else (inputs != self.pad).long()
        if self.head is not None:  # the library makes such a mask by branches on values, which no stack can train
            real = torch.ones_like(inputs) if real is None else real
            hidden = (1.0 - real[:, None, None]) * torch.finfo(torch.float32).min
            return self.head(mean_direction(self.network(inputs, hidden).last_hidden_state, real))  # type: ignore[no-any-return]
        found = self.network(inputs, **({} if real is None else {"attention_mask": real}))
        return found if isinstance(found, Tensor) else found.logits

    def units_to_split(self) -> Sequence[Units]:
        # Heads that share keys and values are one node; layers with different numbers of them have none.
        config: Any = self.network.config
        heads: Any = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
        heads = heads if isinstance(heads, int) else 0
        return ranks(self) or [*_nodes(self, _NEURONS, None), *(_nodes(self, _HEADS, heads) if heads else ())]


def mean_direction(last: Tensor, real: Tensor) -> Tensor:
    """The mean of vectors [batch, length, numbers] over real tokens, of length 1; ``real``: 0 or 1, [batch, length]."""
    return nn.functional.normalize((last * real[..., None]).sum(1), dim=-1)


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


def _starts_at_zero(model: Logits) -> bool:
    """Whether a neuron without input is silent."""
    config: Any = model.network.config
    known = importlib.import_module("transformers.activations").ACT2FN
    names = [getattr(config, name, None) for name in ("hidden_act", "activation_function", "activation")]
    named = next((name for name in names if isinstance(name, str)), "sigmoid")
    return bool((known[named](torch.zeros(1)) == 0).all())


def ranks(module: nn.Module) -> list[Units]:
    """The ranks of LoRA adapters as nodes: rank j owns row j of A, or of the middle matrix, and column j of B."""
    found, trained = [], {name for name, value in module.named_parameters() if value.requires_grad}
    for path, submodule in module.named_modules():
        for adapter, first in getattr(submodule, "lora_A", {}).items():
            name = f"{path}.lora_A.{adapter}"
            owned = {f"{name}.weight": 0, f"{name}.middle": 0, f"{path}.lora_B.{adapter}.weight": 1}
            owned = {each: dimension for each, dimension in owned.items() if each in trained}
            found.append(Units(layer=path, count=len(first.weight), owned=owned, output=name, along=-1))
    return found


class Middle(nn.Module):
    """In the place of an adapter's A: a small trained matrix, which starts at zero, behind a frozen factor.

    Args:
        first: that factor, [rank, inputs].
    """

    first: Tensor

    def __init__(self, first: Tensor) -> None:
        super().__init__()
        self.register_buffer("first", first)
        self.middle = nn.Parameter(torch.zeros(len(first), len(first)))
        self.register_state_dict_post_hook(_with_product)  # type: ignore[no-untyped-call]

    @property
    def weight(self) -> Tensor:
        """A, which ``peft`` merges."""
        return self.middle @ self.first

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs @ self.first.T) @ self.middle.T


def _with_product(module: Middle, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    state[f"{prefix}weight"] = module.weight.detach()  # which ``peft`` saves


def _freeze_factors(network: nn.Module, trained: TrainedFactors, place: Path) -> None:
    """Freeze A of all adapters (FFA-LoRA, arXiv 2403.12313), or A and B around a trained matrix (Fed-SB, 2502.15436).

    Noise on both factors is multiplied with noise; here it enters the weights linearly, and on fewer numbers.
    """
    if trained not in get_args(TrainedFactors):
        raise ValueError(f"factors: {trained!r}; expected: {', '.join(get_args(TrainedFactors))}")
    if trained == "both":
        return
    given = load_file(regular(place)) if place.is_file() else {}
    if trained == "middle" and not given:
        raise ValueError(f"factors: {place} is not there; fedamp.models.pretrained.write_factors makes it")
    for path, layer in network.named_modules():
        if getattr(layer, "lora_embedding_A", None):
            raise ValueError(f"factors: {path} is no linear layer; expected: lora.target_modules that are")
        for adapter, first in [*getattr(layer, "lora_A", {}).items()]:
            last, rank = layer.lora_B[adapter], len(first.weight)
            before, behind = (given.get(f"{path}.lora_{side}.weight", torch.ones(0, 0)) for side in "AB")
            if first.weight.dim() != 2 or (given and min(len(before), behind.shape[1]) < rank):
                raise ValueError(f"factors: {path} is no linear layer, or {place} has none of rank {rank} for it")
            if given:
                first.weight.data.copy_(before[:rank])
            first.requires_grad_(False)
            if trained == "middle":
                last.weight.data.copy_(behind[:, :rank])
                last.requires_grad_(False)
                layer.lora_A[adapter] = Middle(first.weight.detach())


def write_factors(config: Model, num_classes: int, other: Path) -> Path:
    """Write the factors of adapters to the folder ``config.initial``, from public weights alone. Returns the file.

    A and B hold the first singular vectors, as many as ``lora.r``, of the difference to the weights in ``other``, the
    same network before or after training on public records. After one step it is the first gradient (Fed-SB, arXiv
    2502.15436). A client's records must not have been among them: nothing here is charged.

    Args:
        config: a model of ``transformers`` with ``lora`` among its options.
        other: a folder of Hugging Face.
    """
    options = {name: value for name, value in config.options.items() if name != "factors"}
    changes = ({"options": options}, {"options": options, "initial": str(other)})
    models = [
        from_transformers(config.model_copy(update=each), num_classes).get_submodule("network") for each in changes
    ]
    layers: Any = [
        {name: layer for name, layer in each.named_modules() if getattr(layer, "lora_A", None)} for each in models
    ]
    found = {}
    for name, layer in layers[0].items():
        change = layer.get_base_layer().weight.detach() - layers[1][name].get_base_layer().weight.detach()
        left, _, right = torch.linalg.svd((change.T if layer.fan_in_fan_out else change).double(), full_matrices=False)
        rank = len(next(iter(layer.lora_A.values())).weight)
        found[f"{name}.lora_A.weight"] = right[:rank].float().contiguous()
        found[f"{name}.lora_B.weight"] = left[:, :rank].float().contiguous()
    place = place_of(config.initial or "") / _FACTORS
    save_file(found, place)
    return place


def from_transformers(config: Model, num_classes: int) -> nn.Module:
    """The network of a class of ``transformers``: from a folder (``model.initial``), or with random weights.
    ModelError: no such class, or it cannot be built; a library is not installed.

    Options are those of the class's configuration, ``lora``: those of ``peft.LoraConfig``, ``factors``: what is trained
    of its adapters, ``pad``: a token to which no other one attends, and ``pool: mean``: a linear layer ``head``, which
    starts at zero, on the mean of an encoder's tokens. Dropout is 0, batch norms become group norms, and attention is
    computed so that clients can train together.
    """
    options, head = dict(config.options), None
    lora, pad, pool = (options.pop(name, None) for name in ("lora", "pad", "pool"))
    factors = options.pop("factors", "both")
    if code := _NAME_CODE & {*options, *(lora if isinstance(lora, dict) else ())}:
        raise ModelError(f"model.options: {min(code)} may name code, which is not run; expected: it is left out")
    try:
        with warnings.catch_warnings(), _silent():
            warnings.simplefilter("ignore")  # of one library about another
            network = _network(config, num_classes, options)
            _replace_batch_norm(network)
            if pool is not None:
                if pool != "mean" or network.base_model is not network:
                    raise ValueError(f"pool: {pool!r}; expected: mean, of a class without a head, such as BertModel")
                network.pooler = None  # of the first token
                head = nn.Linear(network.config.hidden_size, num_classes)
                nn.init.zeros_(head.weight)
                nn.init.zeros_(head.bias)
            if lora is None and factors != "both":
                raise ValueError(f"factors: {factors!r} of nothing; expected: lora")
            if lora is not None:
                peft = importlib.import_module("peft")
                network = peft.get_peft_model(network, peft.LoraConfig(**lora))
                _freeze_factors(network, factors, place_of(config.initial or "") / _FACTORS)
    except ImportError as error:
        raise ModelError(f"model.name {config.name}: {one_line(error)}") from None
    except Exception as error:  # a library may raise anything
        raise ModelError(
            f"model {config.name} cannot be built with options={config.options} ({one_line(error)})"
        ) from error
    return Logits(network.train(), pad, head)


def _network(config: Model, num_classes: int, options: Mapping[str, Any]) -> Any:
    kind = getattr(importlib.import_module("transformers"), config.name.removeprefix(OF_LIBRARY))
    known, sizes = kind.config_class(), {"vocab_size": config.vocabulary, "num_labels": num_classes}
    fitting = {name: size for name, size in sizes.items() if size is not None and hasattr(known, name)}
    silent = {name: 0.0 for name, value in vars(known).items() if isinstance(value, float) and "drop" in name}
    options = {"attn_implementation": "eager", "use_cache": False, **silent, **fitting, **options}
    if config.initial is None:
        made: nn.Module = kind(kind.config_class(**options))
    else:
        place = regular_inside(place_of(config.initial))
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


def _replace_batch_norm(module: nn.Module) -> None:
    for each in module.modules():
        for name, child in each.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                each.add_module(name, nn.GroupNorm(math.gcd(32, child.num_features), child.num_features))
