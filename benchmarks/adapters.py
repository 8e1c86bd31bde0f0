"""The base of the scenario ``adapters``: a small GPT-2 that has read Romeo and Juliet, public text, without privacy.

python -m benchmarks.adapters   writes the folder scenarios/adapters-base
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedamp.data.builtin import _LINES
from fedamp.data.texts import CHARACTERS, _characters
from fedamp.models.model import Model
from fedamp.models.pretrained import from_transformers

BASE = Path(__file__).parents[1] / "scenarios" / "adapters-base"
LENGTH, BATCH, RATE = 32, 64, 2e-3
OPTIONS = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "tie_word_embeddings": True}
MODEL = Model(name="transformers:GPT2LMHeadModel", vocabulary=CHARACTERS, options=OPTIONS)


def windows() -> Tensor:
    """All pieces of the text, one character more than a record has."""
    lines = json.loads(_LINES.read_text(encoding="utf-8"))
    tokens = np.concatenate([_characters(line) for line in lines])
    return torch.from_numpy(np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1).astype(np.int64))


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
