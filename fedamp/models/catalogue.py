"""What is known about the registered models without torch, so that scenarios are validated without it."""

from fedamp.models.names import under, unknown
from fedamp.scenario import DisjointSubmodels, DropoutSubmodels, Model, Submodels

RESNET_DEPTHS = {"resnet20": (3, 3, 3), "resnet18": (2, 2, 2, 2), "resnet101": (3, 4, 23, 3)}
RESNET_WIDTHS = {"resnet20": (16, 32, 64), "resnet18": (64, 128, 256, 512), "resnet101": (64, 128, 256, 512)}
BOTTLENECK = frozenset({"resnet101"})
NAMES = ("logistic", "mlp", "cnn", *RESNET_DEPTHS)


def is_import_path(name: str) -> bool:
    """Whether a model name is of the form ``package.module:name``."""
    return ":" in name


def layer_names(config: Model) -> tuple[str, ...] | None:
    """Names that ``submodels.shared`` accepts (and everything below them); None: a model of one's own, not known here.

    Raises:
        KeyError: the name is neither registered nor an import path.
    """
    if is_import_path(config.name):
        return None
    hidden = maskable_layers(config)
    assert hidden is not None
    if config.name == "cnn":
        return (*hidden, *(f"norms.{index}" for index in range(len(config.channels))), "output")
    if config.name in RESNET_DEPTHS:
        depths = RESNET_DEPTHS[config.name]
        blocks = [f"layer{stage}.{block}" for stage, depth in enumerate(depths, 1) for block in range(depth)]
        return ("stem", *hidden, *blocks, "output")
    return (*hidden, "output")


def maskable_layers(config: Model) -> tuple[str, ...] | None:
    """Names that ``submodels.layers`` accepts for dropout masks; None: a model of one's own, not known here.

    Raises:
        KeyError: the name is neither registered nor an import path.
    """
    return None if is_import_path(config.name) else tuple(_nodes(config, ()))


def splittable_units(config: Model, shared: tuple[str, ...] = ()) -> int | None:
    """The largest number of disjoint submodels: 0 where nothing can be split, None where not known.

    Hidden layers must keep a node in every submodel, so the narrowest of them decides; residual blocks may be missing
    from a stage, so all of them count together. What a model of one's own can do is known only when it is built.

    Args:
        shared: layers that every submodel holds, as in the scenario.

    Raises:
        KeyError: the name is neither registered nor an import path.
    """
    if is_import_path(config.name):
        return None
    nodes = _nodes(config, shared)
    if config.name in RESNET_DEPTHS:
        return sum(nodes.values())
    return min(nodes.values(), default=0)


def check_submodels(config: Model, submodels: Submodels) -> None:
    """Refuse what a registered model cannot be cut into; a model of one's own is asked when it is built.

    Raises:
        ValueError: an unknown model or layer, or more submodels than there are nodes; one line that names the key.
    """
    if is_import_path(config.name):
        return
    if config.name not in NAMES:
        raise ValueError(f"model.name {unknown(config.name, [*NAMES, 'package.module:name'])}")
    layers, masked = layer_names(config) or (), maskable_layers(config) or ()
    if isinstance(submodels, DropoutSubmodels):
        if not masked:
            raise ValueError(f"submodels.scheme dropout: model {config.name} has no hidden layer to mask")
        for name in submodels.layers:
            if name not in masked:
                raise ValueError(f"submodels.layers: {unknown(name, masked)}")
    if isinstance(submodels, DisjointSubmodels):
        for name in submodels.shared:
            if not any(under(layer, [name]) or under(name, [layer]) for layer in layers):
                raise ValueError(f"submodels.shared: {unknown(name, layers)}")
        units = splittable_units(config, submodels.shared)
        assert units is not None, "registered"
        if submodels.count > units:
            rest = " beside submodels.shared" if submodels.shared else ""
            raise ValueError(
                f"submodels.count: {submodels.count} submodels, but model {config.name} has {units} nodes to deal out"
                f"{rest} (of its narrowest hidden layer, or residual blocks that keep the shape)"
            )


def _nodes(config: Model, shared: tuple[str, ...]) -> dict[str, int]:
    """Number of nodes of every layer that is split."""
    if config.name in RESNET_DEPTHS:
        stages = enumerate(RESNET_DEPTHS[config.name], 1)
        return {f"layer{stage}": count for stage, depth in stages if (count := _blocks(config, stage, depth, shared))}
    layers = {
        "logistic": {},
        "mlp": {f"hidden.{index}": width for index, width in enumerate(config.hidden)},
        "cnn": {f"convolutions.{index}": config.groups for index in range(len(config.channels))},
    }[config.name]
    return {layer: count for layer, count in layers.items() if not under(layer, shared)}


def _blocks(config: Model, stage: int, depth: int, shared: tuple[str, ...]) -> int:
    changes_shape = stage > 1 or config.name in BOTTLENECK
    blocks = [f"layer{stage}.{block}" for block in range(1 if changes_shape else 0, depth)]
    return sum(not under(block, shared) for block in blocks)
