"""Flower's own examples become private by the lines of docs/flower-app, and are played with records made here.

``FLOWER_EXAMPLES`` names the folder ``examples`` of a checkout of Flower. Their downloads (flwr-datasets, torchvision,
evaluate) are replaced; the apps themselves are Flower's.
"""

import os
import re
import shutil
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import datasets
import numpy as np
import pytest
import yaml

from fedamp.accounting.verify import worst_verdict
from fedamp.runs.verification import verify_ledger
from fedamp.testing import play_flower

EXAMPLES = os.environ.get("FLOWER_EXAMPLES")
NODES = 3
FEDERATION = {
    "name": "example",
    "data": {"name": "external", "clients": NODES},
    "model": {"name": "external"},
    "rounds": 1,
    "privacy": {"clip": 1.0, "noise_multiplier": 0.5, "delta": 1e-5},
    "federation": {"nodes": NODES, "hosts": "trusted"},
}
RECIPE = {
    "client_app.py": [
        ("from flwr.clientapp import ClientApp", "from fedamp.client import PrivateClientApp"),
        ("app = ClientApp()", "app = PrivateClientApp()"),
    ],
    "server_app.py": [
        (
            "from flwr.serverapp.strategy import FedAvg",
            "from pathlib import Path\n\nfrom fedamp.server.custom_app import AppStrategy",
        ),
        (
            r"FedAvg\([^()]*\)",
            'AppStrategy(Path(__file__).with_name("federation.yaml"), {arrays}, "private")',
        ),
    ],
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXAMPLES is None, reason="FLOWER_EXAMPLES names no checkout of Flower"),
]


def images() -> datasets.Dataset:
    pixels = np.random.default_rng(1).integers(0, 255, (20, 32, 32, 3), dtype=np.uint8)
    return datasets.Dataset.from_dict({"img": pixels, "label": np.arange(20) % 10}).with_format("numpy")


def census() -> datasets.Dataset:
    generator = np.random.default_rng(2)
    numbers = {f"n{column}": generator.normal(size=40) for column in range(12)}
    words = {f"w{column}": generator.choice(["a", "b"], 40) for column in range(2)}
    return datasets.Dataset.from_dict(numbers | words | {"income": generator.choice(["<=50K", ">50K"], 40)})


def reviews() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": ["good film", "bad film"] * 10, "label": [1, 0] * 10})


def tiny_bert(folder: Path) -> str:
    """A model and its tokens, as the hub would send them."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def replaced(monkeypatch):
    """The packages that download: each example's records are set before it is played."""

    def module(name: str, **attributes: object) -> None:
        made = types.ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)

    def replace(records: datasets.Dataset) -> None:
        federated = type("", (), {"__init__": lambda *_, **__: None, "load_partition": lambda *_: records})
        module("flwr_datasets", FederatedDataset=federated)
        module("flwr_datasets.partitioner", IidPartitioner=lambda num_partitions: None)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: records)
        tensor = lambda image: __import__("torch").tensor(np.asarray(image, np.float32)).permute(2, 0, 1) / 255  # noqa: E731
        module("torchvision")
        module("torchvision.transforms", Compose=lambda steps: tensor, Normalize=lambda *_: None, ToTensor=lambda: None)
        metric = type("", (), {"add_batch": lambda *_, **__: None, "compute": lambda *_: {"accuracy": 0.5}})
        module("evaluate", load=lambda name: metric())

    return replace


@pytest.mark.parametrize(
    ("example", "records", "arrays", "config"),
    [
        ("quickstart-pytorch", images, "arrays", {}),
        ("opacus", images, "initial_arrays", {}),
        ("fl-tabular", census, "arrays", {}),
        ("quickstart-huggingface", reviews, "arrays", {"model-name": "tiny"}),
    ],
)
def test_an_example_of_flower_is_private_by_five_lines(
    example, records, arrays, config, replaced, monkeypatch, tmp_path
):
    shutil.copytree(Path(EXAMPLES) / example, tmp_path / "app")
    monkeypatch.chdir(tmp_path)
    if "model-name" in config:  # transformers looks for the true torchvision
        config = {"model-name": tiny_bert(tmp_path / "tiny")}
    replaced(records())
    for file, changes in RECIPE.items():
        (path,) = (tmp_path / "app").glob(f"*/{file}")
        text = path.read_text()
        for old, new in changes:
            pattern = old if "[" in old else re.escape(old)
            text, times = re.subn(pattern, lambda _, new=new: new.replace("{arrays}", arrays), text)
            assert times == 1, f"{file}: {old}"
        path.write_text(text)
        (path.parent / "federation.yaml").write_text(yaml.safe_dump(FEDERATION))
    play_flower(tmp_path / "app", nodes=NODES, run_config={"num-server-rounds": 1, **config})
    assert worst_verdict(verify_ledger(tmp_path / "private")) != "fail"
