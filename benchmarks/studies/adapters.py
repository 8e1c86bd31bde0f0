"""The base of the scenario ``adapters``: a small GPT-2 that has read Romeo and Juliet, public text, without privacy.

python -m benchmarks.studies.adapters   writes the folder scenarios/adapters-base
"""

import ast
import json
import math
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.record import ROOT
from fedamp.base.files import cache_folder
from fedamp.data.builtin import _LINES
from fedamp.data.texts import CHARACTERS, DescriptionsData, _code_points
from fedamp.extensions.adapters.transformers import from_transformers, write_factors
from fedamp.models.model import Model

BASE = ROOT / "scenarios" / "adapters-base"
NEAR = cache_folder() / "federations" / "adapters-near"
LENGTH, BATCH, RATE = 32, 64, 2e-3
TARGETS, STEPS, MOST_RANKS = ["c_attn", "c_proj", "c_fc"], 250, 16
OPTIONS = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "tie_word_embeddings": True}
MODEL = Model(name="transformers:GPT2LMHeadModel", vocabulary=CHARACTERS, options=OPTIONS)


def windows() -> Tensor:
    """All pieces of the text, one character more than a record has."""
    lines = json.loads(_LINES.read_text(encoding="utf-8"))
    tokens = np.concatenate([_code_points(line) for line in lines])
    return torch.from_numpy(np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1).astype(np.int64))


def docstrings() -> Any:
    """First lines of the docstrings of Python's standard library, as records of the data set ``descriptions``."""
    library, texts = Path(sysconfig.get_paths()["stdlib"]), dict[str, None]()
    for file in sorted([*library.glob("*.py"), *library.glob("[a-su-z]*/*.py")]):  # not of its tests
        if file.parent.name != "site-packages":
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    texts[(ast.get_docstring(node) or "").strip().partition("\n")[0].rstrip(".")] = None
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps({"author": "Python", "text": text}) for text in texts if len(text) > 8]
        (Path(folder) / "train.json").write_text("\n".join(lines))
        section = DescriptionsData(name="descriptions", path=folder, length=LENGTH)
        table = section.split(Path(folder), "train")
    return torch.from_numpy(table.inputs.astype(np.int64)), torch.from_numpy(table.labels.astype(np.int64))


@cache
def near() -> None:
    """Make :data:`NEAR`: the base after it has read public texts of the task's kind, and the factors of this change."""
    if not (NEAR / "factors.safetensors").exists():
        torch.manual_seed(0)
        model: Any = from_transformers(MODEL.model_copy(update={"initial": str(BASE)}), CHARACTERS)
        inputs, labels = docstrings()
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
        for _ in range(STEPS):
            chosen = torch.randint(len(inputs), (3 * BATCH,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[chosen]).flatten(0, 1), labels[chosen].flatten()).backward()
            optimizer.step()
            schedule.step()
        model.network.save_pretrained(NEAR)
        lora = {"r": MOST_RANKS, "target_modules": TARGETS, "fan_in_fan_out": True}
        write_factors(MODEL.model_copy(update={"initial": str(NEAR), "options": {"lora": lora}}), CHARACTERS, BASE)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2500
    torch.manual_seed(0)
    model, text = from_transformers(MODEL, CHARACTERS), windows()
    kept, held_out = text[: -len(text) // 10], text[-len(text) // 10 :: LENGTH]
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1), nn.CrossEntropyLoss()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps))
    for step in range(steps):
        chosen = kept[torch.randint(len(kept), (BATCH,))]
        optimizer.zero_grad()
        loss(model(chosen[:, :-1]).flatten(0, 1), chosen[:, 1:].flatten()).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 250 == 0:
            with torch.no_grad():
                found = loss(model(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten())
            print(f"step {step + 1}: loss {float(found):.3f} on a held-out act", flush=True)
    model.network.save_pretrained(BASE)
    (BASE / "generation_config.json").unlink()
    print(f"{BASE}: {sum(file.stat().st_size for file in BASE.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
