"""Server and nodes as separate processes that know each other by certificate and key."""

import time

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from fedamp import scenario_file
from fedamp.scenario import Faults
from fedamp.simulation.engines import CLIENT_APP
from fedamp.simulation.faults import FaultyGrid
from fedamp.simulation.serial import SerialGrid
from tests.deployment.machines import Machines, deal_digits, wait
from tests.server.plays import largest_difference, ledger_of, play_in, rounds_of

NODES, CLIENTS = ["site0", "site1", "site2"], 60
SCENARIO = {
    "name": "lan",
    "seed": 424242424242,
    "data": {"name": "npz", "path": "server", "partition": {"scheme": "natural"}},
    "model": {"name": "mlp", "hidden": [12]},
    "check_in": {"scheme": "poisson", "rate": 0.5},
    "submodels": {"scheme": "disjoint", "count": 3},
    "client": {"steps": 2, "learning_rate": 0.5},
    "server": {"learning_rate": 0.5, "momentum": 0.5},
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0},
    "engine": {"kind": "serial"},
}
# Clients train in other batches than in the simulation, so float32 sums of 64 products differ in their last bits
# (2**-24 each, some hundred operations a step); updates are at most 0.5 long, divided by 10 and added over the rounds.
TOLERANCE = 1e-5


@pytest.fixture
def machines(tmp_path):
    machines = Machines(tmp_path, NODES)
    yield machines
    machines.stop()


def write_scenario(machines: Machines, rounds: int, **federation) -> dict:
    deal_digits(machines.folder, NODES, CLIENTS)
    raw = SCENARIO | {"rounds": rounds, "federation": {"nodes": 3, **federation}}
    (machines.folder / "lan.yaml").write_text(yaml.safe_dump(raw))
    return raw


def start_nodes(machines: Machines) -> None:
    for name in NODES:
        machines.register(name)
        machines.start_node(name)
    wait(lambda: machines.connected() == 3, 90, "three nodes", every=1)


def start_run(machines: Machines) -> None:
    folder = machines.folder
    machines.run(scenario=str(folder / "lan.yaml"), out=str(folder / "deployed"), rehearse=True)


def wait_for_end(machines: Machines, seconds: float) -> None:
    wait(lambda: machines.status().startswith("finished"), seconds, "the end of the run", every=2)
    assert machines.status() == "finished:completed", machines.log("superlink")


def wait_for_round(machines: Machines, round_: int, seconds: float) -> None:
    file = machines.folder / "deployed" / "rounds.jsonl"
    wait(lambda: file.exists() and len(file.read_text().splitlines()) >= round_, seconds, f"round {round_}")


class Away(FaultyGrid):
    """Clients 40 to 59, those of the third node, do not answer in some rounds."""

    def __init__(self, rounds: set[int]) -> None:
        super().__init__(SerialGrid(CLIENT_APP, "cpu"), Faults())
        self.rounds = rounds

    def _fates(self, round_, clients):
        return (clients >= 40) & (round_ in self.rounds), np.zeros(len(clients), dtype=bool)


def assert_equals_simulation(machines: Machines, raw: dict, away: set[int]) -> None:
    """The scenario as it is, with all data in one folder."""
    raw = raw | {"data": raw["data"] | {"path": str(machines.folder / "all")}}
    simulated, deployed = machines.folder / "simulated", machines.folder / "deployed"
    play_in(simulated, scenario_file.validate(raw, "lan"), grid=Away(away))
    assert [line["scheduled"] for line in rounds_of(deployed)] == [line["scheduled"] for line in rounds_of(simulated)]
    assert [line["reported"] for line in rounds_of(deployed)] == [line["reported"] for line in rounds_of(simulated)]
    spent = [[entry["epsilon_upper"] for entry in ledger_of(run)["releases"]] for run in (deployed, simulated)]
    assert spent[0] == spent[1]
    models = [load_file(run / "model.safetensors") for run in (deployed, simulated)]
    assert largest_difference(*models) < TOLERANCE


def test_the_scenario_of_the_simulation_runs_on_three_machines(machines):
    raw = write_scenario(machines, rounds=2)
    machines.start_superlink()
    machines.start_node("stranger", key=machines.keys / "site0")  # known to nobody yet
    wait(lambda: machines.processes["stranger"].poll() is not None, 60, "the stranger to be turned away")
    assert machines.connected() == 0
    start_nodes(machines)
    start_run(machines)
    wait_for_end(machines, 200)
    assert_equals_simulation(machines, raw, away=set())
    assert ledger_of(machines.folder / "deployed")["noise_seed"].startswith("the scenario's: a rehearsal")
    # Nobody's log tells the seed, nor who was asked in which round.
    told = "".join(machines.log(name) for name in ("superlink", *NODES))
    assert str(SCENARIO["seed"]) not in told
    assert "clients" not in told


@pytest.mark.slow
def test_a_node_that_is_killed_and_restarted_counts_as_zero_until_it_is_back(machines):
    rounds = 9
    raw = write_scenario(machines, rounds=rounds, round_deadline=30)
    machines.start_superlink()
    start_nodes(machines)
    start_run(machines)
    wait_for_round(machines, 1, 120)
    machines.kill("site2")
    wait_for_round(machines, 2, 60)
    # Flower takes a while to see that the node is gone, and until then refuses another one with its key.
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        machines.start_node("site2")
        time.sleep(8)
        if machines.processes["site2"].poll() is None:
            break
    wait_for_end(machines, 300)
    lines = rounds_of(machines.folder / "deployed")
    assert len(lines) == rounds
    away = {line["round"] for line in lines if line["reported"] < line["scheduled"]}
    assert away
    assert 1 not in away
    assert rounds not in away
    assert_equals_simulation(machines, raw, away)
