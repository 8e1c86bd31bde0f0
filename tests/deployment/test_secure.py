"""Secure aggregation over TLS: the page's commands, three nodes, one of them killed in the middle of a round."""

import shutil

import pytest
import yaml

from tests.deployment.machines import NODES, Machines, free_port, partition_digits, wait
from tests.deployment.test_processes import CLIENTS, wait_for_end, wait_for_round
from tests.documentation import blocks, shell
from tests.server.plays import ledger_of, rounds_of

PAGE = "docs/secure-aggregation.md"
ROUNDS = 3


@pytest.mark.slow
def test_three_nodes_hide_their_sums_and_one_is_killed_in_mid_round(machines: Machines):
    partition_digits(machines.folder, NODES, CLIENTS)
    [_, block] = blocks(PAGE, "yaml")
    raw = yaml.safe_load(block.text) | {"rounds": ROUNDS, "evaluation": {"on": "clients", "noise_multiplier": 2.0}}
    raw["federation"]["round_deadline"] = 600  # of an exchange; only the killed node is late, and Flower says so
    raw["data"]["shape"] = [64]  # the server holds no record, public or not
    (machines.server / "data" / "test.npz").unlink()
    (machines.server / "hospitals.yaml").write_text(yaml.safe_dump(raw))
    machines.start_server()
    machines.admit_nodes()
    machines.run(shell(PAGE, "server: write the agreement"))
    for name in NODES:
        folder = machines.folder / name
        shutil.copy(machines.server / "agreement.json", folder)
        told = machines.run(shell(PAGE, "node: join the run"), folder, NODE=name)
        assert "drawn by the nodes" in told
        machines.start(
            name,
            "node: start the SuperNode with its agreement",
            folder,
            page=PAGE,
            NODE=name,
            RUNTIME_PORT=str(free_port()),
        )
    machines.start_run()
    wait_for_round(machines, 1, 1200)
    machines.kill("site2")
    wait_for_end(machines, 1200)
    lines, ledger = rounds_of(machines.server / "run"), ledger_of(machines.server / "run")
    assert len(lines) == ROUNDS
    assert lines[0]["noise_surplus"] == pytest.approx(0.5)  # three nodes, where two are charged
    assert lines[-1]["noise_surplus"] == pytest.approx(0.0)
    assert all("training_loss" not in line["unprotected"] for line in lines)
    assert {line["accuracy"] for line in lines} == {None}
    found = ledger["final_evaluation"]  # one more sum of the same protocol, of the two nodes that are left
    assert found["deviation"] == pytest.approx(2.0)
    [units] = [each["value"] for each in found["estimates"] if each["name"] == "units"]
    assert abs(units - CLIENTS * 2 / 3) <= 5 * 2.0 * 2**0.5
    assert (
        ledger["epsilon_server"] == ledger["whole_run_epsilon"]
    )  # nodes draw check-ins: amplified for the server, too
    told = machines.run("fedamp verify run")
    assert "server" in told
    wait(lambda: machines.connected() == 2, 600, "the killed node to be missed", every=2)
