"""Where clients train, and on how many workers, does not change one bit of the model."""

import json

import pytest

from fedamp.runs.folder import RunFolder
from fedamp.server.launch import launch
from tests.federations import Silent, small
from tests.server.plays import ledger_of

pytest.importorskip("ray")

SCHEMES = {
    "whole": ("evaluation={on: clients, noise_multiplier: 5}",),
    "disjoint": ("submodels={scheme: disjoint, count: 3}", "evaluation={on: clients, noise_multiplier: 5, every: 2}"),
    "dropout": ("submodels={scheme: dropout, keep: 0.5}",),
    "records": ("privacy.unit=sample", "client.steps=1", "check_in={scheme: poisson, rate: 0.05}"),
}
# Several batches a round, so that the workers really share the work, and unlike numbers of records.
COMMON = (
    "rounds=4",
    "model={name: mlp, hidden: [12]}",
    "engine.clients_per_batch=7",
    "data.partition={scheme: dirichlet, alpha: 1}",
)


CASES = [pytest.param(scheme, [2], marks=[] if scheme == "disjoint" else pytest.mark.slow) for scheme in SCHEMES]


@pytest.mark.parametrize(("scheme", "numbers"), [*CASES, pytest.param("disjoint", [1, 3], marks=pytest.mark.slow)])
def test_serial_and_ray_give_the_same_bytes_for_any_number_of_workers(tmp_path, scheme, numbers):
    models, ledgers = {}, {}
    for engine, workers in [("serial", 1), *(("ray", number) for number in numbers)]:
        scenario = small(*COMMON, *SCHEMES[scheme], f"engine.kind={engine}", f"engine.workers={workers}")
        folder = RunFolder(launch(scenario, Silent(), tmp_path / f"{engine}-{workers}"))
        models[engine, workers] = folder.model.read_bytes()
        ledgers[engine, workers] = json.dumps(ledger_of(folder.path))
    assert len(set(models.values())) == 1
    assert len(set(ledgers.values())) == 1
