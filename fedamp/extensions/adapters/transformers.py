"""Build classes of ``transformers``, with adapters of ``peft``, as models whose clients can train together.

:func:`fedamp.models.networks.build` calls :func:`from_transformers` for a model of that name. Users call :func:`ranks`,
from a custom module with adapters of its own, and :func:`write_factors`, before a run. Libraries are imported only when
a class of them is asked for. docs/models.md explains the options ("Transformers and adapters").
"""

import importlib
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedamp.base.reading import regular, regular_inside
from fedamp.errors import ModelError, one_line
from fedamp.models.model import Model
from fedamp.models.pretrained import place_of
from fedamp.models.units import Units

_FACTORS = "factors.safetensors"  # of adapters, in the folder of ``model.initial``: names as ``peft`` saves them
TrainedFactors = Literal["both", "frozen", "middle"]  # what is trained of an adapter B A


_NAME_CODE = {"attn_implementation", "experts_implementation", "megatron_config", "quantization_config"}  # of options


class Logits(nn.Module):
    """Wrap a network of ``transformers`` so that it answers with logits alone, as the core expects of a model.

    :func:`from_transformers` makes it. ``run.model().network`` is the library's model again, with its own methods.

    Attributes:
        network: the library's module, or that of ``peft`` around it.
        pad: the token to which no other one attends, and which a mean leaves out; None: every token counts.
        head: a linear layer on the mean of the last layer, scaled to length 1 (``pool: mean``); None: the network has
            its own head.
    """

    def __init__(self, network: nn.Module, pad: int | None = None, head: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.pad, self.head = network, pad, head

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits of inputs [batch, ...].

        Returns:
            [batch, classes]; of a language model [batch, length, vocabulary].
        """
        real = None if self.pad is None else (inputs != self.pad).long()
        if self.head is not None:  # the library makes such a mask by branches on values, which no stack can train
            real = torch.ones_like(inputs) if real is None else real
            hidden = (1.0 - real[:, None, None]) * torch.finfo(torch.float32).min
            return self.head(mean_direction(self.network(inputs, hidden).last_hidden_state, real))  # type: ignore[no-any-return]
        with _one_text_each():
            found = self.network(inputs, **({} if real is None else {"attention_mask": real}))
        return found if isinstance(found, Tensor) else found.logits

    def units_to_split(self) -> Sequence[Units]:
        """Declare the nodes that can be left out: the ranks of adapters; without adapters neurons and heads.

        Families that the tables below do not know have no nodes, so their models train whole.
        """
        # Heads that share keys and values are one node; layers with different numbers of them have none.
        config: Any = self.network.config
        heads: Any = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
        heads = heads if isinstance(heads, int) else 0
        return ranks(self) or [*_nodes(self, _NEURONS, None), *(_nodes(self, _HEADS, heads) if heads else ())]


@contextmanager
def _one_text_each() -> Iterator[None]:
    """Tell the library that no record holds several texts, which it else reads from a tensor: a GPU waits for that."""
    masks: Any = sys.modules.get("transformers.masking_utils")
    before = getattr(masks, "find_packed_sequence_indices", None)
    if before is None:  # another version of the library
        yield
        return
    masks.find_packed_sequence_indices = lambda positions: None
    try:
        yield
    finally:
        masks.find_packed_sequence_indices = before


def mean_direction(last: Tensor, real: Tensor) -> Tensor:
    """Average the vectors of the real tokens and scale the mean to length 1.

    Args:
        last: outputs of an encoder's last layer, floats [batch, length, numbers].
        real: 1 for tokens that count, 0 for the others, [batch, length].

    Returns:
        [batch, numbers]. Zeros where no token counts.

    >>> mean_direction(torch.tensor([[[3.0, 4.0], [9.0, 9.0]]]), torch.tensor([[1, 0]]))
    tensor([[0.6000, 0.8000]])
    """
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
    """Declare the neurons of all trained layers of these families, or their attention heads.

    A layer counts only if all that its nodes own is trained. Neurons also need an activation that is 0 at 0, because a
    mask silences what comes before it.

    Args:
        model: with the library's network.
        families: the layers whose rows are nodes side by side, the one that a mask silences, and the layer behind them.
        count: heads of each layer; None: neurons, as many as the first layer has outputs.
    """
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
    """Say whether the activation of feed-forward layers is 0 at 0; one without a name in the configuration is not."""
    config: Any = model.network.config
    known = importlib.import_module("transformers.activations").ACT2FN
    names = [getattr(config, name, None) for name in ("hidden_act", "activation_function", "activation")]
    named = next((name for name in names if isinstance(name, str)), "sigmoid")
    return bool((known[named](torch.zeros(1)) == 0).all())


def ranks(module: nn.Module) -> list[Units]:
    """Declare the ranks of LoRA adapters as nodes, so that disjoint submodels share no rank.

    Rank j owns row j of A, or of the matrix between frozen factors, and column j of B; of these only what is trained. A
    custom module with adapters returns this from ``units_to_split``.

    Args:
        module: with layers of ``peft``; their dictionaries ``lora_A`` and ``lora_B`` are read.

    Returns:
        One entry for each adapter, with r nodes. Empty without adapters.
    """
    found, trained = [], {name for name, value in module.named_parameters() if value.requires_grad}
    for path, submodule in module.named_modules():
        for adapter, first in getattr(submodule, "lora_A", {}).items():
            name = f"{path}.lora_A.{adapter}"
            owned = {f"{name}.weight": 0, f"{name}.middle": 0, f"{path}.lora_B.{adapter}.weight": 1}
            owned = {each: dimension for each, dimension in owned.items() if each in trained}
            found.append(Units(layer=path, count=len(first.weight), owned=owned, output=name, along=-1))
    return found


class Middle(nn.Module):
    """Replace A of an adapter by M A: A is frozen, and the small matrix M is trained.

    :func:`from_transformers` makes it with ``factors: middle`` (Fed-SB, arXiv 2502.15436). M starts at zero, so
    training begins at the base model. The dictionary of its values also has the product, as ``weight``, which ``peft``
    saves and merges.

    Attributes:
        first: A, a buffer, float32 [rank, inputs].
        middle: M, the parameter, [rank, rank].

    >>> {name: list(value.shape) for name, value in Middle(torch.ones(2, 5)).state_dict().items()}
    {'middle': [2, 2], 'first': [2, 5], 'weight': [2, 5]}
    """

    first: Tensor

    def __init__(self, first: Tensor) -> None:
        super().__init__()
        self.register_buffer("first", first)
        self.middle = nn.Parameter(torch.zeros(len(first), len(first)))
        self.register_state_dict_post_hook(_with_product)  # type: ignore[no-untyped-call]

    @property
    def weight(self) -> Tensor:
        """The product M A, [rank, inputs], which ``peft`` merges into the base."""
        return self.middle @ self.first

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute M A x for inputs [..., inputs]: [..., rank]."""
        return (inputs @ self.first.T) @ self.middle.T


def _with_product(module: Middle, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Add the product to a dictionary of values, under the name that ``peft`` expects of A."""
    state[f"{prefix}weight"] = module.weight.detach()  # which ``peft`` saves


def _freeze_factors(network: nn.Module, trained: TrainedFactors, place: Path) -> None:
    """Freeze A of all adapters B A, or A and B around a trained matrix.

    The first is FFA-LoRA (arXiv 2403.12313), the second Fed-SB (arXiv 2502.15436). With both factors trained, the
    weights' noise has a product of two noises. With one trained matrix they are linear in its noise, and fewer numbers
    are noised.

    Args:
        network: with adapters; changed in place.
        trained: which part of an adapter is trained.
        place: the file of :func:`write_factors`. Without it, ``frozen`` keeps random A.

    Raises:
        ValueError: an unknown value, a layer that is not linear, no file for ``middle``, or too few ranks in it.
    """
    if trained not in get_args(TrainedFactors):
        raise ValueError(f"factors: {trained!r}; expected: {', '.join(get_args(TrainedFactors))}")
    if trained == "both":
        return
    given = load_file(regular(place)) if place.is_file() else {}
    if trained == "middle" and not given:
        raise ValueError(
            f"factors: {place} is not there; fedamp.extensions.adapters.transformers.write_factors makes it"
        )
    for path, layer in network.named_modules():
        if getattr(layer, "lora_embedding_A", None):
            raise ValueError(f"factors: {path} is not a linear layer; expected: lora.target_modules that are")
        for adapter, first in [*getattr(layer, "lora_A", {}).items()]:
            last, rank = layer.lora_B[adapter], len(first.weight)
            before, behind = (given.get(f"{path}.lora_{side}.weight", torch.ones(0, 0)) for side in "AB")
            if first.weight.dim() != 2 or (given and min(len(before), behind.shape[1]) < rank):
                raise ValueError(f"factors: {path} is not a linear layer, or {place} has none of rank {rank} for it")
            if given:
                first.weight.data.copy_(before[:rank])
            first.requires_grad_(False)
            if trained == "middle":
                last.weight.data.copy_(behind[:, :rank])
                last.requires_grad_(False)
                layer.lora_A[adapter] = Middle(first.weight.detach())


def write_factors(config: Model, num_classes: int, other: Path) -> Path:
    """Write the frozen factors of adapters into the folder ``config.initial``, from public weights alone.

    A and B get the leading singular vectors of a difference of weights, between the folders ``initial`` and ``other``.
    They hold the same network before and after a training on public records, in either order. After a single step of
    gradient descent, these are the leading directions of its gradient (Fed-SB, arXiv 2502.15436). Nothing here is
    charged, so no client's record may have been in that training.

    Args:
        config: a model of ``transformers``, with ``lora`` among its options; ``lora.r`` vectors of each layer are kept.
        num_classes: outputs for every record, as the scenario's data have them.
        other: a folder of Hugging Face.

    Returns:
        The file, ``factors.safetensors``. An older one is replaced.

    Raises:
        ModelError: one of both models cannot be built.
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
    """Build the network of a class of ``transformers``: from the folder ``model.initial``, or with random weights.

    Options of the scenario are those of the class's configuration, and four of this package:

    * ``lora``: arguments of ``peft.LoraConfig``.
    * ``factors``: what is trained of an adapter: ``both``, ``frozen`` or ``middle``.
    * ``pad``: a token to which no other one attends.
    * ``pool: mean``: a linear layer ``head``, which starts at zero, on the mean of an encoder's tokens.

    Dropout is 0, batch norms become group norms, and attention is computed such that clients can train together under
    ``vmap``. Options that may name code are refused, and nothing is downloaded.

    Args:
        config: the scenario's ``model`` section; its name is ``transformers:`` and a class.
        num_classes: outputs for every record, told to classes that have ``num_labels``.

    Returns:
        A :class:`Logits` on the CPU, in training mode. Its frozen weights are still parameters
        (:func:`fedamp.models.pretrained.freeze`).

    Raises:
        ModelError: there is no such class, it cannot be built, or a library is not installed.
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
    """Build the library's class such that clients can train together: plain attention, no dropout, no cache."""
    kind = getattr(importlib.import_module("transformers"), config.name.removeprefix("transformers:"))
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
    """Silence, for a block, advice about unused tokens and faster kernels, and progress bars."""
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
    """Replace batch norms, which mix records, by group norms with the same scales and shifts of channels.

    Their running means and variances do not count any more: a group norm computes its own from each record.
    """
    for each in module.modules():
        for name, child in each.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                norm = nn.GroupNorm(math.gcd(32, child.num_features), child.num_features)
                if child.affine:
                    norm.load_state_dict({"weight": child.weight, "bias": child.bias})
                each.add_module(name, norm)
