"""A deployment without a public test set: from keys to a certificate with a noisy score of people's own records."""

import json

import pytest
import yaml

from tests.deployment.machines import NODES, Machines
from tests.deployment.test_processes import CLIENTS, play_to_end, write_scenario
from tests.server.plays import ledger_of, rounds_of


@pytest.mark.slow
def test_from_keys_to_a_certificate_without_a_public_test_set(machines: Machines):
    evaluation = {"on": "clients", "share": 0.3, "noise_multiplier": 2.0, "by": dict(zip(NODES, hosts(), strict=True))}
    raw = write_scenario(machines, rounds=2, evaluation=evaluation)
    raw["data"]["shape"] = [64]
    (machines.server / "data" / "test.npz").unlink()
    (machines.server / "hospitals.yaml").write_text(yaml.safe_dump(raw))
    play_to_end(machines, 300)
    run = machines.server / "run"
    ledger = ledger_of(run)
    assert ledger["stopped_because"] == "finished"
    assert {line["accuracy"] for line in rounds_of(run)} == {None}
    found = {(each["name"], each["group"]): each for each in ledger["final_evaluation"]["estimates"]}
    assert ledger["final_evaluation"]["round"] == 2
    units = found["units", ""]
    # A client of 24 records has some to be scored on: all of them were, within five deviations of four slots' noise.
    assert abs(units["value"] - CLIENTS) <= 5 * 2.0 * (2 * 4) ** 0.5
    assert {group for _, group in found} == {"", *NODES, "others"}
    told = machines.run("fedamp release run --key release.key --out bundle && fedamp verify bundle --json")
    assert {check["verdict"] for check in json.loads(told[told.index("{\n") :])["checks"]} <= {"pass", "caution"}
    page = (machines.server / "bundle" / "certificate.html").read_text()
    assert "score of all people" in page
    assert "not measured" not in page


def hosts() -> list[str]:
    """The ids of the clients of each node, as partition_digits deals them."""
    each = CLIENTS // len(NODES)
    return [f"{number * each}-{(number + 1) * each - 1}" for number in range(len(NODES))]
