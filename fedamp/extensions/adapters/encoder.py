"""Encode texts by a public encoder: the step ``encode`` of ``data.transform``."""

import hashlib
import json
import os
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedamp.base.reading import open_regular, read_typed, regular_inside
from fedamp.data.places import places_of
from fedamp.data.transforms import Function, Shape, SingleFloats, Transform
from fedamp.errors import DataError, needs_extras

_ENCODED = 64  # texts that the encoder sees at once: always as many, so that a text's features depend on no other


class Encode(Transform):
    """Features of texts by a public encoder: the mean of its last layer over a text's tokens, of length 1.

    The encoder is a folder of Hugging Face's ``transformers``, such as that of a sentence transformer. It is frozen and
    never sent: every node has the folder, and what is trained takes the features. A record's features depend on its own
    tokens, and on no other record: the network runs on blocks of one size.
    """

    slow = True
    name: Literal["encode"]
    folder: str = Field(
        description="folder of config.json and model.safetensors: absolute, or below $FEDAMP_MODELS, or that of "
        "`make data`"
    )
    pad: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="the token of places beyond a text's end")

    def output_shape(self, shape: Shape) -> Shape:
        """Return [hidden size] of the encoder, for records of tokens."""
        if len(shape) != 1:
            raise ValueError("encode takes tokens, so data: {name: text, tokenizer: ...}")
        return (int(json.loads(read_typed(self._file("config.json")))["hidden_size"]),)

    def identity(self) -> str:
        """Return the section and the digest of the encoder's weights."""
        with open_regular(self._file("model.safetensors")) as stream:
            return self.model_dump_json() + hashlib.file_digest(stream, "sha256").hexdigest()

    def prepared(self, before: Function, input_shape: Shape) -> Function:
        """Load the encoder, and return a function from tokens to features of length 1."""
        import torch

        with needs_extras():
            from transformers import AutoModel
        place = regular_inside(self._file("config.json").parent)
        code = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}  # none of the folder's
        encoder = AutoModel.from_pretrained(place, **code).eval()
        words = encoder.config.vocab_size

        def encoded(inputs: SingleFloats) -> SingleFloats:
            tokens = np.full((-len(inputs) % _ENCODED + len(inputs), inputs.shape[1]), self.pad, np.int64)
            wrong = ~((inputs >= 0) & (inputs < words)).all(1)  # a record that cannot be read is NaN
            tokens[: len(inputs)][~wrong] = inputs[~wrong]
            found = []
            for block in torch.split(torch.from_numpy(tokens), _ENCODED):
                mask = (block != self.pad).long()
                with torch.inference_mode():
                    last = encoder(input_ids=block, attention_mask=mask).last_hidden_state
                total = (last * mask[..., None]).sum(1)
                found.append(torch.nn.functional.normalize(total).numpy())
            features: SingleFloats = np.concatenate(found)[: len(inputs)]
            features[wrong] = np.nan
            return features

        return lambda inputs: encoded(before(inputs))

    def _file(self, name: str) -> Path:
        """Find a file of the encoder's folder.

        Raises:
            DataError: no place has it.
        """
        places = [Path(os.environ.get("FEDAMP_MODELS", "")) / self.folder, *places_of(self.folder)]
        found = next((place / name for place in places if (place / name).is_file()), None)
        if found is None:
            raise DataError(f"data.transform encode: {places[0]} has no {name}; expected: a folder of Hugging Face")
        return found
