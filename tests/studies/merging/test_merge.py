"""``fedamp merge`` on real runs: what it releases, what it certifies, and what it refuses."""

import hashlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.optimize import brentq
from scipy.stats import norm

from fedamp.accounting import from_json
from fedamp.federation.cost import privacy_cost
from fedamp.noise.gaussian import delta_left
from fedamp.runs.checkpoint import checkpoints
from fedamp.server.launch import launch
from tests.chains import change_ledger, forge
from tests.federations import Silent, small

SELECTION = ("--method", "random-selection", "--delta", "1e-5")
COMBINATION = ("--method", "linear-combination", "--delta", "1e-5")


def gaussian_epsilon(shift: float, delta: float = 1e-5) -> float:
    """Balle and Wang 2018, Theorem 8, for a Gaussian of deviation 1 that one unit moves by ``shift``."""

    def excess(epsilon):
        low, high = -shift / 2 - epsilon / shift, shift / 2 - epsilon / shift
        return norm.cdf(high) - math.exp(epsilon) * norm.cdf(low) - delta

    return brentq(excess, 0, 200, xtol=1e-12)


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# --- random selection -------------------------------------------------------------------------------------------------


@pytest.fixture
def selected(fedamp, runs, tmp_path):
    before = contents(runs["much"]) | contents(runs["little"]) | contents(runs["none"])
    out = tmp_path / "merged"
    answer = fedamp(
        "merge", runs["much"], runs["little"], runs["none"], *SELECTION, "--epsilon", 3, "--out", out, "--json"
    )
    assert answer.status == 0, answer.err
    assert contents(runs["much"]) | contents(runs["little"]) | contents(runs["none"]) == before
    return json.loads(answer.out), out


def test_selection_releases_one_of_the_models_within_the_budget(selected, runs):
    answer, out = selected
    assert {file.name for file in out.iterdir()} == {
        "certificate.json",
        "model.safetensors",
        "plots",
        "salt.secret",
        "summary.json",
    }
    names = [model["name"] for model in answer["inputs"]]
    drawn = (runs["much"], runs["little"], runs["none"])[names.index(answer["draw"]["model"])]
    assert (out / "model.safetensors").read_bytes() == (drawn / "model.safetensors").read_bytes()
    assert answer["epsilon"]["lower"] <= answer["epsilon"]["upper"] <= 3
    assert answer["epsilon"]["upper"] > 2.99  # "least private first" leaves next to nothing of the budget
    assert answer["weights"][2] == 0
    assert 0 < answer["weights"][1] < 0.1
    assert answer["weights"] == answer["best_weights_by_accounting"]["privacy loss"]
    assert answer["best_weights_by_accounting"]["Rényi divergences"][1] < answer["weights"][1]
    assert answer["inputs"][2]["epsilon_upper"] is None
    assert answer["has_known_seed"]
    assert len(list((out / "plots").glob("*.png"))) == 1
    summary = json.loads((out / "summary.json").read_text())
    assert summary["final"] == answer["final"]
    assert summary["epsilon"] == answer["epsilon"]
    for model, accuracy in zip(("much", "little", "none"), answer["unprotected"]["accuracies"], strict=True):
        recorded = json.loads((runs[model] / "summary.json").read_text())["final"]["accuracy"]
        assert accuracy == pytest.approx(recorded)


def test_the_certificate_tells_nothing_of_models_that_are_not_released(selected, runs):
    answer, out = selected
    text = (out / "certificate.json").read_text()
    certificate = json.loads(text)
    assert certificate == {key: answer[key] for key in certificate}
    assert "accurac" not in text.replace("Accuracy and loss are computed on a test set", "")
    drawn = answer["draw"]["model"].partition("@")[0]
    for name in ("much", "little", "none"):
        last = json.loads((runs[name] / "ledger.json").read_text())["releases"][-1]["digest"]
        assert (last in text) == (name == drawn)
        assert hashlib.sha256((runs[name] / "ledger.json").read_bytes()).hexdigest() not in text


def test_an_auditor_can_check_the_inputs_and_the_cost(selected, runs):
    answer, out = selected
    salt = (out / "salt.secret").read_bytes()
    assert (out / "salt.secret").stat().st_mode & 0o077 == 0
    for name, model in zip(("much", "little", "none"), answer["inputs"], strict=True):
        ledger = (runs[name] / "ledger.json").read_bytes()
        assert hashlib.sha256(salt + ledger).hexdigest() == model["ledger_sha256_with_salt"]
    mechanism = from_json(answer["mechanism"])
    assert mechanism.epsilon(1e-5).upper == pytest.approx(answer["epsilon"]["upper"], rel=1e-3)


def test_a_seed_repeats_the_draw_and_given_weights_are_kept(fedamp, runs, tmp_path):
    models = ("merge", runs["much"], runs["little"])
    draws = []
    for name in ("first", "second"):
        answer = fedamp(
            *models, *SELECTION, "--epsilon", 6.5, "--weights", "0.5,0.5", "--seed", 3, "--out", tmp_path / name
        )
        assert answer.status == 0, answer.err
        certificate = json.loads((tmp_path / name / "certificate.json").read_text())
        draws.append(certificate["draw"])
        assert certificate["weights"] == [0.5, 0.5]
        assert any("without looking" in assumption for assumption in certificate["assumptions"])
    assert draws[0] == draws[1]
    again = fedamp("merge", tmp_path / "first", runs["much"], *SELECTION, "--epsilon", 6.5)
    assert again.status == 2
    assert "a merged model" in again.err
    too_much = fedamp(*models, *SELECTION, "--epsilon", 3, "--weights", "0.5,0.5", "--out", tmp_path / "third")
    assert too_much.status == 2
    assert "more than the budget of 3" in too_much.err
    assert not (tmp_path / "third").exists()


def test_accuracies_choose_weights_only_where_they_are_said_to_be_public(fedamp, runs, tmp_path):
    command = ("merge", runs["much"], runs["little"], *SELECTION, "--epsilon", 3, "--utility", "accuracy")
    refused = fedamp(*command, "--out", tmp_path / "merged")
    assert refused.status == 2
    assert "--assume-public-accuracies" in refused.err
    answer = fedamp(*command, "--out", tmp_path / "merged", "--assume-public-accuracies", "--json")
    content = json.loads(answer.out)
    assert any("--assume-public-accuracies" in assumption for assumption in content["assumptions"])
    first = fedamp(*command[:-1], "most-accurate-first", "--out", tmp_path / "first")
    assert first.status == 2
    assert "--utility most-accurate-first" in first.err
    first = fedamp(
        *command[:-1], "most-accurate-first", "--assume-public-accuracies", "--out", tmp_path / "first", "--json"
    )
    assert json.loads(first.out)["weights"] == content["weights"]  # two models: the same weights are best
    stated = fedamp(
        "merge", runs["much"], runs["little"], *SELECTION, "--epsilon", 3, "--utility", "0.9,0.1", "--json",
        "--out", tmp_path / "stated",
    )  # fmt: skip
    assert json.loads(stated.out)["weights"] == [1.0, 0.0]


def test_a_run_that_stopped_early_pays_for_its_rounds_alone(fedamp, runs, tmp_path):
    ledger = json.loads((runs["budget"] / "ledger.json").read_text())
    rounds = len(ledger["releases"])
    assert rounds < 8
    out = tmp_path / "merged"
    answer = fedamp("merge", runs["budget"], runs["much"], *SELECTION, "--epsilon", 2.2, "--out", out, "--json")
    stopped, whole = json.loads(answer.out)["inputs"]
    assert (stopped["round"], whole["round"]) == (rounds, 8)
    assert stopped["epsilon_upper"] == from_json(ledger["mechanism"]).after(rounds).epsilon(1e-5).upper
    assert stopped["epsilon_upper"] <= ledger["releases"][-1]["epsilon_upper"] * (1 + 1e-9) < whole["epsilon_upper"]


def test_a_run_charged_without_amplification_pays_so(fedamp, runs, tmp_path):
    answer = fedamp(
        "merge", runs["uncharged"], runs["much"], *SELECTION, "--epsilon", 9, "--out", tmp_path / "merged", "--json"
    )
    # Three check-ins at noise multiplier 2, nothing hidden: one Gaussian that a unit moves by sqrt(3) / 2 deviations.
    exact = gaussian_epsilon(math.sqrt(3) / 2)
    assert json.loads(answer.out)["inputs"][0]["epsilon_upper"] == pytest.approx(exact, rel=5e-4)


def test_checkpoints_of_one_run_are_selected_from(fedamp, runs, tmp_path):
    folder = runs["little"]
    early = int(checkpoints(folder / "checkpoint")[0].stem.removeprefix("round-"))
    assert early < 8
    answer = fedamp(
        "merge", f"{folder}@{early}", folder, *SELECTION, "--epsilon", 5.9, "--out", tmp_path / "merged", "--json"
    )
    first, last = json.loads(answer.out)["inputs"]
    assert (first["round"], last["round"]) == (early, 8)
    assert first["epsilon_upper"] <= last["epsilon_upper"]  # near the end a prefix's own bound may be above the whole's
    missing = fedamp("merge", f"{folder}@2", folder, *SELECTION, "--epsilon", 5.9)
    assert missing.status == 2
    assert f"{folder}@{early}" in missing.err


# --- linear combination -----------------------------------------------------------------------------------------------


def test_combination_is_charged_as_the_release_of_all_models(fedamp, runs, tmp_path):
    answer = fedamp(
        "merge", runs["one"], runs["two"], *COMBINATION, "--epsilon", 9, "--weights", "0.25,0.75",
        "--out", tmp_path / "merged", "--json",
    )  # fmt: skip
    content = json.loads(answer.out)
    # Three rounds at noise multipliers 3 and 6 (Theorem 6.1).
    exact = gaussian_epsilon(math.sqrt(3 * (1 / 3**2 + 1 / 6**2)))
    assert exact <= content["epsilon"]["upper"] <= exact * 1.0005
    assert content["epsilon"]["lower"] == 0  # the sum may hide its parts
    assert not content["has_known_seed"]
    assert content["draw"] is None
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    parts = [load_file(runs[name] / "model.safetensors") for name in ("one", "two")]
    for name, array in merged.items():
        np.testing.assert_allclose(array, 0.25 * parts[0][name] + 0.75 * parts[1][name], rtol=1e-6, atol=1e-7)


def test_combination_chooses_the_best_weights_of_what_it_pays_for(fedamp, runs, tmp_path):
    command = ("merge", runs["one"], runs["two"], *COMBINATION, "--json")
    both = json.loads(fedamp(*command, "--epsilon", 9, "--out", tmp_path / "both").out)
    assert both["final"]["accuracy"] >= max(both["unprotected"]["accuracies"])
    mechanism = from_json(json.loads((runs["one"] / "ledger.json").read_text())["mechanism"])
    most_expensive = mechanism.epsilon(delta_left(1e-5)).upper
    alone = json.loads(fedamp(*command, "--epsilon", most_expensive * 1.001, "--out", tmp_path / "alone").out)
    assert alone["weights"] == [1.0, 0.0]
    assert alone["epsilon"]["upper"] == most_expensive


def test_the_charge_per_step_needs_its_assumption(fedamp, runs, tmp_path):
    command = (
        "merge", runs["one"], runs["two"], *COMBINATION, "--epsilon", 9, "--weights", "0.25,0.75", "--json",
        "--assume-data-independent-gradients",
    )  # fmt: skip
    content = json.loads(fedamp(*command, "--out", tmp_path / "steps").out)
    # In one step a unit moves the sum by 0.25 + 0.75 under noise of deviation hypot(0.25 * 3, 0.75 * 6).
    exact = gaussian_epsilon(math.sqrt(3) / math.hypot(0.25 * 3, 0.75 * 6))
    assert exact <= content["epsilon"]["upper"] <= exact * 1.0005
    assert any("--assume-data-independent-gradients" in assumption for assumption in content["assumptions"])
    assert content["mechanism"]["assumption"] == "gradients do not depend on the models"
    # The same rounds at half the server's learning rate move the sum half as far.
    slow = fedamp(*command[:1], runs["slow"], *command[2:], "--out", tmp_path / "slow")
    exact = gaussian_epsilon(math.sqrt(3) * (0.125 + 0.75) / math.hypot(0.125 * 3, 0.75 * 6))
    assert json.loads(slow.out)["epsilon"]["upper"] == pytest.approx(exact, rel=5e-4)


NOT_PER_STEP = [
    (("one", "rolling"), ("--weights", "0.5,0.5"), "one server.momentum"),
    (("one", "sampled"), (), "--assume-public-accuracies"),
    (("much", "little"), (), "same seed"),
]


def test_the_charge_per_step_is_refused_where_it_does_not_hold(fedamp, runs, tmp_path, subtests):
    for models, more, reason in NOT_PER_STEP:
        with subtests.test(reason):
            folders = [runs[name] for name in models]
            answer = fedamp(
                "merge", *folders, *COMBINATION, "--epsilon", 9, *more, "--assume-data-independent-gradients",
                "--out", tmp_path / "merged",
            )  # fmt: skip
            assert answer.status == 2
            assert reason in answer.err
            assert not (tmp_path / "merged").exists()


def test_models_that_share_their_noise_are_not_combined(fedamp, runs, tmp_path):
    known = fedamp("merge", runs["much"], runs["little"], *COMBINATION, "--epsilon", 9)
    copy = shutil.copytree(runs["one"], tmp_path / "copy")
    copied = fedamp("merge", runs["one"], copy, *COMBINATION, "--epsilon", 9)
    for answer in (known, copied):
        assert answer.status == 2
        assert "draw their noise from the same seed" in answer.err
    selected = fedamp("merge", runs["one"], copy, *SELECTION, "--epsilon", 9, "--out", tmp_path / "merged")
    assert selected.status == 0  # only one of them is released


# --- what is refused --------------------------------------------------------------------------------------------------


STRANGERS = [
    ("other-data", "another number of units"),
    ("other-partition", "another data"),
    ("other-seed", "dealt from seed 4, not 3"),
    ("other-unit", "another unit"),
    ("other-group", "another group_size"),
    ("other-model", "models of one shape"),
]


def test_runs_that_do_not_go_together_are_refused_in_one_line(fedamp, runs, subtests):
    for other, reason in STRANGERS:
        with subtests.test(other):
            answer = fedamp("merge", runs["much"], runs[other], *SELECTION, "--epsilon", 9)
            assert answer.status == 2
            assert reason in answer.err
            assert str(runs[other]) in answer.err
            assert answer.err.count("\n") == 1


def test_another_adjacency_is_refused(fedamp, runs, tmp_path):
    folder = shutil.copytree(runs["little"], tmp_path / "run")
    change_ledger(folder, lambda ledger: ledger.update(adjacency="one unit's data replaced by another's"))
    answer = fedamp("merge", runs["much"], folder, *SELECTION, "--epsilon", 3, "--out", tmp_path / "merged")
    assert answer.status == 2
    assert "another adjacency" in answer.err
    assert not (tmp_path / "merged").exists()


def test_a_model_without_privacy_has_no_part_in_a_combination(fedamp, runs, tmp_path):
    out = ("--out", tmp_path / "merged")
    command = ("merge", runs["one"], runs["open"], *COMBINATION, "--epsilon", 9)
    given = fedamp(*command, "--weights", "0.5,0.5", *out)
    assert given.status == 2
    assert "epsilon = inf" in given.err
    answer = fedamp(*command, *out, "--json")
    content = json.loads(answer.out)
    assert content["weights"] == [1.0, 0.0]
    assert content["inputs"][1]["epsilon_upper"] is None
    assert answer.err == ""


BAD_REQUESTS = [
    ((*SELECTION, "--epsilon", 0), "--epsilon 0: expected: a number > 0"),
    ((*SELECTION, "--epsilon", "nan"), "--epsilon nan"),
    (("--method", "random-selection", "--delta", 1, "--epsilon", 3), "--delta 1: expected"),
    (("--method", "average", "--delta", 1e-5, "--epsilon", 3), "random-selection or linear-combination"),
    ((*SELECTION, "--epsilon", 0.5), "the most private model alone costs"),
    ((*COMBINATION, "--epsilon", 3, "--utility", "least-private"), "--utility: accepted"),
    ((*SELECTION, "--epsilon", 3, "--weights", "0.5,0.6"), "sum to 1"),
    ((*SELECTION, "--epsilon", 3, "--weights", "1.5,-0.5"), "numbers >= 0"),
    ((*SELECTION, "--epsilon", 3, "--weights", "0.5"), "1 numbers for 2 models"),
    ((*SELECTION, "--epsilon", 3, "--weights", "half,half"), "--weights half,half: expected"),
    ((*SELECTION, "--epsilon", 3, "--utility", "best"), "--utility best: expected: least-private"),
    ((*SELECTION, "--epsilon", 3, "--utility", "nan,1"), "finite numbers"),
    ((*SELECTION, "--epsilon", 3, "--weights", "1,0", "--utility", "accuracy"), "expected: one of them"),
    ((*SELECTION, "--epsilon", 3, "--assume-data-independent-gradients"), "with --method linear-combination"),
    ((*SELECTION, "--epsilon", 3, "--seed", -1), "--seed -1"),
]


def test_bad_requests_are_refused_in_one_line(fedamp, runs, tmp_path, subtests):
    for arguments, reason in BAD_REQUESTS:
        with subtests.test(reason):
            models = (runs["one"], runs["two"]) if "linear-combination" in arguments else (runs["much"], runs["little"])
            answer = fedamp("merge", *models, *arguments, "--out", tmp_path / "merged")
            assert answer.status == 2
            assert reason in answer.err
            assert answer.err.count("\n") == 1
            assert not (tmp_path / "merged").exists()


def test_a_folder_that_holds_something_is_left_alone(fedamp, runs, tmp_path):
    (tmp_path / "mine").write_text("precious")
    answer = fedamp("merge", runs["much"], runs["little"], *SELECTION, "--epsilon", 3, "--out", tmp_path)
    assert answer.status == 2
    assert "not an empty folder" in answer.err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_models_are_named_once_and_there_are_two_or_more(fedamp, runs, tmp_path):
    assert "2 to 12" in fedamp("merge", runs["much"], *SELECTION, "--epsilon", 3).err
    assert "given twice" in fedamp("merge", runs["much"], f"{runs['much']}@8", *SELECTION, "--epsilon", 3).err
    assert "no such run folder" in fedamp("merge", runs["much"], tmp_path / "gone", *SELECTION, "--epsilon", 3).err


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


DAMAGES = [change_model, change_mechanism, change_noise, change_kind, remove_model]


def test_damaged_inputs_are_refused(fedamp, runs, tmp_path_factory, subtests):
    for damage in DAMAGES:
        with subtests.test(damage.__name__):
            tmp_path = tmp_path_factory.mktemp("damaged")
            folder = shutil.copytree(runs["little"], tmp_path / "run")
            damage(folder)
            answer = fedamp("merge", runs["much"], folder, *SELECTION, "--epsilon", 3, "--out", tmp_path / "merged")
            assert answer.status == 2, answer.err
            assert str(folder) in answer.err
            assert answer.err.count("\n") == 1


# --- runs with a secret seed, and groups ------------------------------------------------------------------------------


def test_a_secret_seed_is_kept_for_the_owner_alone_and_resumed_from(fedamp, runs, tmp_path):
    class Impatient(Silent):
        def round_done(self, record) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    scenario = small("rounds=4", "known_seed=false")
    folder = tmp_path / "run"
    with pytest.raises(Exception, match="go on with"):
        launch(scenario, Impatient(), folder)
    seed = folder / "seed.secret"
    assert seed.stat().st_mode & 0o077 == 0
    kept = seed.read_text()
    launch(scenario, Silent(), folder, resume=True)
    ledger = json.loads((folder / "ledger.json").read_text())
    assert seed.read_text() == kept
    assert ledger["noise_seed"] == "from the operating system"
    assert len(ledger["releases"]) == 4
    first = [json.loads((path / "ledger.json").read_text())["releases"][0] for path in (folder, runs["much"])]
    assert first[0]["digest"] != first[1]["digest"]


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
    hidden = privacy_cost(small(), groups=True)["groups"]
    # With all choices revealed: three check-ins of five units together at noise multiplier 1.
    assert hidden[3]["epsilon_upper"] <= gaussian_epsilon(math.sqrt(3) * 5) * 1.0005
    assert [row["epsilon_upper"] for row in privacy_cost(small("privacy.noise_multiplier=0"))["groups"]] == [None] * 5
