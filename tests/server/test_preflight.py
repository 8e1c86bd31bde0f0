"""What is said before a run: nothing about the shipped scenarios, and a word about each foolish one."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import fedamp as package
from fedamp.base import devices
from fedamp.errors import DataError, ScenarioError
from fedamp.federation import reader
from fedamp.federation.plan import make_plan, privacy_units
from fedamp.server.preflight import LIMITS, preflight, signal_to_noise
from fedamp.server.setup import prepare
from tests.federations import small, write_small

# Data that are not here, by their name: shape, classes, records, clients.
ELSEWHERE = {
    "uoft-cs/cifar10": ([3, 32, 32], 10, 50_000, 50_000),
    "flwrlabs/femnist": ([1, 28, 28], 62, 700_000, 3597),
    "ylecun/mnist": ([1, 28, 28], 10, 60_000, 60_000),
    "fashion-mnist": ([1, 28, 28], 10, 60_000, 6000),
    "mnist": ([1, 28, 28], 10, 8000, 8000),
}
POISSON = "check_in={scheme: poisson, rate: 0.4}"  # its accounting is quick
HOPELESS = {
    "signal": ("privacy.noise_multiplier=1000", "privacy.epsilon=null"),
    "signal ": ("privacy.epsilon=0.001",),
    "drift": ("privacy.clip=1e6",),
    "reach": ("privacy.clip=1e-9",),
    "longest reach": ("privacy.noise_multiplier=1e-6", "privacy.epsilon=null", "client={steps: 1, learning_rate: 1e8}"),
    "drift ": ("privacy.clip=0.5", "server.learning_rate=1e6"),
    "learning rate": ("client.learning_rate=1e6",),
    "local steps": ("client.steps=1000000",),
}


def at_hand(name):
    """A shipped scenario; where its data are not here, with synthetic records of the same number and shape."""
    scenario = reader.load(name)
    source = getattr(scenario.data, "dataset", scenario.data.name)
    if source not in ELSEWHERE:
        return reader.load(name, ["privacy.precision=0.05"])
    shape, classes, records, clients = ELSEWHERE[source]
    clients = records if scenario.privacy.unit == "sample" else scenario.data.clients or clients
    data = {"name": "synthetic", "clients": clients, "records_per_client": records // clients, "classes": classes}
    data |= {"features": 1000} if getattr(scenario.data, "transform", ()) else {"shape": shape}  # 1000 components
    return reader.load(scenario.model_dump(mode="json"), changes={"data": data, "privacy.precision": 0.05})


# Two of them have a ResNet-101, which takes half a minute to build.
NAMES = [file.stem for file in reader.shipped_files() if "cifar10-partial" not in file.stem]
QUICK = {"disjoint-8", "fashion-mnist-dropout"}  # the others take seconds of accounting each


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in NAMES])
def test_no_shipped_scenario_is_scolded(name):
    scenario = at_hand(name)
    try:
        plan = make_plan(scenario, privacy_units(scenario))
    except DataError as error:  # people's ratings have no twin
        pytest.skip(str(error))
    checks = preflight(plan, prepare(scenario, planned=plan))
    cautions = {"delta": plan.rehearsal} if plan.rehearsal else {}  # which protects nobody
    assert {check.name: check.found for check in checks if not check.passed} == cautions
    assert {"signal", "reach", "drift", "local steps", "learning rate", "budget"} <= {check.name for check in checks}


@pytest.mark.few(0, 2, 3, 4, 5, 6)
@pytest.mark.parametrize("case", HOPELESS)
def test_a_hopeless_scenario_is_refused_and_leaves_nothing(fedamp, tmp_path, case):
    changes = [word for change in HOPELESS[case] for word in ("--set", change)]
    refused = fedamp("run", "digits", "--set", POISSON, *changes, "--out", tmp_path / "run")
    assert refused.status == 2
    assert re.fullmatch(rf"error: hopeless: {case.strip()}: .*; expected: at (least|most) .*--anyway\n", refused.err)
    if case != "longest reach":  # which another norm mends, not more noise
        assert HOPELESS[case][0].partition("=")[0] in refused.err, "the key to change"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [("check",), ("run", "--anyway")])
def test_more_people_than_one_sum_holds_are_refused_before_anybody_trains(fedamp, tmp_path, words):
    scenario = write_small(tmp_path, "data={name: synthetic, clients: 9000000}", "check_in={scheme: all}")
    command, *options = words
    refused = fedamp(command, scenario, *options)
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "check_in: 9000000 of 9000000 units in a round" in refused.err
    assert "expected: at most 4194304" in refused.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("always:signal", "ignore:drift")
def test_a_hopeless_run_goes_on_anyway_and_when_it_is_resumed(fedamp, tmp_path):
    scenario = write_small(tmp_path, "rounds=2", POISSON, "privacy.noise_multiplier=1000")
    done = fedamp("run", scenario, "--out", tmp_path / "a", "--anyway")
    assert done.status == 0
    assert done.err.startswith("caution: signal: ")
    assert "signal: " in (tmp_path / "a" / "log.txt").read_text()
    resumed = fedamp("run", scenario, "--out", tmp_path / "a", "--resume")
    assert (resumed.status, resumed.err) == (0, "")
    with pytest.raises(ScenarioError, match=r"hopeless: signal: .*, or anyway=True"):
        package.run(str(scenario), out=tmp_path / "b")
    assert not (tmp_path / "b").exists()
    with pytest.warns(UserWarning, match="signal: "):
        package.run(str(scenario), out=tmp_path / "b", anyway=True)


def test_a_sweep_does_not_stop_for_one_run(tmp_path):
    scenario = small("rounds=2", POISSON)
    swept = package.sweep(scenario, {"privacy.noise_multiplier": [1, 1000]}, out=tmp_path / "sweep", jobs=1)
    assert not swept.unfinished
    logs = [("signal: " in log.read_text()) for log in sorted(tmp_path.rglob("log.txt"))]
    assert sorted(logs) == [False, True]


def test_check_says_everything_in_a_table_and_as_json(fedamp, tmp_path, monkeypatch):
    monkeypatch.setattr("fedamp.server.preflight._PATIENCE", math.inf)  # a busy machine gives the same advice
    scenario = write_small(tmp_path, POISSON)
    answer = json.loads(fedamp("check", scenario, "--json").out)
    found = {check["name"]: check["found"] for check in answer["checks"]}
    assert answer["verdict"] == "pass"
    assert {*LIMITS, "budget", "delta", "bytes", "advice", "evaluation", "records"} - {"empty clients"} == found.keys()
    assert not answer["private"]
    assert found["bytes"].startswith("7.8 kB a check-in")  # 650 parameters of 4 bytes there and 8 back
    assert re.search(r"check_in.rate 0.2, .* check_in.rate 0.8", found["advice"])
    table = fedamp("check", scenario)
    assert table.status == 0
    assert "60 units, 8 rounds" in table.out
    refused = fedamp("check", scenario, "--set", "privacy.noise_multiplier=1000")
    assert refused.status == 2  # also in the help, and in docs/scenarios.md
    assert "fail" in refused.out
    assert "Exit status: 0 if no check fails, 2 if one does" in " ".join(fedamp("check", "--help").out.split())
    assert refused.err.startswith("error: hopeless: signal: ")


def test_only_a_private_check_counts_records_and_it_says_so(fedamp, tmp_path):
    np.savez(tmp_path / "train.npz", x=np.eye(40), y=np.arange(40) % 2)
    np.savez(tmp_path / "test.npz", x=np.eye(40), y=np.arange(40) % 2)
    data = f"data={{name: npz, path: {tmp_path}, clients: 40, classes: 2}}"
    scenario = write_small(tmp_path, POISSON, data)
    public, private = fedamp("check", scenario, "--json"), fedamp("check", scenario, "--json", "--private")
    [empty] = [check for check in json.loads(private.out)["checks"] if check["name"] == "empty clients"]
    assert "empty clients" not in public.out
    assert json.loads(private.out)["private"]
    assert empty["found"].startswith("0%: 40 clients have 40 records; half have at most 1 ")
    assert "with counts of private records" in " ".join(fedamp("check", scenario, "--private").out.split())
    np.savez(tmp_path / "train.npz", x=np.eye(40), y=np.full(40, 2))
    assert "hopeless: untrainable: 40 of 40 clients cannot train: " in fedamp("check", scenario, "--private").err
    many = ("--set", "data={name: digits, clients: 100000, partition: {scheme: dirichlet, alpha: 1}}")
    refused = fedamp("check", "digits", "--private", *many, "--set", POISSON, "--set", "privacy.epsilon=1")
    assert refused.status == 2
    assert re.search(r"hopeless: empty clients: 99%: .*; expected: at most 0.05", refused.err)


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("hosts: {a: 0-29, b: 30-59}", None),
        ("hosts: {a: 0-29, b: 31-59}", "1 of 60 units live on no node, and count as zero"),
        ("hosts: {a: 0-29, b: 30-59}, nodes: 3", "federation.nodes waits for 3 of 2 nodes"),
    ],
)
def test_the_hosts_of_a_deployment_are_compared_with_its_units(hosts, found):
    checks = preflight(make_plan(small(f"federation={{{hosts}}}"), 60))
    [check] = [check for check in checks if check.name == "hosts"]
    assert check.passed if found is None else found in check.found


def test_without_noise_there_is_nothing_to_compare_it_with(fedamp, tmp_path):
    free = write_small(tmp_path, "privacy.noise_multiplier=0", "privacy.clip=1e6")  # which switches clipping off
    assert fedamp("check", free, "--set", "privacy.delta=0.5").status == 0


def test_the_signal_is_the_length_of_equal_updates_over_that_of_real_noise():
    """Whatever the clip. The norm of D = 650 normal numbers is within 10% of its mean sqrt(D), 3.6 deviations away."""
    draws = np.random.default_rng(0).standard_normal((8, 650))
    for changes in ((), ("privacy.clip=7",), ("check_in={scheme: poisson, rate: 0.5}",)):
        plan = make_plan(small(*changes), 60)
        [part] = plan.parts
        noise = np.linalg.norm((draws * part.noise_deviation / part.denominator).sum(0))
        expected = 8 * part.clip / noise  # n equal updates of the clip's length, over the denominator n, in 8 rounds
        assert signal_to_noise(plan, {"all": 650}) == pytest.approx(expected, rel=0.1)
    assert math.isinf(signal_to_noise(make_plan(small("privacy.noise_multiplier=0"), 60), {"all": 650}))


def test_what_the_advice_promises_is_so(fedamp, tmp_path):
    """The noise that it names gives the signal that it names, at an epsilon that is at most the one it names."""
    poor = write_small(tmp_path, POISSON, "privacy.noise_multiplier=100")
    checks = json.loads(fedamp("check", poor, "--json").out)["checks"]
    said = next(check["found"] for check in checks if check["name"] == "signal")
    noise, epsilon, units = re.search(
        r"1 needs privacy.noise_multiplier (\S+) \(epsilon (\S+)\), or (\S+) times", said
    ).groups()
    plan = make_plan(small(POISSON, f"privacy.noise_multiplier={noise}"), 60)
    assert signal_to_noise(plan, {"all": 650}) == pytest.approx(1, rel=0.05)  # two digits of noise are shown
    assert plan.charge.planned_epsilon.upper <= float(epsilon) * 1.05
    larger = make_plan(small(POISSON, "privacy.noise_multiplier=100"), round(60 * float(units)))
    assert signal_to_noise(larger, {"all": 650}) == pytest.approx(1, rel=0.02)  # three digits


def test_the_page_has_the_limits():
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    for name, (caution, fail, _) in LIMITS.items():
        last = "–" if math.isinf(fail) else rf"(below|above) {fail:,g}"
        assert re.search(rf"^\| `{name}` \| .* \| (below|above) {caution:,g} \| {last} \|$", page, re.MULTILINE), name


@pytest.mark.parametrize("clients", [100, 1000])
def test_all_clients_of_a_round_are_one_stack_on_a_gpu(clients):
    stack = prepare(small("engine.device=cuda", f"data.clients={clients}", "check_in={scheme: all}")).task.stack
    assert stack.slots(4, most=clients) == clients
    asked = small("engine={device: cuda, clients_per_batch: 32}", f"data.clients={clients}", "check_in={scheme: all}")
    assert prepare(asked).task.stack.slots(4, most=clients) == 32


def test_a_stack_on_a_gpu_holds_the_clients_of_one_submodel():
    layers = "model={name: mlp, hidden: [8]}", "check_in={scheme: all}", "data.clients=100"
    asked = small("engine.device=cuda", *layers, "submodels={scheme: disjoint, count: 4}")
    assert prepare(asked).task.stack.slots(4, most=100) == 25


def test_check_tells_stacks_and_memory_of_a_device(tmp_path, fedamp, monkeypatch):
    path = write_small(tmp_path, "data.clients=100", "check_in={scheme: all}")

    def told(device):
        checks = json.loads(fedamp("check", path, "--device", device, "--json").out)["checks"]
        [found] = [check for check in checks if check["name"] == "device"]
        return found["verdict"], found["found"]

    verdict, found = told("cpu")
    assert verdict == "pass"
    assert "clients a second and worker" in found
    assert "memory" not in found
    monkeypatch.setattr(devices, "here", lambda asked: "cpu")
    verdict, found = told("cuda")
    assert verdict == "caution"
    assert "stacks of a round: 1, of 100 clients" in found
    assert "a worker keeps records on a GPU, if they take at most 268 MB; a stack takes " in found
    assert re.search(r"takes [\d.]+ MB, and its graph as much again; the device is not here", found)
