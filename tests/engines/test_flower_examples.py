"""Flower's own apps become private by the lines of docs/flower-app, and are played with records made here.

Until version 1.23 the package ``flwr`` held the apps that ``flwr new`` writes; those of PyTorch and of Hugging Face are
the quickstarts among Flower's examples. PyPI has that package. The apps with Opacus and with a table have the form of
Flower's examples: the clients and the server are the template's, and what differs is written here. What they download
(flwr-datasets, torchvision, evaluate) is replaced.
"""

import re
import string
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from zipfile import ZipFile

import datasets
import numpy as np
import pytest
import yaml

from fedamp.accounting.verify import worst_verdict
from fedamp.runs.verification import verify_ledger
from fedamp.testing import play_flower

HELD_BY = "flwr==1.23.0"  # the last version whose package holds apps
TEMPLATES = "flwr/cli/new/templates/app"
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
            'AppStrategy(Path(__file__).with_name("federation.yaml"), arrays, "private")',
        ),
    ],
}
WITH_OPACUS = (  # of the task of the template of PyTorch
    "    net.train()\n    running_loss",
    """    from opacus import PrivacyEngine

    net.train()
    net, optimizer, trainloader = PrivacyEngine(accountant="rdp").make_private(
        module=net, optimizer=optimizer, data_loader=trainloader,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
    )
    running_loss""",
)
OF_TABLE = """
import pandas as pd
import torch
from flwr_datasets import FederatedDataset
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OrdinalEncoder, StandardScaler
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(14, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, x):
        return torch.sigmoid(self.layers(x))


def load_data(partition_id, num_partitions):
    table = FederatedDataset(dataset="census", partitioners={}).load_partition(partition_id).with_format("pandas")[:]
    words = table.select_dtypes(exclude="number").columns
    table[words] = OrdinalEncoder().fit_transform(table[words])
    x = StandardScaler().fit_transform(table.drop(columns="income"))
    sides = train_test_split(x, table["income"], test_size=0.2, random_state=1)
    x, x_test, y, y_test = (torch.tensor(pd.DataFrame(each).to_numpy(), dtype=torch.float32) for each in sides)
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True), DataLoader(TensorDataset(x_test, y_test))


def train(net, trainloader, epochs, lr, device):
    optimizer, criterion = torch.optim.Adam(net.parameters(), lr=lr), torch.nn.BCELoss()
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


def test(net, testloader, device):
    right = [float(((net(x) > 0.5) == y).float().mean()) for x, y in testloader]
    return 0.0, sum(right) / len(right)
"""
pytestmark = pytest.mark.slow


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


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """Flower's package with apps, as a zip."""
    folder = tmp_path_factory.mktemp("flwr")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder, HELD_BY]
    subprocess.run(pip, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_app(templates: Path, framework: str, folder: Path) -> None:
    """Write an app as ``flwr new`` did."""
    names = {"package_name": "theirs", "import_name": "theirs", "project_name": "theirs", "username": "somebody"}
    names |= {"framework_str": framework}
    (folder / "theirs").mkdir(parents=True)
    with ZipFile(templates) as wheel:

        def written(name: str, file: str) -> None:
            text = wheel.read(f"{TEMPLATES}/{name}.tpl").decode()
            (folder / file).write_text(string.Template(text).safe_substitute(names))

        written(f"pyproject.{framework}.toml", "pyproject.toml")
        for part, module in {"client": "client_app", "server": "server_app", "task": "task"}.items():
            written(f"code/{part}.{framework}.py", f"theirs/{module}.py")
    (folder / "theirs" / "__init__.py").touch()


def changed(text: str, pattern: str, new: str) -> str:
    """Change the only place that matches."""
    text, times = re.subn(pattern, lambda _: new, text)
    assert times == 1, pattern
    return text


@pytest.mark.parametrize(
    ("framework", "kind", "records"),
    [
        ("pytorch", "as it is", images),
        ("pytorch", "with Opacus", images),
        ("pytorch", "of a table", census),
        ("huggingface", "as it is", reviews),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_app_of_flower_is_private_by_five_lines(
    framework, kind, records, templates, replaced, monkeypatch, tmp_path
):
    app = tmp_path / "app"
    write_app(templates, framework, app)
    monkeypatch.chdir(tmp_path)
    # transformers looks for the true torchvision
    config = {"model-name": tiny_bert(tmp_path / "tiny")} if framework == "huggingface" else {}
    replaced(records())
    task = app / "theirs" / "task.py"
    if kind == "with Opacus":
        task.write_text(changed(task.read_text(), re.escape(WITH_OPACUS[0]), WITH_OPACUS[1]))
    elif kind == "of a table":
        task.write_text(OF_TABLE)
    for file, changes in RECIPE.items():
        path = app / "theirs" / file
        for old, new in changes:
            path.write_text(changed(path.read_text(), old if "[" in old else re.escape(old), new))
        (path.parent / "federation.yaml").write_text(yaml.safe_dump(FEDERATION))
    play_flower(app, nodes=NODES, run_config={"num-server-rounds": 1, **config})
    assert worst_verdict(verify_ledger(tmp_path / "private")) != "fail"
