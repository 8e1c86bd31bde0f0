"""Define the scenario's ``model`` section.

Its values are checked where a model is described (:mod:`fedamp.models.architectures`) or built
(:mod:`fedamp.models.networks`); reading the section runs no code that it names.
"""

from typing import Annotated, Any

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from fedamp.base.section import Outputs, Section, Width
from fedamp.extension import keys

WHOLE = -1  # in the place of a submodel's number: the whole model


def library_of(name: str) -> str:
    """Return the library of a model whose classes an extension builds, as ``transformers``; empty: another model."""
    library, colon, _ = name.partition(":")
    return library if colon and library in keys("model_libraries") else ""


class Model(Section):
    """A built-in model, or a custom one as ``package.module:name`` (see docs/models.md)."""

    name: str = Field(
        description="logistic, mlp, cnn, resnet20, resnet18, resnet101, lstm, package.module:name, "
        "transformers:GPT2LMHeadModel, external (an app's)"
    )
    hidden: tuple[Width, ...] = Field((64,), max_length=1000, description="mlp, lstm: units of every hidden layer")
    channels: tuple[Width, ...] = Field((16, 32), max_length=1000, description="cnn: channels of every convolution")
    groups: Width = Field(4, description="cnn, resnets: groups of each GroupNorm")
    vocabulary: Annotated[Outputs, Field(ge=2)] | None = Field(
        None, description="inputs are tokens, integers from 0 to below this; default: they are numbers"
    )
    embedding: Width = Field(8, description="lstm: numbers that stand for a token")
    initial: str | None = Field(
        None,
        description="weights to start from: a safetensors file, a state_dict, or a folder of Hugging Face; default: "
        "random from the seed",
    )
    initial_names: dict[str, str | None] = Field(
        default_factory=dict,
        description="prefixes of names in initial, and what stands for them in the model; null leaves the tensors out",
        examples=[{"transformer.": "network.transformer."}],
    )
    trainable: tuple[str, ...] | None = Field(
        None,
        description="what a custom model trains: patterns of names, such as lora_* or head; default: all parameters "
        "that require a gradient",
        examples=[["head"]],
    )
    local: tuple[str, ...] = Field(
        (),
        description="patterns of parameters that stay with their client and are never sent, such as output; with "
        "privacy.unit: client, in a simulation on one machine",
        examples=[["output"]],
    )
    options: dict[str, Any] = Field(default_factory=dict, description="arguments of a custom model")
    folder: str | None = Field(
        None, description="where a custom model is looked for, beside installed packages; default: the scenario's"
    )
    # Of a custom model: digest of its buffers when the run began, as the run wrote it.
    frozen_sha256: Annotated[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None, SkipJsonSchema()] = None
