"""Server and nodes as separate processes that know each other by certificate and key."""

import json
import re
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from safetensors.numpy import load_file

from fedamp.engines.engines import CLIENT_APP, FaultyGrid
from fedamp.engines.simulation import SerialGrid
from fedamp.federation import reader
from fedamp.federation.plan import make_plan
from fedamp.federation.running import Faults
from tests.deployment.machines import NODES, PAGE, Machines, wait
from tests.documentation import blocks
from tests.extensions.trackers.test_trackers import scalars
from tests.server.plays import largest_difference, ledger_of, play_in, rounds_of

CLIENTS, SEED = 60, 424242424242
# Clients train in other batches than in the simulation, so float32 sums of 64 products differ in their last bits
# (2**-24 each, some hundred operations a step); updates are at most 0.5 long, divided by 10 and added over the rounds.
TOLERANCE = 1e-5


def write_scenario(machines: Machines, clients: int = CLIENTS, **changes) -> dict:
    """The page's scenario, and data for it."""
    machines.deal_records(clients)
    [block] = blocks(PAGE, "yaml")
    raw = yaml.safe_load(block.text) | {"seed": SEED} | changes
    (machines.server / "hospitals.yaml").write_text(yaml.safe_dump(raw))
    return raw


def spoil(file: Path, client: int) -> None:
    """A number of one of a client's records becomes NaN."""
    arrays = dict(np.load(file))
    arrays["x"][np.flatnonzero(arrays["client"] == client)[0], 0] = np.nan
    np.savez(file, **arrays)


def start_nodes(machines: Machines) -> None:
    """The run waits for them."""
    for name in NODES:
        machines.start_node(name)


def wait_for_end(machines: Machines, seconds: float) -> None:
    wait((machines.server / "run" / "summary.json").exists, seconds, "the end of the run")
    found: list[str] = []  # Flower's command takes a second of a processor
    wait(lambda: found.append(machines.status()) or found[-1].startswith("finished"), 60, "Flower to see it", every=1)
    assert found[-1] == "finished:completed", machines.log("superlink")


def play_to_end(machines: Machines, seconds: float) -> None:
    """Start the server, admit and start all nodes, and play the run."""
    machines.start_server()
    machines.admit_nodes()
    start_nodes(machines)
    machines.start_run()
    wait_for_end(machines, seconds)


def wait_for_round(machines: Machines, round_: int, seconds: float) -> None:
    file = machines.server / "run" / "rounds.jsonl"
    wait(lambda: file.exists() and len(file.read_text().splitlines()) >= round_, seconds, f"round {round_}")


class Away(FaultyGrid):
    """Clients 40 to 59, those of the third node, do not answer in some rounds."""

    def __init__(self, rounds: set[int]) -> None:
        super().__init__(SerialGrid(CLIENT_APP, "cpu"), Faults())
        self.rounds = rounds

    def _failing(self, round_, clients):
        return (clients >= 40) & (round_ in self.rounds)


def assert_equals_simulation(machines: Machines, raw: dict, away: set[int]) -> None:
    """The scenario as it is, with all data in one folder."""
    told = {"path": str(machines.records / "all" / "data"), "classes": 10, "test_is_public": True}
    raw = raw | {"data": raw["data"] | told}
    simulated, deployed = machines.folder / "simulated", machines.server / "run"
    play_in(simulated, reader.validate_scenario(raw, "hospitals"), grid=Away(away))
    assert [line["scheduled"] for line in rounds_of(deployed)] == [line["scheduled"] for line in rounds_of(simulated)]
    assert [line["reported"] for line in rounds_of(deployed)] == [line["reported"] for line in rounds_of(simulated)]
    spent = [[entry["epsilon_upper"] for entry in ledger_of(run)["releases"]] for run in (deployed, simulated)]
    assert spent[0] == spent[1]
    models = [load_file(run / "model.safetensors") for run in (deployed, simulated)]
    assert largest_difference(*models) < TOLERANCE


@pytest.mark.slow
def test_the_simulation_on_three_machines_one_of_which_claims_all_clients(federation):
    raw = write_scenario(federation, trackers=["tensorboard"])
    liar = federation.folder / "site2" / "data" / "federation.json"
    liar.write_text(json.dumps(json.loads(liar.read_text()) | {"hosted": list(range(CLIENTS))}))
    spoiled = int(make_plan(reader.validate_scenario(raw, "hospitals"), CLIENTS).attendance.cohort_of(1)[0])  # of site0
    for folder in ("all", "site0"):
        spoil(federation.folder / folder / "data" / "train.npz", spoiled)
    federation.start_stranger("site9")
    start_nodes(federation)
    federation.start_run(known_seed=True)
    federation.shell("node: check the way to the server", where="site1")
    turned_away = re.compile(r"the SuperNode ended with [1-9]\d*; started again")
    wait(lambda: turned_away.search(federation.log("site9")), 300, "the stranger to be turned away")
    federation.kill("site9")
    wait_for_end(federation, 260)
    assert_equals_simulation(federation, raw, away=set())
    assert ledger_of(federation.server / "run")["noise_seed"].startswith("known: ")
    assert (federation.server / "superlink.db").stat().st_mode & 0o077 == 0  # single nodes' sums are in it
    assert scalars(federation.server / "run" / "tensorboard") == {  # and nothing of what is not released
        name: [(line["round"], pytest.approx(line[key], rel=1e-6)) for line in rounds_of(federation.server / "run")]
        for name, key in (("accuracy", "accuracy"), ("loss", "loss"), ("epsilon", "epsilon_upper"))
    }
    log = (federation.server / "run" / "log.txt").read_text()
    assert re.search(r"node site2 \(\d+\) claims units that it may not speak for, refused: 0, 1, .* and 35 more", log)
    assert log.count("may not speak for") == 1
    # Nobody's log tells the seed, nor who was asked in which round, nor where the server keeps what.
    told = "".join(federation.log(name) for name in ("superlink", "proxy", *NODES))
    assert str(SEED) not in told
    assert "clients" not in told
    # Of a record that cannot be trained on, its own node's log speaks alone, and the server counts its unit.
    assert sum(line["unprotected"]["failed"] for line in rounds_of(federation.server / "run")) > 0
    found = rf"client {spoiled} cannot train: \S+train.npz: column 'x': the inputs of record \d+ are others than"
    assert re.search(found, federation.log("site0"))
    assert "cannot train" not in log + told.replace(federation.log("site0"), "")


def start_to_first_round(machines: Machines) -> None:
    """Server, nodes and run, as the page says, up to the release of the first round."""
    machines.start_server()
    machines.admit_nodes()
    start_nodes(machines)
    machines.start_run(known_seed=True)
    wait_for_round(machines, 1, 240)


@pytest.mark.slow
def test_a_node_that_is_killed_and_restarted_counts_as_zero_until_it_is_back(machines):
    rounds = 14  # enough for a slow machine to see the node back
    federation = {"nodes": 3, "round_deadline": 30, "hosts": "trusted"}
    raw = write_scenario(machines, rounds=rounds, federation=federation)
    start_to_first_round(machines)
    machines.kill("site2")
    wait_for_round(machines, 2, 60)
    # Flower takes a while to see that the node is gone, and until then refuses another one with its key.
    wait(lambda: machines.connected() == 2, 120, "the node to be missed", every=2)
    machines.start_node("site2")
    wait(lambda: machines.connected() == 3, 60, "the node to be back", every=1)
    wait_for_end(machines, 400)
    lines = rounds_of(machines.server / "run")
    assert len(lines) == rounds
    away = {line["round"] for line in lines if line["reported"] < line["scheduled"]}
    assert away
    assert 1 not in away
    assert rounds not in away
    assert_equals_simulation(machines, raw, away)


@pytest.mark.slow
def test_a_node_that_stops_is_given_up_within_two_rounds_and_comes_back(machines):
    federation = {"nodes": 3, "round_deadline": 45, "hosts": {"site0": "0-19", "site1": "20-39", "site2": "40-59"}}
    write_scenario(machines, rounds=30, federation=federation)
    start_to_first_round(machines)
    machines.signal("site2", signal.SIGSTOP)
    run = machines.server / "run"

    def happened(key: str) -> list[int]:
        return [line["round"] for line in rounds_of(run) if line[key]]

    wait(lambda: happened("nodes_given_up"), 200, "the node to be given up")
    [last] = happened("nodes_given_up")
    wait_for_round(machines, last + 2, 100)
    machines.signal("site2", signal.SIGCONT)
    wait(lambda: happened("nodes_back"), 150, "the node to be back")
    [back] = happened("nodes_back")
    wait_for_round(machines, back + 1, 60)
    lines, log = rounds_of(run), (run / "log.txt").read_text()
    assert len(re.findall(r"site2 \(\d+\) did not answer in time", log)) <= 2  # then nobody waits for it
    for line in lines[last : back - 1]:
        assert line["reported"] < line["scheduled"]
    assert lines[back - 1]["reported"] == lines[back - 1]["scheduled"]
    # Flower itself takes a node for gone that was silent for 36 to 60 s: in the second round, or the one after.
    assert len(re.findall(r"site2 \(\d+\) (missed 2 messages in a row|are disconnected)", log)) == 1
    assert len(re.findall(r"site2 \(\d+\) (answers|is connected) again", log)) == 1


@pytest.mark.slow
def test_a_superlink_that_is_gone_ends_the_run_which_goes_on_when_it_is_back(machines):
    """Its server app was found alive 70 minutes later, with the run's lock, and deaf to SIGTERM."""
    raw, run = write_scenario(machines, rounds=8), machines.server / "run"

    def kill_the_superlink() -> psutil.Process:
        [app] = machines.family("flwr-serverapp")
        [superlink] = machines.family("flower-superlin")
        time.sleep(3)  # into the next round, which takes longer; between two rounds the run would be interrupted
        superlink.kill()
        return app

    def start_again() -> None:
        machines.stop()
        (run / "summary.json").unlink(missing_ok=True)
        machines.start_server()
        wait(
            lambda: machines.connected() == 0,
            120,
            "Flower to miss the nodes; until then it refuses their keys",
            every=2,
        )
        start_nodes(machines)
        machines.start_run(known_seed=True, resume=True)

    start_to_first_round(machines)
    # 60 for the SuperLink to come back, and five times as long on a busy machine; 5 for Flower to leave.
    kill_the_superlink().wait(600)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["stopped_because"] == "failed"
    assert re.fullmatch(r"the SuperLink has not answered for \d+ s \([^\n]*", summary["error"])
    assert (run / "log.txt").read_text().count("the SuperLink does not answer") == 1
    played = len(rounds_of(run))  # on a busy machine several rounds may have been played before the kill
    start_again()
    wait_for_round(machines, played + 1, 120)
    app = kill_the_superlink()
    time.sleep(1)
    app.terminate()
    app.wait(600)
    start_again()
    wait_for_end(machines, 240)
    assert_equals_simulation(machines, raw, away=set())
