"""``fedamp verify``: a ledger that says less than its releases cost, or not what lies beside it, is found out."""

import json
import shutil

import numpy as np
import pytest

from fedamp.accounting.sampling import PRECISION
from fedamp.accounting.verify import FROM_SYSTEM
from fedamp.errors import RunFolderError
from fedamp.runs.ledger import WRITTEN_BY
from fedamp.runs.records import KNOWN_SEED
from fedamp.runs.run import read_run
from fedamp.runs.verification import verify_ledger
from fedamp.server.launch import launch
from tests.chains import change_ledger, forge
from tests.federations import Silent, small
from tests.server.plays import play_in

KINDS = {
    "balanced": (),
    "budget": (f"privacy={{clip: 0.5, epsilon: 2, noise_multiplier: auto, precision: {PRECISION}}}",),
    "budget stops it": ("privacy={clip: 0.5, epsilon: 4, noise_multiplier: 1.0}",),
    "poisson groups": ("check_in={scheme: poisson, rate: 0.2}", "privacy.group_size=2"),
    "submodels": ("model={name: mlp, hidden: [8]}", "submodels={scheme: disjoint, count: 2}"),
    "mixing": ("mixing={width: [[1, 0.4], [3, 0.2]]}", "server={learning_rate: 0.5}"),
    "stratified, not amplified": ("check_in={scheme: stratified, k: 2}", "privacy.amplification=false"),
    "adaptive": ("privacy.clip={initial: 0.1}",),
    "precise": ("privacy.precision=0.002",),
    "coarse": ("privacy.precision=0.1",),
    "no privacy": ("privacy={clip: 0.5, noise_multiplier: 0}",),
}


def play(folder, *overrides):
    play_in(folder, small("rounds=5", "check_in.k=2", *overrides))
    return folder


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return play(tmp_path_factory.mktemp("verify") / "run", f"privacy.precision={PRECISION}")


@pytest.fixture
def run(played, tmp_path):
    return shutil.copytree(played, tmp_path / "run")


def test_the_ledger_holds_a_precision_that_is_not_the_default(tmp_path, run):
    assert "precision" not in json.loads((run / "ledger.json").read_text())
    coarse = play(tmp_path / "coarse", "privacy.precision=0.1")
    ledger = json.loads((coarse / "ledger.json").read_text())
    assert ledger["precision"] == 0.1
    assert 0.002 < ledger["whole_run_epsilon"]["upper"] / ledger["whole_run_epsilon"]["lower"] - 1 < 0.2
    change_ledger(coarse, lambda ledger: ledger.pop("precision"))
    assert "precision" in wrong(coarse)["scenario"]


def wrong(path) -> dict[str, str]:
    return {check.name: check.found for check in verify_ledger(path) if check.verdict == "fail"}


@pytest.mark.few(0, 1, 2, 3, 6, 7, 9, 10)
@pytest.mark.parametrize("overrides", KINDS.values(), ids=KINDS)
def test_what_fedamp_wrote_is_fine(tmp_path, overrides):
    run = play(tmp_path / "run", *overrides)
    checks = verify_ledger(run)
    assert {check.name: check.verdict for check in checks if not check.passed} == {"noise": "caution"}
    assert [check.name for check in checks][-2:] == ["scenario", "model"]
    (run / "model.safetensors").unlink()
    if "privacy.amplification=false" in overrides:
        (run / "scenario.yaml").rename(tmp_path / "kept.yaml")
        assert list(wrong(run)) == ["releases"]  # what it cannot know, it does not confirm
    else:
        (run / "scenario.yaml").unlink()
        assert wrong(run / "ledger.json") == {}


def of(*keys, to):
    """A change of one value, by a function of the old one."""

    def change(ledger):
        *path, last = keys
        section = ledger
        for key in path:
            section = section[key]
        section[last] = to(section[last])

    return change


TAMPERED = [
    (of("releases", 2, "epsilon_upper", to=lambda e: e * 0.999), {"releases": "round 3: epsilon_upper is"}),
    (
        of("releases", to=lambda all_: all_[1:]),
        {"rounds": "not 1, 2, 3", "guarantee": None, "chain": "line 1: not as it was"},
    ),
    (
        of("releases", to=lambda all_: all_[:-1]),
        {
            "model": "not the one that the last release names",
            "guarantee": "stopped_because is finished, but after round 4",
            "chain": "line 5 belongs to no release",
        },
    ),
    (of("guaranteed_epsilon", to=lambda e: e * 0.999), {"guarantee": "guaranteed_epsilon is"}),
    (of("noise_seed", to=lambda words: FROM_SYSTEM), {"scenario": "another noise_seed"}),
    (of("releases", to=lambda all_: [*all_, all_[-1] | {"round": 6}]), {"rounds": "each once, up to at most 5"}),
    (of("releases", 4, "digest", to=lambda d: "0" * 64), {"model": "not the one that the last release names"}),
    (of("whole_run_epsilon", "upper", to=lambda e: e / 2), {"whole run": "computed again it is"}),
    (
        of("delta", to=lambda d: d / 100),
        {"whole run": None, "releases": None, "guarantee": None, "scenario": "another delta"},
    ),
    (of("mechanism_in_words", to=lambda w: w + "!"), {"mechanism": "says another one than"}),
    (of("parts", 0, "noise_multiplier", to=lambda s: 2 * s), {"mechanism": "is not in it", "scenario": "parts"}),
    (
        of("budget_epsilon", to=lambda e: 0.5),
        {"budget": "exceeds 0.5", "scenario": "budget_epsilon", "guarantee": None},
    ),
    (of("group_size", to=lambda k: 7), {"scenario": "another group_size"}),
    (of("scenario_sha256", to=lambda h: "0" * 64), {"scenario": "another scenario_sha256"}),
]


def test_what_was_tampered_with_is_named(played, tmp_path_factory, subtests):
    for change, found in TAMPERED:
        with subtests.test(str(found)):
            run = shutil.copytree(played, tmp_path_factory.mktemp("tampered") / "run")
            change_ledger(run, change)  # and its chain with it
            complaints = wrong(run)
            complaints.pop("claim", None)  # summary.json says still what was
            expected = {name for name, text in found.items() if text is not None}
            assert expected <= complaints.keys() <= found.keys()
            for name in expected:
                assert found[name] in complaints[name]


def test_samples_of_another_version_are_refuted_only_below_the_bracket(played, tmp_path):
    """This version's own number is held to a millionth: draws follow from the question."""
    for version, factor, verdict in (
        ("fedamp 0.0.1", 0.9999, "caution"),
        ("fedamp 0.0.1", 0.98, "fail"),
        (WRITTEN_BY, 0.9999, "fail"),
    ):
        run = shutil.copytree(played, tmp_path / f"{factor} {version}")
        change_ledger(run, of("written_by", to=lambda _, version=version: version))
        change_ledger(run, of("releases", 2, "epsilon_upper", to=lambda e, factor=factor: e * factor))
        (found,) = [check for check in verify_ledger(run) if check.name == "releases"]
        assert found.verdict == verdict, found


SECURE = "aggregation={scheme: secure, dropped: 0.2, colluding: 0.2}"
BANDED = "privacy={clip: 0.5, noise_multiplier: 1.5, noise: {scheme: banded, bands: 3}}"
MORE_KINDS = KINDS | {
    "spaced": ("check_in={scheme: spaced, k: 2, gap: 3}", "rounds=8", BANDED),
    "classes": ("check_in={scheme: classes, k: 1, classes: 3}", "rounds=6", BANDED),
    "secure": (SECURE,),
    "nodes that see who checks in": ("federation.hosts=trusted", "check_in={scheme: poisson, rate: 0.3}"),
    "secure, drawn by nodes": (SECURE, "check_in={scheme: poisson, rate: 0.3, drawn_by: node}"),
}
UPPER_ENDS = ("upper", "guaranteed_epsilon", "epsilon_upper")


def numbers(content: object, *path: object):
    """The path and value of every number in some JSON."""
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from numbers(value, *path, key)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield path, content


def changed(value: float) -> tuple[float, ...]:
    """A smaller and a larger number of the same type."""
    return (value - 1, value + 1) if isinstance(value, int) else (value * 0.9, value * 1.1 or 0.1)


def slow_unless(*names: str):
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in MORE_KINDS]


@pytest.mark.parametrize("kind", slow_unless("balanced", "secure"))
def test_no_number_of_a_ledger_can_be_another_one(kind, tmp_path):
    """A forger who makes the chain anew is found by the scenario; only an epsilon may be said too large."""
    run = play(tmp_path / "run", *MORE_KINDS[kind])
    text = (run / "ledger.json").read_text()
    expected = {check.name: check.verdict for check in verify_ledger(run)}
    paths = [(path, value) for path, value in numbers(json.loads(text)) if path[0] != "releases" or path[1] == 1]
    assert {"units", "group_size", "parts", "delta", "rounds_planned"} <= {path[0] for path, _ in paths}
    for path, value in paths:
        for other in changed(value):
            if other == value or (path[-1] in UPPER_ENDS and other > value):
                continue
            (run / "ledger.json").write_text(text)
            change_ledger(run, of(*path, to=lambda _, other=other: other))
            try:
                found = {check.name: check.verdict for check in verify_ledger(run)}
            except RunFolderError:
                continue
            found.pop("claim", None), expected.pop("claim", None)  # summary.json says still what was
            assert found != expected, (path, value, other)


def test_the_ledger_alone_says_what_it_does_not_show(fedamp, run):
    (run / "scenario.yaml").unlink()
    answer = fedamp("verify", run / "ledger.json")
    assert answer.status == 0
    assert "scenario.yaml is not here: units, group_size, clips, denominators" in " ".join(answer.err.split())


def test_a_server_that_sees_less_than_the_parts_say_is_found_without_the_scenario(tmp_path):
    run = play(tmp_path / "run", SECURE)

    def forged(ledger: dict) -> None:
        text = json.dumps(ledger["server_mechanism"]).replace('"noise_multiplier": 1.0', '"noise_multiplier": 50.0')
        ledger["server_mechanism"] = json.loads(text)
        ledger["epsilon_server"] = {"lower": 0.0, "upper": 0.05}

    change_ledger(run, forged)
    (run / "scenario.yaml").unlink()
    assert "is not in server_mechanism" in wrong(run)["mechanism"]


def with_ledger_of(run, other, **also) -> str:
    """The run's folder with another run's ledger, in which every number goes together; what the scenario check says."""
    kept = {key: json.loads((run / "ledger.json").read_text())[key] for key in ("budget_epsilon", "scenario_sha256")}
    shutil.copy(other / "ledger.json", run / "ledger.json")
    (run / "model.safetensors").unlink(missing_ok=True)
    change_ledger(run, lambda ledger: ledger.update(kept | also))
    [check] = [check for check in verify_ledger(run) if check.name == "scenario"]
    return f"{check.verdict}: {check.found}"


def test_noise_of_auto_that_costs_less_than_the_budget_is_refused(tmp_path):
    """Parts, mechanism and every epsilon go together, and the scenario leaves the noise to auto."""
    auto = play(tmp_path / "auto", *KINDS["budget"])
    other = play(tmp_path / "other", KINDS["budget"][0].replace("epsilon: 2", "epsilon: 1"))
    said = with_ledger_of(auto, other)
    assert said.startswith("fail: 0.99")
    assert "what auto chooses costs 1.99" in said
    assert with_ledger_of(auto, other, written_by="fedamp 0.0.1").startswith("fail: ")


def test_an_auto_by_a_looser_bound_of_another_version_is_told(tmp_path):
    """It has more noise than this version needs. The cost that it says is still the budget."""
    auto = play(tmp_path / "auto", *KINDS["budget"])
    noise = json.loads((auto / "ledger.json").read_text())["parts"][0]["noise_multiplier"]
    louder = f"privacy={{clip: 0.5, noise_multiplier: {1.1 * noise}, precision: {PRECISION}}}"
    other = play(tmp_path / "other", louder)
    budget = {"whole_run_epsilon": {"lower": 1.0, "upper": 2.0}}
    assert "another " not in with_ledger_of(auto, other, written_by="fedamp 0.0.1", **budget)
    assert with_ledger_of(auto, other, written_by="fedamp 0.0.1", **budget).startswith("caution: 2, for noise")
    assert with_ledger_of(auto, other, **budget).startswith("fail: 2, for noise")  # this version chooses less
    assert with_ledger_of(auto, other, written_by="fedamp 0.0.1").startswith("fail: 1.")


def test_a_clip_that_auto_of_another_version_chose_is_told_and_costs_the_same(tmp_path):
    run = play(tmp_path / "run", "privacy={clip: auto, noise_multiplier: 2}")
    change_ledger(run, of("parts", 0, "clip", to=lambda clip: 2 * clip))
    [check] = [check for check in verify_ledger(run) if check.name == "scenario"]
    assert (check.verdict, check.found.partition(" chose")[0]) == ("caution", "clip: auto")
    fixed = play(tmp_path / "fixed", "privacy={clip: 0.5, noise_multiplier: 2}")
    change_ledger(fixed, of("parts", 0, "clip", to=lambda clip: 2 * clip))
    assert {check.verdict for check in verify_ledger(fixed) if check.name == "scenario"} == {"fail"}


@pytest.mark.slow
def test_bands_of_auto_that_cost_less_are_refused(tmp_path):
    """Smaller coefficients are charged less, at the noise multiplier that the scenario gives."""
    spaced = ("check_in={scheme: spaced, k: 2, gap: 3}", "rounds=6")
    run = play(tmp_path / "run", *spaced, BANDED)
    other = play(tmp_path / "other", *spaced, BANDED.replace("bands: 3", "bands: 3, coefficients: [0.1, 0.05]"))
    for version in (WRITTEN_BY, "fedamp 0.0.1"):
        assert "what auto chooses costs" in with_ledger_of(run, other, written_by=version)
    assert wrong(run).keys() - {"claim", "chain"} == {"scenario"}  # summary.json and lines are the run's own


@pytest.mark.parametrize("share", [0.5, 0.9999, 1.0001])
def test_epsilon_of_rounds_is_that_of_the_ledger(run, share):
    """Otherwise a report draws another curve than the one that was charged."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    lines[2]["epsilon_upper"] *= share
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    forge(run)
    assert wrong(run).keys() == {"claim"}
    assert "rounds.jsonl: round 3: epsilon_upper: " in wrong(run)["claim"]
    with pytest.raises(RunFolderError, match="round 3: epsilon_upper"):
        read_run(run)


def test_a_private_run_has_a_guarantee_and_another_has_none(tmp_path, run):
    change_ledger(run, of("guaranteed_epsilon", to=lambda e: None))
    assert "guaranteed_epsilon is None; computed again" in wrong(run)["guarantee"]
    loud = play(tmp_path / "loud", *KINDS["no privacy"])
    change_ledger(loud, of("guaranteed_epsilon", to=lambda e: 3.0))
    assert "computed again it is infinite" in wrong(loud)["guarantee"]


def test_an_evaluation_that_nobody_charged_is_found(run):
    found = {"round": 5, "units": 60.0, "deviation": 1.0, "sums": [1.0, 2.0], "estimates": []}
    change_ledger(run, lambda ledger: ledger.update(final_evaluation=found))
    assert "an evaluation was released that is not in it" in wrong(run)["mechanism"]


def test_units_that_the_scenario_says_are_compared(tmp_path, run):
    change_ledger(run, of("units", to=lambda units: 2 * units))
    assert "units" in wrong(run)["scenario"]
    np.savez(tmp_path / "train.npz", x=np.eye(8), y=np.arange(8) % 2, client=np.arange(8) // 2)
    natural = f"data={{name: npz, path: {tmp_path}, classes: 2, partition: {{scheme: natural}}}}"
    own = launch(small(natural, "rounds=2", "check_in={scheme: all}"), Silent(), tmp_path / "own")
    [check] = [check for check in verify_ledger(own) if check.name == "scenario"]
    assert (check.verdict, "for 4 units as the ledger says" in check.found) == ("pass", True)


def test_less_noise_than_the_ledger_says_is_found_by_the_scenario(run):
    """Every number of the ledger goes together, but for another noise than the scenario's."""
    other = play(run.parent / "other", "privacy.noise_multiplier=3", f"privacy.precision={PRECISION}")
    shutil.copy(other / "ledger.json", run / "ledger.json")
    (run / "model.safetensors").unlink()
    assert "another scenario_sha256, parts, mechanism" in wrong(run)["scenario"]


def test_another_version_may_have_other_words_for_the_same_mechanism(run):
    change_ledger(run, of("mechanism_in_words", to=lambda words: f"the {words}"))
    change_ledger(run, of("written_by", to=lambda version: "fedamp 0.0.1"))
    assert wrong(run) == {}


def test_a_number_that_is_too_large_is_said_and_harmless(run):
    change_ledger(run, of("whole_run_epsilon", "upper", to=lambda e: e * 2))
    [check] = [check for check in verify_ledger(run) if check.name == "whole run"]
    assert check.passed
    assert "computed again it is less" in check.found


def test_a_model_that_is_gone_is_told_and_cannot_be_released(fedamp, run, tmp_path):
    (run / "model.safetensors").unlink()
    answer = fedamp("verify", run)
    assert answer.status == 0
    assert "; model: model.safetensors is not here" in answer.err
    answer = fedamp("release", run, "--out", tmp_path / "out", "--key", tmp_path / "key")
    assert answer.status == 2
    assert answer.err.startswith(f"error: {run}/model.safetensors: cannot be read or written (No such file")
    assert not (tmp_path / "out").exists()


def test_the_command_says_in_one_line_what_differs(fedamp, run):
    answer = fedamp("verify", run)
    assert answer.status == 0
    assert answer.err == f"caution: {run}: noise: {KNOWN_SEED}\n"
    assert "is the one of round 5" in answer.out
    change_ledger(run, of("releases", 2, "epsilon_upper", to=lambda e: e / 2))
    answer = fedamp("verify", run, "--json")
    assert answer.status == 1
    caution, wrong = answer.err.splitlines()
    assert caution.startswith("caution: ")
    assert wrong.startswith(f"failed: {run}: releases: round 3: epsilon_upper is ")
    found = json.loads(answer.out)
    assert (found["verdict"], found["fine"]) == ("fail", False)
    verdicts = {check["name"]: (check["verdict"], check["fine"]) for check in found["checks"]}
    assert verdicts["releases"] == ("fail", False)
    assert verdicts["noise"] == ("caution", False)
    assert verdicts["budget"] == ("pass", True)


def damaged(change):
    """The text of the ledger after a change, and without a new chain: it is refused before."""

    def text(ledger: dict) -> str:
        change(ledger)
        return json.dumps(ledger)

    return text


NO_LEDGER = [
    (lambda ledger: "", "ledger.json: damaged ledger: Invalid JSON"),
    (lambda ledger: "[]", "damaged ledger: Input should be an object, got []"),
    (damaged(of("format", to=lambda format: "fedamp ledger 3")), "ledger of another version of fedamp: format: "),
    (damaged(of("releases", 2, "epsilon_upper", to=lambda e: float("nan"))), "releases.2.epsilon_upper: "),
    (damaged(of("releases", 2, "epsilon_upper", to=lambda e: -1.0)), "releases.2.epsilon_upper: "),
    (damaged(of("units", to=str)), "units: Input should be a valid integer, got '60'"),
    (damaged(of("mechanism", "kind", to=lambda kind: "Magic")), "mechanism: "),
    (damaged(lambda ledger: ledger.update(extra=1)), "extra: no such key"),
    (damaged(lambda ledger: ledger["parts"][0].update(extra=1)), "parts.0.extra: "),
    *(
        (damaged(lambda ledger, key=key: ledger.pop(key)), f"{key}: missing")
        for key in ("format", "mechanism", "parts", "releases", "delta", "whole_run_epsilon", "units")
    ),
    (None, "no such ledger; expected: a run folder, or a ledger.json"),
]


def test_what_is_no_ledger_is_one_line(fedamp, played, run, subtests):
    for text, said in NO_LEDGER:
        with subtests.test(said):
            file = run / "ledger.json"
            file.unlink() if text is None else file.write_text(text(json.loads((played / "ledger.json").read_text())))
            answer = fedamp("verify", run)
            assert (answer.status, answer.out) == (2, "")
            assert said in answer.err
            assert answer.err.count("\n") == 1
            with pytest.raises(RunFolderError, match="ledger"):
                verify_ledger(run)
