"""Whole runs of other tasks than classification, with built-in and custom losses."""

import json
import sys

import numpy as np
import pytest
import yaml

import fedamp
from fedamp.errors import InputError, ModelError
from fedamp.federation import reader
from fedamp.server import launch
from fedamp.server.setup import prepare
from tests.federations import Silent, small

DIABETES = ("data={name: diabetes, clients: 60}", "client.loss=mean-squared-error", "rounds=3", "check_in.k=2")
CHARACTERS = (
    "data={name: shakespeare, clients: 400}",
    "model={name: lstm, vocabulary: 61, hidden: [8]}",
    "client={loss: token-cross-entropy, steps: 1, optimizer: adam, learning_rate: 0.01}",
    "rounds=2",
    "check_in={scheme: balanced, k: 1}",
)


def played(out, *overrides):
    folder = launch.launch(small(*overrides), Silent(), out)
    return folder, [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_regression_says_how_much_it_explains(tmp_path):
    folder, rounds = played(
        tmp_path / "run",
        *DIABETES,
        "privacy.noise_multiplier=0",
        "rounds=6",
        "privacy.clip=10",
        "client.learning_rate=0.1",
    )
    assert [line["accuracy"] for line in rounds] == [None] * 6
    assert 0.2 < rounds[-1]["metrics"]["r2"] < 0.6  # least squares explain about half
    run = fedamp.open(folder)
    assert run.score == ("r2", rounds[-1]["metrics"]["r2"])
    assert run.plot().axes[0].get_ylabel() == "R²"
    assert "R² 0." in run.report(tmp_path / "page.html").read_text()
    assert list(run.frame()["r2"]) == [line["metrics"]["r2"] for line in rounds]
    again, _ = played(tmp_path / "again", *DIABETES, "privacy.unit=sample", "client.steps=1", "data.clients=null")
    from fedamp.report.comparison import compare

    rows = compare([folder, again]).to_json()["runs"]
    assert [row["score"][0] for row in rows] == ["r2", "r2"]


def test_a_run_on_characters_tells_its_perplexity(tmp_path):
    folder, rounds = played(tmp_path / "run", *CHARACTERS, "privacy.noise_multiplier=1")
    assert rounds[-1]["metrics"]["perplexity"] == pytest.approx(np.exp(rounds[-1]["loss"]), rel=1e-6)
    model = fedamp.open(folder).model()
    import torch

    assert model(torch.zeros(1, 32, dtype=torch.int64)).shape == (1, 32, 61)


def test_the_learning_rate_follows_its_schedule(tmp_path):
    """With one round of a rate that is as good as zero, the model of that round is the one before."""
    rates = "client.learning_rate=[[1, 0.5], [2, 1.0e-30]]"
    folder, _ = played(tmp_path / "run", "rounds=3", "check_in={scheme: all}", "privacy.noise_multiplier=0", rates,
                       "server.momentum=0", "federation.checkpoint_every=1")  # fmt: skip
    digests = [entry["digest"] for entry in json.loads((folder / "ledger.json").read_text())["releases"]]
    assert digests[0] == digests[1] == digests[2]
    plain, _ = played(tmp_path / "plain", "rounds=1", "check_in={scheme: all}", "privacy.noise_multiplier=0",
                      "client.learning_rate=0.5", "server.momentum=0")  # fmt: skip
    assert json.loads((plain / "ledger.json").read_text())["releases"][0]["digest"] == digests[0]


OWN = """
import torch
from fedamp.federation.losses import CrossEntropy, MeanSquaredError

class Huber(MeanSquaredError):
    def each(self, outputs, labels):
        return torch.nn.functional.huber_loss(outputs, labels, reduction="none", delta=1e6).mean(1)

class Abstract:
    pass
"""


def test_a_custom_loss_lies_beside_the_scenario(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_losses.py").write_text(OWN)
    raw = json.loads(small(*DIABETES).model_dump_json())
    raw["client"]["loss"] = "own_losses:Huber"
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(raw))
    folder = launch.launch(reader.load(file), Silent(), tmp_path / "run")
    _, plain = played(tmp_path / "plain", *DIABETES)
    found = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    # Within its delta the Huber loss is half the squared error, so half the rate of decay: same first loss, halved.
    first = [line["unprotected"]["training_loss"] for line in (found[0], plain[0])]
    assert first[0] == pytest.approx(first[1] / 2, rel=1e-5)
    assert found[-1]["metrics"]["r2"] < 1
    for wrong, message in (("Abstract", "Abstract.*expected: package"), ("Nothing", "cannot be imported")):
        raw["client"]["loss"] = f"own_losses:{wrong}"
        file.write_text(yaml.safe_dump(raw))
        with pytest.raises(ModelError, match=rf"client\.loss 'own_losses:{wrong}' .*{message}"):
            prepare(reader.load(file))


REFUSED = {
    ("client.loss=cross_entropy",): r"client\.loss 'cross_entropy' is unknown \(did you mean 'cross-entropy'\?\)",
    ("client.loss=mean-squared-error", "model={name: lstm, vocabulary: 61}", "data={name: shakespeare, clients: 9}"): (
        r"labels must be|mean-squared-error takes outputs \[batch, outputs\]; model lstm answers \[2, 32, "
    ),
    ("client.loss=token-cross-entropy",): "labels have shape",
    (*CHARACTERS, "model.vocabulary=50"): r"are others than tokens, integers 0 to 49 \(model\.vocabulary",
    (*CHARACTERS, "submodels={scheme: disjoint, count: 2}"): r"submodels\.count: .* nodes to partition",
    ("client={momentum: 0.5, optimizer: adam}",): "client: momentum is for optimizer sgd",
    ("client.learning_rate=[[2, 0.5]]",): "learning_rate must start at round 1",
    ("client.weight_decay=-1",): r"client\.weight_decay: got -1; expected: a number >= 0",
}


def test_sections_that_do_not_fit_are_refused_before_training(subtests):
    for overrides, message in REFUSED.items():
        with subtests.test(message), pytest.raises(InputError, match=message):
            prepare(small(*overrides))
