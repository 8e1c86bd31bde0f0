"""``fedamp merge`` on real runs: what it releases, what it certifies, and what it refuses."""

import hashlib
import json
import math
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedamp.accounting import from_json
from fedamp.accounting.arithmetic import delta_left
from fedamp.extensions.merging.merge import merge_runs
from fedamp.extensions.merging.weights import MergeRequest
from fedamp.federation.cost import privacy_cost
from fedamp.runs.checkpoint import checkpoints
from tests.accounting.oracles import gaussian_epsilon
from tests.chains import change_ledger, forge
from tests.documentation import commands, text
from tests.federations import small

SELECTION, COMBINATION = ("--method", "random-selection"), ("--method", "linear-combination")


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(name="command")
def command_fixture(fedamp, runs, tmp_path):
    """``fedamp merge`` of runs, by name or folder."""

    def command(models, method, epsilon, *more, out="merged"):
        folders = [runs[model] if isinstance(model, str) and "/" not in model else model for model in models]
        delta = () if "--delta" in more else ("--delta", "1e-5")
        return fedamp("merge", *folders, *method, *delta, "--epsilon", epsilon, *more, "--out", tmp_path / out)

    return command


@pytest.fixture
def merge(command):
    """What a merger prints with ``--json``."""

    def merge(*arguments, **out):
        answer = command(*arguments, "--json", **out)
        assert answer.status == 0, answer.err
        return json.loads(answer.out)

    return merge


@pytest.fixture
def refused(command, tmp_path):
    """The one line by which a merger is refused; it leaves no folder."""

    def refused(*arguments):
        answer = command(*arguments, out="refused")
        assert (answer.status, answer.err.count("\n")) == (2, 1), answer.err
        assert not (tmp_path / "refused").exists()
        return answer.err

    return refused


# --- random selection -------------------------------------------------------------------------------------------------

THREE = ("much", "little", "none")


@pytest.fixture
def selected(merge, runs, tmp_path):
    before = [contents(runs[name]) for name in THREE]
    answer = merge(THREE, SELECTION, 3)
    assert [contents(runs[name]) for name in THREE] == before
    return answer, tmp_path / "merged"


def test_selection_releases_one_of_the_models_within_the_budget(selected, runs):
    answer, out = selected
    files = {"certificate.json", "model.safetensors", "salt.secret", "summary.json"}
    assert {file.name for file in out.iterdir()} == files
    drawn = runs[answer["draw"]["model"].partition("@")[0]]
    assert (out / "model.safetensors").read_bytes() == (drawn / "model.safetensors").read_bytes()
    assert answer["epsilon"]["lower"] <= answer["epsilon"]["upper"] <= 3
    assert answer["epsilon"]["upper"] > 2.99  # "least private first" leaves next to nothing of the budget
    assert answer["weights"][2] == 0
    assert 0 < answer["weights"][1] < 0.1
    # The accountant charges less than the theorem, so the weight is a little larger than the theorem's.
    assert 1 <= answer["weights"][1] / answer["best_weights_by_accounting"]["privacy loss"][1] < 2
    assert answer["best_weights_by_accounting"]["Rényi divergences"][1] < answer["weights"][1]
    assert answer["inputs"][2]["epsilon_upper"] is None
    assert answer["has_known_seed"]
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["final"], summary["epsilon"]) == (answer["final"], answer["epsilon"])
    for model, accuracy in zip(THREE, answer["unprotected"]["accuracies"], strict=True):
        recorded = json.loads((runs[model] / "summary.json").read_text())["final"]["accuracy"]
        assert accuracy == pytest.approx(recorded)


def test_the_certificate_tells_nothing_of_models_that_are_not_released(selected, runs):
    answer, out = selected
    certified = (out / "certificate.json").read_text()
    certificate = json.loads(certified)
    assert certificate == {key: answer[key] for key in certificate}
    assert "accurac" not in certified.replace("Accuracy and loss are computed on a test set", "")
    drawn = answer["draw"]["model"].partition("@")[0]
    for name in THREE:
        last = json.loads((runs[name] / "ledger.json").read_text())["releases"][-1]["digest"]
        assert (last in certified) == (name == drawn)
        assert hashlib.sha256((runs[name] / "ledger.json").read_bytes()).hexdigest() not in certified


def test_an_auditor_can_check_the_inputs_and_the_cost(selected, runs):
    answer, out = selected
    salt = (out / "salt.secret").read_bytes()
    assert (out / "salt.secret").stat().st_mode & 0o077 == 0
    for name, model in zip(THREE, answer["inputs"], strict=True):
        ledger = (runs[name] / "ledger.json").read_bytes()
        assert hashlib.sha256(salt + ledger).hexdigest() == model["ledger_sha256_with_salt"]
    mechanism = from_json(answer["mechanism"])
    assert mechanism.epsilon(1e-5).upper == pytest.approx(answer["epsilon"]["upper"], rel=1e-3)


def test_the_published_seed_repeats_the_draw_and_given_weights_are_kept(merge, refused, runs, tmp_path):
    first = merge(("much", "little"), SELECTION, 6.5, "--weights", "0.5,0.5", out="first")
    models = str(runs["much"]), str(runs["little"])
    seed = int(first["draw"]["seed"])
    second = merge_runs(MergeRequest(models, SELECTION[1], 6.5, 1e-5, (0.5, 0.5), seed=seed), tmp_path / "second")
    assert second.certificate.draw.model == first["draw"]["model"]
    assert first["weights"] == list(second.certificate.weights) == [0.5, 0.5]
    assert (first["has_known_seed"], second.certificate.has_known_seed) == (True, True)
    assert any("without looking" in assumption for assumption in first["assumptions"])
    assert "a merged model" in refused((tmp_path / "first", "much"), SELECTION, 6.5)
    assert "more than the budget of 3" in refused(("much", "little"), SELECTION, 3, "--weights", "0.5,0.5")


def test_a_given_utility_chooses_the_weights(merge):
    assert merge(("much", "little"), SELECTION, 3, "--utility", "0.9,0.1")["weights"] == [1.0, 0.0]


def test_a_run_that_stopped_early_pays_for_its_rounds_alone(merge, runs):
    ledger = json.loads((runs["budget"] / "ledger.json").read_text())
    rounds = len(ledger["releases"])
    assert rounds < 8
    stopped, whole = merge(("budget", "much"), SELECTION, 2.2)["inputs"]
    assert (stopped["round"], whole["round"]) == (rounds, 8)
    assert stopped["epsilon_upper"] == from_json(ledger["mechanism"]).after(rounds).epsilon(1e-5).upper
    assert stopped["epsilon_upper"] <= ledger["releases"][-1]["epsilon_upper"] * (1 + 1e-9) < whole["epsilon_upper"]


def test_a_run_charged_without_amplification_pays_so(merge):
    inputs = merge(("uncharged", "much"), SELECTION, 9)["inputs"]
    # Three check-ins at noise multiplier 2, nothing hidden: one Gaussian that a unit moves by sqrt(3) / 2 deviations.
    assert inputs[0]["epsilon_upper"] == pytest.approx(gaussian_epsilon(1e-5, 2 / math.sqrt(3)), rel=5e-4)


def test_checkpoints_of_one_run_are_selected_from(merge, refused, runs):
    folder = runs["little"]
    early = int(checkpoints(folder / "checkpoint")[0].stem.removeprefix("round-"))
    assert early < 8
    first, last = merge((f"{folder}@{early}", folder), SELECTION, 5.9)["inputs"]
    assert (first["round"], last["round"]) == (early, 8)
    assert first["epsilon_upper"] <= last["epsilon_upper"]  # near the end a prefix's own bound may be above the whole's
    assert f"{folder}@{early}" in refused((f"{folder}@2", folder), SELECTION, 5.9)


# --- linear combination -----------------------------------------------------------------------------------------------


def test_combination_is_charged_as_the_release_of_all_models(merge, runs, tmp_path):
    content = merge(("one", "two"), COMBINATION, 9, "--weights", "0.25,0.75")
    # Three rounds at noise multipliers 3 and 6 (Theorem 6.1).
    exact = gaussian_epsilon(1e-5, 1 / math.sqrt(3 * (1 / 3**2 + 1 / 6**2)))
    assert exact <= content["epsilon"]["upper"] <= exact * 1.0005
    assert content["epsilon"]["lower"] == 0  # the sum may hide its parts
    assert not content["has_known_seed"]
    assert content["draw"] is None
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    parts = [load_file(runs[name] / "model.safetensors") for name in ("one", "two")]
    for name, array in merged.items():
        np.testing.assert_allclose(array, 0.25 * parts[0][name] + 0.75 * parts[1][name], rtol=1e-6, atol=1e-7)


def test_combination_chooses_the_best_weights_of_what_it_pays_for(merge, runs):
    both = merge(("one", "two"), COMBINATION, 9, out="both")
    assert both["final"]["accuracy"] >= max(both["unprotected"]["accuracies"])
    mechanism = from_json(json.loads((runs["one"] / "ledger.json").read_text())["mechanism"])
    most_expensive = mechanism.epsilon(delta_left(1e-5)).upper
    alone = merge(("one", "two"), COMBINATION, most_expensive * 1.001, out="alone")
    assert alone["weights"] == [1.0, 0.0]
    assert alone["epsilon"]["upper"] == most_expensive


def test_models_that_share_their_noise_are_not_combined(merge, refused, runs, tmp_path):
    copy = shutil.copytree(runs["one"], tmp_path / "copy")
    assert f"{copy} and {runs['one']} have a ledger in common" in refused(("one", copy), COMBINATION, 9)
    merge(("one", copy), SELECTION, 9)  # only one of them is released


def test_a_model_without_privacy_has_no_part_in_a_combination(merge, refused):
    assert "epsilon = inf" in refused(("one", "open"), COMBINATION, 9, "--weights", "0.5,0.5")
    content = merge(("one", "open"), COMBINATION, 9)
    assert content["weights"] == [1.0, 0.0]
    assert content["inputs"][1]["epsilon_upper"] is None


# --- what is refused --------------------------------------------------------------------------------------------------

ONE, PAIR = ("one", "two"), ("much", "little")
REFUSED = [
    # runs that do not go together
    (("much", "other-data"), SELECTION, 9, "another number of units"),
    (("much", "other-partition"), SELECTION, 9, "another data"),
    (("much", "other-seed"), SELECTION, 9, "partitioned by seed 4, not 3"),
    (("much", "other-unit"), SELECTION, 9, "another unit"),
    (("much", "other-group"), SELECTION, 9, "another group_size"),
    (("much", "other-model"), SELECTION, 9, "models of one shape"),
    (PAIR, COMBINATION, 9, "have a seed in common"),
    (("much",), SELECTION, 3, "2 to 12"),
    (("much", Path("gone")), SELECTION, 3, "no such run folder"),
    # bad requests
    (PAIR, SELECTION, 0, "--epsilon 0: expected: a number > 0"),
    (PAIR, SELECTION, "nan", "--epsilon nan"),
    (PAIR, SELECTION, 3, "--delta", 1, "--delta 1: expected"),
    (PAIR, ("--method", "average"), 3, "random-selection or linear-combination"),
    (PAIR, SELECTION, 0.5, "the most private model alone costs"),
    (ONE, COMBINATION, 3, "--utility", "1,2", "only with --method random-selection"),
    (PAIR, SELECTION, 3, "--weights", "0.5,0.6", "sum to 1"),
    (PAIR, SELECTION, 3, "--weights", "1.5,-0.5", "numbers >= 0"),
    (PAIR, SELECTION, 3, "--weights", "0.5", "1 numbers for 2 models"),
    (PAIR, SELECTION, 3, "--weights", "half,half", "--weights half,half: expected"),
    (PAIR, SELECTION, 3, "--utility", "best", "--utility best: expected: a number for each model"),
    (PAIR, SELECTION, 3, "--utility", "nan,1", "finite numbers"),
    (PAIR, SELECTION, 3, "--weights", "1,0", "--utility", "1,2", "expected: one of them"),
]


def test_runs_and_requests_that_do_not_fit_are_refused_in_one_line(refused, subtests):
    for *arguments, reason in REFUSED:
        with subtests.test(f"{arguments[0]}: {reason}"):
            assert reason in refused(*arguments)


def test_a_model_is_given_once(refused, runs):
    assert "given twice" in refused(("much", f"{runs['much']}@8"), SELECTION, 3)


def test_a_folder_that_holds_something_is_left_alone(command, tmp_path):
    (tmp_path / "mine").write_text("precious")
    answer = command(("much", "little"), SELECTION, 3, out="")
    assert answer.status == 2
    assert "not an empty folder" in answer.err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def change_adjacency(folder: Path) -> None:
    change_ledger(folder, lambda ledger: ledger.update(adjacency="one unit's data replaced by another's"))


def change_model(folder: Path) -> None:
    model = load_file(folder / "model.safetensors")
    save_file({name: array + 1 for name, array in model.items()}, folder / "model.safetensors")
    forge(folder)


def change_mechanism(folder: Path) -> None:
    change_ledger(folder, lambda ledger: ledger["mechanism"]["mechanism"].update(noise_multiplier=20.0))


def change_noise(folder: Path) -> None:
    """Ledger and summary agree on more noise than the scenario asked for."""
    change_mechanism(folder)
    change_ledger(folder, lambda ledger: ledger["parts"][-1].update(noise_multiplier=20.0))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"noise_multiplier": 20.0}))
    forge(folder)


def change_kind(folder: Path) -> None:
    ledger = json.loads((folder / "ledger.json").read_text())
    (folder / "ledger.json").write_text(json.dumps(ledger | {"mechanism": {"kind": "Magic"}}))


def remove_model(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


DAMAGES = [change_adjacency, change_model, change_mechanism, change_noise, change_kind, remove_model]


def test_damaged_inputs_are_refused(refused, runs, tmp_path, subtests):
    for damage in DAMAGES:
        with subtests.test(damage.__name__):
            folder = shutil.copytree(runs["little"], tmp_path / damage.__name__)
            damage(folder)
            reason = refused(("much", folder), SELECTION, 3)
            assert str(folder) in reason
            assert damage is not change_adjacency or "another adjacency" in reason


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_privacy_tells_what_groups_cost_where_it_is_cheap_or_asked_for():
    sampled = small("check_in={scheme: poisson, rate: 0.05}")
    answer = privacy_cost(sampled)
    assert [row["size"] for row in answer["groups"]] == [1, 2, 3, 5, 10]
    costs = [row["epsilon_upper"] for row in answer["groups"]]
    assert costs == sorted(costs)
    assert costs[0] == answer["epsilon"]["upper"]
    of_three = privacy_cost(small("check_in={scheme: poisson, rate: 0.05}", "privacy.group_size=3"))
    assert of_three["groups"] == answer["groups"]
    assert of_three["epsilon"]["upper"] == costs[2]
    assert privacy_cost(small())["groups"] is None
    hidden = privacy_cost(small("check_in.k=1"), groups=True)["groups"]
    # With all choices revealed: one check-in of five units together at noise multiplier 1.
    assert hidden[3]["epsilon_upper"] <= gaussian_epsilon(1e-5, 0.2) * 1.0005
    assert [row["epsilon_upper"] for row in privacy_cost(small("privacy.noise_multiplier=0"))["groups"]] == [None] * 5


# --- docs/research/merging.md
# --------------------------------------------------------------------------------------------------

PAGE = "docs/research/merging.md"


@pytest.mark.slow
def test_the_pages_commands_run(fedamp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in commands(PAGE):
        program, *arguments = shlex.split(command)
        assert program == "fedamp"
        answer = fedamp(*arguments)
        assert answer.status == 0, f"{command}\n{answer.err}"
    certificates = {
        name: json.loads((tmp_path / "runs" / name / "certificate.json").read_text())
        for name in ("selected", "given", "earlier", "combined")
    }
    for certificate in certificates.values():
        assert certificate["epsilon"]["upper"] <= certificate["budget_epsilon"]
    assert [model["round"] for model in certificates["earlier"]["inputs"]] == [3, 6]
    assert not certificates["combined"]["has_known_seed"]
    keys = set(re.findall(r"`(\w+)`", text(PAGE).partition("| key of `certificate.json` |")[2].partition("\n\n")[0]))
    documented = keys - {"certificate", "json", "ledger_sha256_with_salt", "from_json"}
    assert documented <= certificates["selected"].keys()
