"""People's own records without a public test set: a whole run, and nowhere is a private record called public."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import fedamp as package
from fedamp.errors import InputError, RunFolderError
from fedamp.extensions.merging.candidates import MergeError
from fedamp.extensions.merging.merge import merge_runs
from fedamp.extensions.merging.weights import MergeRequest
from fedamp.federation import reader
from tests.extensions.pages.test_page import Page
from tests.server.plays import Crash, Killed, ledger_of, model_of, play_in, rounds_of

SHOPS = """
name: shops
known_seed: true
data:
  {name: csv, path: shops, classes: 2, features: [age, income], label: bought, partition: {scheme: natural, column: of}}
model: {name: logistic}
rounds: 5
check_in: {scheme: poisson, rate: 0.3}
client: {steps: 2, learning_rate: 0.2}
privacy: {clip: 0.5, noise_multiplier: 1.0, precision: 0.05}
engine: {kind: serial}
federation: {checkpoint_every: 1}
"""
CLAIM = "Accuracy and loss are computed on a test set that is declared public."
NONE = "No evaluation: no model was tested on anybody's records."


def write(folder, split="train", records=240, **changed):
    generator = np.random.default_rng(len(split))
    age, income = generator.normal(size=(2, records))
    columns = {"age": age, "income": income, "bought": (age + income > 0).astype(int), "of": np.arange(records) % 40}
    (folder / "shops").mkdir(exist_ok=True)
    pd.DataFrame(columns | changed).to_csv(folder / "shops" / f"{split}.csv", index=False)
    (folder / "shops.yaml").write_text(SHOPS)
    return folder / "shops.yaml"


def one_line(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def run(place):
    return package.run(place / "shops.yaml", place / "run")


def test_every_record_is_trained_on_and_none_is_called_public(place, run, fedamp):
    shown = one_line(fedamp("scenarios", "show", place / "shops.yaml").out)
    assert "240 training records of 40 clients" in shown
    assert "; 0 public test records" in shown
    assert run.ledger.assumptions[-1] == NONE
    assert CLAIM not in run.ledger.assumptions
    assert [(line["accuracy"], line["loss"], line["metrics"]) for line in rounds_of(run.folder)] == [
        (None, None, {})
    ] * 5
    assert run.summary.final.content() == {"accuracy": None, "loss": None, "metrics": {}, "validation_score": None}
    assert "not evaluated" in str(run)
    assert run.plot().axes  # of the cost
    assert run.frame()["loss"].isna().all()


def test_check_and_run_say_so_in_one_line_until_the_scenario_does(place, tmp_path, fedamp):
    line = "evaluation: none; expected: data.test_is_public: true, where everybody may know the test records"
    checked = fedamp("check", place / "shops.yaml", "--json")
    assert [each["verdict"] for each in json.loads(checked.out)["checks"] if each["name"] == "evaluation"] == [
        "caution"
    ]
    ran = fedamp("run", place / "shops.yaml", "--out", tmp_path / "run")
    assert (tmp_path / "run" / "log.txt").read_text().count(line) == 1
    assert "not measured: no evaluation on public test records" in one_line(ran.out)
    asked = ("--set", "federation.evaluate_every=0")
    assert fedamp("run", place / "shops.yaml", *asked, "--out", tmp_path / "asked").status == 0
    assert line not in (tmp_path / "asked" / "log.txt").read_text()


def test_the_page_and_what_leaves_the_server_say_so(place, run, fedamp, tmp_path):
    assert fedamp("report", run.folder, "--out", tmp_path / "page.html").status == 0
    page = Page((tmp_path / "page.html").read_text())
    assert NONE in page.texts("li")
    assert page.texts("p", "verdict")[0].startswith("quality was not measured at a privacy cost of ε ≤ ")
    assert fedamp("release", run.folder, "--out", tmp_path / "bundle").status == 0
    certificate = (tmp_path / "bundle" / "certificate.html").read_text()
    assert "<dd>not measured: no evaluation on public test records</dd>" in certificate
    assert CLAIM not in certificate + (tmp_path / "bundle" / "ledger.json").read_text()
    assert fedamp("verify", tmp_path / "bundle").status == fedamp("verify", run.folder).status == 0


def test_a_test_file_that_nobody_called_public_is_not_read(place, run, tmp_path):
    """Where it is called public the model is the same, too: it is evaluated, and trained on nothing else."""
    shutil.copytree(place / "shops", tmp_path / "shops")
    shutil.copy(place / "shops.yaml", tmp_path)
    write(tmp_path, "test", 30)
    quiet = package.run(tmp_path / "shops.yaml", tmp_path / "quiet")
    told = package.run(tmp_path / "shops.yaml", tmp_path / "told", **{"data.test_is_public": True})
    (tmp_path / "shops" / "test.csv").write_text("no table")
    damaged = package.run(tmp_path / "shops.yaml", tmp_path / "damaged")
    assert {model_of(each.folder) for each in (quiet, told, damaged)} == {model_of(run.folder)}
    assert (quiet.score, damaged.score) == (None, None)
    assert told.score[1] > 0.5
    assert (quiet.ledger.assumptions[-1], told.ledger.assumptions[-1]) == (NONE, CLAIM)


def test_an_interrupted_run_goes_on_to_the_same_model_and_only_as_it_began(place, run, tmp_path):
    scenario = reader.load(place / "shops.yaml")
    with pytest.raises(Killed):
        play_in(tmp_path / "run", scenario, Crash(2))
    public = reader.load(place / "shops.yaml", ["data.test_is_public=true", "data.test_fraction=0.2"])
    with pytest.raises(RunFolderError, match=r"it differs in scenario_sha256 \(changed: data\)"):
        play_in(tmp_path / "run", public)
    assert play_in(tmp_path / "run", scenario).rounds_completed == 5
    assert model_of(tmp_path / "run") == model_of(run.folder)
    # Whether models are evaluated is no part of what a digest of the scenario covers, but of what a ledger states.
    other = tmp_path / "other"
    with pytest.raises(Killed):
        play_in(other, public, Crash(2))
    silent = public.model_copy(update={"federation": public.federation.model_copy(update={"evaluate_every": 0})})
    with pytest.raises(RunFolderError, match=r"ledger\.json: the run evaluates its models on public test records"):
        play_in(other, silent)
    assert ledger_of(other)["assumptions"][-1] == CLAIM


def test_studies_of_such_runs(place, run, tmp_path, fedamp):
    refused = fedamp("sweep", place / "shops.yaml", "--set", "privacy.clip=0.5,1", "--out", tmp_path / "sweep")
    assert (refused.status, (tmp_path / "sweep").exists()) == (2, False)
    assert refused.err.startswith("error: sweep: nothing scores its runs; expected: data.test_is_public: true, where ")
    assert fedamp("compare", run.folder, "--out", tmp_path / "plots").status == 0
    second = package.run(place / "shops.yaml", tmp_path / "second", seed=2)
    models = tuple(map(str, (run.folder, second.folder)))
    merged = merge_runs(MergeRequest(models, "random-selection", 1e3, 1e-5, weights=(0.5, 0.5)), tmp_path / "merged")
    assert (merged.final.accuracy, merged.to_json()["unprotected"]["accuracies"]) == (None, [None, None])
    assert merged.certificate.assumptions[-1] == NONE
    with pytest.raises(MergeError, match="--weights: no public test records choose them; expected: one for each model"):
        merge_runs(MergeRequest(models, "linear-combination", 1e3, 1e-5), tmp_path / "combined")
    assert fedamp("report", run.folder, merged.folder.path, "--out", tmp_path / "page.html").status == 0
    assert fedamp("compare", run.folder, second.folder, merged.folder.path, "--out", tmp_path / "plots").status == 0
    assert fedamp("audit", place / "shops.yaml", "--repetitions", "20", "--rounds", "1").status == 0


def test_arrays_of_python_need_no_test_set():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 4)).astype(np.float32)
    data = {"name": "given", "classes": 2}
    scenario = package.load(
        {"data": data, "model": {"name": "logistic"}, "rounds": 2, "privacy": {"clip": 0.5, "noise_multiplier": 1.0}},
        data=(x, (x[:, 0] > 0).astype(int), np.repeat(np.arange(30), 3)),
    )
    assert not scenario.evaluates


def test_a_hopeless_model_is_found_without_public_records(place, tmp_path):
    """Records are made up in their place: what fails for every unit fails before the first round."""
    settings = {"client.learning_rate": 1e38, "client.steps": 5, "model": {"name": "mlp", "hidden": [8]}}
    with pytest.raises(InputError, match="hopeless: learning rate"):
        package.run(place / "shops.yaml", tmp_path / "run", **settings)
    with pytest.raises(package.errors.FederationError, match="an update of synthetic records"):
        package.run(place / "shops.yaml", tmp_path / "again", anyway=True, **settings)
