"""fedamp from Python: values in, objects out; what ``import fedamp`` costs; which engine trains."""

import ast
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

import fedamp
from fedamp.engines.engines import choose
from fedamp.errors import OF_PYTHON, InputError, Interrupted, RunFolderError, ScenarioError
from fedamp.federation.check_in import PoissonCheckIn
from tests.federations import SMALL

SMALL_DICT = yaml.safe_load(SMALL) | {"rounds": 4, "engine": {}}


@pytest.fixture(name="fedamp_command")
def command(request):
    """The entry point, which tests know as ``fedamp``; here that is the package."""
    return request.getfixturevalue("fedamp")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A whole run, and the records that a callback was given."""
    seen = []
    return fedamp.run(SMALL_DICT, out=tmp_path_factory.mktemp("runs") / "whole", callbacks=[seen.append]), seen


# --- load ------------------------------------------------------------------------------------------------------------


def test_overrides_are_values_by_dotted_key_or_nested(subtests):
    for name, overrides in {
        "dotted": {"privacy.epsilon": 2, "check_in.k": 5, "model.hidden": (8, 4)},
        "nested": {"privacy": {"epsilon": 2}, "check_in": {"k": 5}, "model": {"hidden": [8, 4]}},
        "numpy": {"privacy.epsilon": np.float64(2), "check_in": {"k": np.int64(5)}, "model.hidden": np.array([8, 4])},
    }.items():
        with subtests.test(name):
            changed = fedamp.load("digits", **overrides)
            assert (changed.privacy.epsilon, changed.check_in.k, changed.model.hidden) == (2, 5, (8, 4))
            assert changed.privacy.clip == fedamp.load("digits").privacy.clip  # what was not named stays


def test_a_section_of_another_scheme_replaces_the_one_that_is_there():
    rate = 0.25
    for section in ({"scheme": "poisson", "rate": rate}, PoissonCheckIn(scheme="poisson", rate=rate)):
        assert fedamp.load("digits", check_in=section).check_in == PoissonCheckIn(scheme="poisson", rate=rate)
    mixed = fedamp.load(fedamp.load(SMALL_DICT), mixing={"width": 0.1}, **{"server.momentum": 0})  # there was none
    assert mixed.mixing is not None


def test_dicts_and_scenarios_are_loaded_and_not_changed():
    before = json.dumps(SMALL_DICT)
    loaded = fedamp.load(SMALL_DICT, rounds=3)
    assert (loaded.rounds, json.dumps(SMALL_DICT)) == (3, before)
    assert fedamp.load(loaded) is loaded
    assert fedamp.load(loaded, seed=9) == loaded.model_copy(update={"seed": 9})


@pytest.mark.parametrize(
    ("source", "overrides", "words"),
    [
        ("digits", {"privacy.epsilon": -1}, "privacy.epsilon=-1: got -1; expected: a number > 0"),
        ("digits", {"privacy": {"epsilon": -1}}, "privacy.epsilon=-1: "),
        ("digits", {"privacy.epsilom": 1}, "did you mean epsilon?"),
        ("digits", {"rounds.x": 1}, "rounds.x: rounds is not a section of the scenario"),
        ("digits", {"data": object()}, "data="),
        ("digitz", {}, "did you mean digits?"),
        ({"name": "empty"}, {}, "scenario: "),
    ],
)
def test_a_wrong_scenario_is_refused_in_one_line(source, overrides, words):
    with pytest.raises(ScenarioError) as caught:
        fedamp.load(source, **overrides)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# --- what it costs, and a run ----------------------------------------------------------------------------------------


def test_privacy_is_what_the_command_says(fedamp_command, tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL_DICT))
    answer = fedamp.privacy(SMALL_DICT)
    assert answer == json.loads(fedamp_command("privacy", file, "--json").out)
    assert str(answer) in fedamp_command("privacy", file).out
    assert "noise multiplier" in answer._repr_html_()


def test_a_run_can_be_looked_at(whole):
    run, seen = whole
    assert run.rounds == seen
    assert [record.round for record in seen] == [1, 2, 3, 4]
    assert run.epsilon == run.ledger.guaranteed_epsilon == pytest.approx(fedamp.privacy(SMALL_DICT)["epsilon"]["upper"])
    frame = fedamp.open(run.folder).frame()
    assert list(frame["epsilon_upper"]) == [record.epsilon_upper for record in seen]
    assert list(frame) == ["loss", "accuracy", "validation_score", "epsilon_upper", "seconds", "scheduled", "reported"]
    assert set(map(str, frame.dtypes[:5])) == {"float64"}
    assert list(frame.index) == [1, 2, 3, 4]
    assert 3 <= len(str(run).splitlines()) <= 5
    assert f"{run.accuracy:.1%} accuracy" in str(run)
    assert all(check.verdict != "fail" for check in run.verify())
    assert run.report() == run.folder / "report.html"
    assert run.plot().axes
    shown = run._repr_html_()
    assert "accuracy" in shown
    assert "data:image/" in shown
    assert "balanced, k " in run.scenario._repr_html_()
    assert "engine serial: " in run.files.log.read_text()
    with pytest.raises(RunFolderError, match="no such run folder"):
        fedamp.open(run.folder / "nowhere")


def test_the_model_of_a_run_has_the_released_weights(whole):
    run, _ = whole
    released, module = load_file(run.folder / "model.safetensors"), run.model()
    weights = {name: value.detach().numpy() for name, value in module.named_parameters()}
    assert weights.keys() == released.keys()
    assert all(np.array_equal(weights[name], released[name]) for name in released)
    inputs = np.random.default_rng(1).normal(size=(5, 64))
    answers = run.predict(inputs, batch_size=2)
    with torch.inference_mode():
        assert np.allclose(answers, module(torch.tensor(inputs, dtype=torch.float32)), atol=1e-6)  # other batches
    with pytest.raises(InputError, match=r"inputs of shape \[2, 63\]"):
        run.predict(np.zeros((2, 63)))


# --- round by round --------------------------------------------------------------------------------------------------


def test_playing_gives_each_round_as_it_is_released_and_the_same_model(whole, tmp_path):
    out, numbers = tmp_path / "played", []
    for record in fedamp.play(SMALL_DICT, out=out):
        numbers.append(record.round)
        assert len(json.loads((out / "ledger.json").read_text())["releases"]) == record.round
    assert numbers == [1, 2, 3, 4]
    assert (out / "model.safetensors").read_bytes() == (whole[0].folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("known_seed", [True, False])
def test_leaving_the_loop_stops_and_the_folder_can_be_resumed(whole, tmp_path, known_seed):
    scenario, out = fedamp.load(SMALL_DICT, known_seed=known_seed), tmp_path / "left"
    for record in fedamp.play(scenario, out=out):
        if record.round == 2:
            break
    left = fedamp.open(out)
    assert (left.summary.stopped_because, len(left.rounds)) == ("interrupted", 2)
    assert left.epsilon == pytest.approx(whole[0].epsilon)  # what was seen may have decided when it stopped
    assert left.epsilon > left.released_rounds_epsilon
    finished = fedamp.run(scenario, out=out, resume=True)
    assert [record.round for record in finished.rounds] == [1, 2, 3, 4]
    assert finished.summary.stopped_because == "finished"
    same = (out / "model.safetensors").read_bytes() == (whole[0].folder / "model.safetensors").read_bytes()
    assert same == known_seed


def test_ctrl_c_and_an_error_in_the_loop_stop_a_run_after_the_round(tmp_path):
    with pytest.raises(
        Interrupted, match=r": fedamp\.run\('.*', resume=True\); fedamp\.open\('.*'\) has the rounds so far$"
    ):
        fedamp.run(SMALL_DICT, out=tmp_path / "a", callbacks=[lambda record: signal.raise_signal(signal.SIGINT)])
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for record in fedamp.play(SMALL_DICT, out=tmp_path / "b"):
            raise ZeroDivisionError(record.round)
    assert [len(fedamp.open(tmp_path / name).rounds) for name in ("a", "b")] == [1, 1]


@pytest.mark.slow
def test_an_iterator_that_is_held_when_python_ends_stops_after_its_round(tmp_path):
    """Python takes the modules apart before it closes what is held in one of them."""
    program = f"import fedamp\nrounds = fedamp.play({SMALL_DICT!r}, out='run')\nnext(rounds)\nprint('held')"
    answer = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "held\n", "")
    left = fedamp.open(tmp_path / "run")
    assert (left.summary.stopped_because, len(left.rounds)) == ("interrupted", 1)
    assert "ERROR" not in (tmp_path / "run" / "log.txt").read_text()
    assert len(fedamp.run(SMALL_DICT, out=tmp_path / "run", resume=True).rounds) == 4


# --- the engine ------------------------------------------------------------------------------------------------------


def test_the_engine_is_chosen_by_the_work_and_whose_code_it_is(monkeypatch):
    pytest.importorskip("ray")

    def kind(scenario, work, rounds=8):
        engine, why = choose(fedamp.load(SMALL_DICT, **scenario), work, rounds)
        assert why.startswith(f"{engine.kind}: ")
        return engine.kind

    own = {"model": {"name": "mine:model"}}
    cases = [({}, 1e6, "serial"), ({}, 1e12, "ray"), (own, 1e6, "ray"), ({"engine.workers": 2}, 1e6, "ray")]
    cases += [({"engine.address": "10.0.0.1:6379"}, 1e6, "ray"), ({"faults": {"killed_workers": 0.1}}, 1e6, "ray")]
    assert [kind(scenario, work) for scenario, work, _ in cases] == [expected for *_, expected in cases]
    assert kind({}, 1e12, 20_000) == "serial"  # Ray's start would pay, its messages would not
    monkeypatch.setitem(sys.modules, "ray", None)
    assert [kind(scenario, work) for scenario, work, _ in cases[:4]] == ["serial"] * 4
    why = choose(fedamp.load(SMALL_DICT, **own), 0, 0)[1]
    assert why.startswith("serial: Ray is not installed, so the code of mine:")


def test_without_ray_a_run_trains_here_and_says_so(fedamp_command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    short = ("rounds=2", "check_in.k=1", "privacy.noise_multiplier=1", "privacy.epsilon=null")
    sets = [word for each in short for word in ("--set", each)]
    answer = fedamp_command("run", "digits", *sets, "--out", tmp_path / "run")
    assert (answer.status, answer.err) == (0, "")
    assert "engine serial: Ray is not installed" in (tmp_path / "run" / "log.txt").read_text()


# --- what errors say --------------------------------------------------------------------------------------------------


def test_errors_name_what_the_caller_has_for_the_options_of_the_command_line(fedamp_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (full := tmp_path / "full").mkdir()
    (full / "file").touch()
    with pytest.raises(InputError, match=r"expected: a new one with out=FOLDER, or resume=True$"):
        fedamp.run(SMALL_DICT, out=full)
    with pytest.raises(InputError, match=r"name its folder with out=FOLDER$"):
        next(fedamp.play(SMALL_DICT, resume=True))
    with pytest.raises(InputError, match=r"expected: known_seed true, or privacy\.noise_cohort"):
        fedamp.privacy(SMALL_DICT, known_seed=False, **{"privacy.noise_cohort": 99})
    with pytest.raises(InputError, match=r"expected: another one with out=FOLDER$"):
        fedamp.sweep(SMALL_DICT, {"seed": [1, 2]}, out=full)
    with pytest.raises(InputError, match="share: got 2"):
        fedamp.tune(SMALL_DICT, {"client.learning_rate": [0.1]}, share=2)
    (file := tmp_path / "small.yaml").write_text(fedamp.load(SMALL_DICT).to_yaml())
    for command in (["run", file], ["sweep", file, "--set", "seed=1,2"]):
        assert "--out" in fedamp_command(*command, "--out", full).err


def test_an_error_says_in_python_how_to_resume(tmp_path):
    def interrupt(record):
        if record.round == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as caught:
        fedamp.run(SMALL_DICT, out=tmp_path / "a run", callbacks=[interrupt])
    call, _, beside = str(caught.value).partition("resume with: ")[2].partition("; ")
    assert len(eval(beside.removesuffix(" has the rounds so far"), {"fedamp": fedamp}).rounds) == 2
    assert eval(call, {"fedamp": fedamp}).summary.rounds_completed == SMALL_DICT["rounds"]


def test_every_option_in_an_error_has_a_word_in_python():
    """Those of commands without a function of fedamp are left to their rooms."""
    rooms = ("cli/", "extensions/", "accounting/", "client/", "runs/total")
    missing = {}
    for file in sorted(Path(fedamp.__file__).parent.rglob("*.py")):
        place = str(file.relative_to(Path(fedamp.__file__).parent))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and not place.startswith(rooms):
                words = " ".join(
                    each.value
                    for each in ast.walk(node)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )
                options = re.findall(r"--[a-z-]+", re.sub(r"fedamp [a-z]+ --[a-z-]+", "", words))  # no whole commands
                unknown = set(options) - OF_PYTHON.keys() - {"--set"}
                missing |= {f"{place}:{node.lineno}": unknown} if unknown else {}
    assert missing == {}
