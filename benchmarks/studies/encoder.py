"""The last layer of a public encoder with adapters, for the task ``encoder``: the layers below it run once.

What clients train is the scenario ``sections-lora`` but for the length of a text. Frozen layers below all adapters give
the same vectors in each round. Here they are records, and the model is the layer above them.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.training import at_hand
from fedamp.base.files import cache_folder
from fedamp.extensions.adapters.transformers import from_transformers, mean_direction, write_factors
from fedamp.federation import reader
from fedamp.models.model import Model

WORDS, LENGTH, BELOW, NUMBERS, MOST_RANKS = 30522, 16, 5, 384, 64
TARGETS = ["query", "key", "value", "dense"]
HOME = cache_folder() / "federations" / "encoder"


def section(**options: Any) -> Model:
    """The encoder with a linear layer on the mean of its tokens."""
    given = {"pool": "mean", "pad": 0, **options}
    return Model(name="transformers:BertModel", vocabulary=WORDS, initial=str(HOME / "base"), options=given)


def adapters(rank: int, alpha: float) -> dict[str, Any]:
    """Options of ``lora`` for all linear layers of the last layer."""
    return {"r": rank, "lora_alpha": alpha, "target_modules": TARGETS, "layers_to_transform": [BELOW]}


class Above(nn.Module):
    """The layers above the fifth, and the head. Inputs: vectors [batch, LENGTH + 1, 384], zeros behind a text's end.

    The last of the vectors is the mean that the frozen encoder gives: without ``lora``, the head takes it.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> None:
        super().__init__()
        base()
        whole = from_transformers(section(**options), num_classes)
        found = [module for name, module in whole.named_modules() if name.endswith("encoder.layer")]
        self.layers = found[0][BELOW:] if "lora" in options else None
        self.head = whole.head

    def forward(self, inputs: Tensor) -> Tensor:
        if self.layers is None:
            return self.head(inputs[:, -1])
        vectors = inputs[:, :-1]
        real = (vectors != 0).any(-1)
        hidden = (~real).float()[:, None, None, :] * torch.finfo(torch.float32).min
        for layer in self.layers:
            vectors = layer(vectors, hidden)
        return self.head(mean_direction(vectors, real.float()))


@cache
def base() -> None:
    """The encoder, and factors of its adapters: the singular vectors of its weights (LoRA-XS, arXiv 2405.17604)."""
    if (HOME / "base" / "factors.safetensors").exists():
        return
    source = at_hand("minilm")
    nothing = HOME / "nothing"
    for folder in (HOME / "base", nothing):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    os.symlink(source / "model.safetensors", HOME / "base" / "model.safetensors")
    weights = load_file(source / "model.safetensors")
    save_file({name: torch.zeros_like(value) for name, value in weights.items()}, nothing / "model.safetensors")
    write_factors(section(lora=adapters(MOST_RANKS, 1)), 2, nothing)
    (nothing / "model.safetensors").unlink()


def encoded(texts: list[str]) -> np.ndarray[Any, Any]:
    """Vectors of tokens after the frozen layers, and the mean after the last, float16 [texts, LENGTH + 1, 384]."""
    from tokenizers import Tokenizer
    from transformers import BertModel

    tokenizer = Tokenizer.from_file(str(at_hand("minilm") / "tokenizer.json"))
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH)
    encoder, found = BertModel.from_pretrained(HOME / "base", local_files_only=True).eval(), []
    for start in range(0, len(texts), 64):
        tokens = torch.tensor([each.ids for each in tokenizer.encode_batch(texts[start : start + 64])])
        real = (tokens != 0).long()
        with torch.inference_mode():
            layers = encoder(input_ids=tokens, attention_mask=real, output_hidden_states=True).hidden_states
            means = mean_direction(layers[-1], real)[:, None]
            found.append(torch.cat([layers[BELOW] * real[..., None], means], 1).half().numpy())
    return np.concatenate(found)


@cache
def vectors() -> Path:
    """The folder of the records, as npy files that are made once."""
    base()
    if not (HOME / "done").exists():
        classes = reader.load("sections").data.classes
        source = at_hand("sections")
        for split in ("train", "test"):
            lines = [json.loads(line) for line in (source / f"{split}.json").read_text().splitlines()]
            people = [*dict.fromkeys(line["author"] for line in lines)]
            np.save(HOME / f"{split}_x.npy", encoded([line["text"] for line in lines]))
            np.save(HOME / f"{split}_y.npy", [classes.index(line["section"]) for line in lines])
            np.save(HOME / f"{split}_client.npy", [people.index(line["author"]) for line in lines])
        (HOME / "done").touch()
    return HOME
