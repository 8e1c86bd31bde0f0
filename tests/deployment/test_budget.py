"""The budget of a node's own people among real processes: charged once, also after a kill, and then refused."""

import json

import pytest

from fedamp.extensions.population.store import Population
from tests.deployment.machines import wait
from tests.deployment.test_lasting import part
from tests.deployment.test_processes import wait_for_end, wait_for_round, write_scenario
from tests.server.plays import rounds_of


@pytest.mark.slow
def test_a_node_pays_once_though_it_is_killed_and_takes_no_part_in_a_run_too_many(machines, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
    privacy, hosts = {"clip": 0.5, "noise_multiplier": 4.0}, {"site0": "0-19", "site1": "20-39", "site2": "40-59"}
    federation = {"nodes": 3, "round_deadline": 300, "quorum": 0.1, "hosts": hosts}
    plain = {"model": {"name": "logistic"}, "submodels": {"scheme": "none"}}
    write_scenario(machines, rounds=4, privacy=privacy, federation=federation, **plain)
    machines.start_server()
    machines.admit_nodes()
    own = machines.folder / "site1"
    people = Population.new(own / "people.db", [(str(unit), str(unit)) for unit in range(20, 40)], 1.5, 1e-5)
    (own / "policy.yaml").write_text("population: people.db")
    for name in machines.names:
        machines.start_node(name, config=' policy=\\"$PWD/policy.yaml\\"' if name == "site1" else "")
    machines.start_run()
    wait_for_round(machines, 1, 300)
    part(machines, "site1", "supernode").kill()
    wait_for_end(machines, 600)
    [use] = people.read().uses.values()
    assert use.is_charged
    spent = people.read().spent()
    assert 0.5 < spent.min() == spent.max() < 1
    reported = [(line["scheduled"], line["reported"]) for line in rounds_of(machines.server / "run")]
    assert reported[0][0] == reported[0][1]
    wait(lambda: machines.connected() == 3, 300, "the node to be back", every=2)
    machines.run('flwr run app lan --run-config \'scenario="hospitals.yaml" out="second"\'')
    second = machines.server / "second"
    wait((second / "summary.json").exists, 600, "the end of the second run")
    assert json.loads((second / "summary.json").read_text())["stopped_because"] == "finished"
    assert all(line["reported"] < line["scheduled"] for line in rounds_of(second))
    log = (second / "log.txt").read_text()
    assert "this node's people have not enough of their budget left for this task; the node's log says who" in log
    assert any("budget left" in line and "node site1 (" in line for line in log.splitlines())
    assert "people.db" not in log
    assert "the person of unit 20 (and 19 more) has" in machines.log("site1")
    assert people.read().spent().tolist() == spent.tolist()
