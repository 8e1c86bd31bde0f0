"""The package's schemes meet the contracts that ship with fedamp, and a run with all of them is charged for them."""

from fedamp_blocks.check_in import AlternatingCheckIn
from fedamp_blocks.optimizer import SignDescent
from fedamp_blocks.submodels import LayerSubmodels

import fedamp
from fedamp.accounting import Allocation, Gaussian, Repeat, Submodels
from fedamp.testing import CheckInContract, OptimizerContract, SubmodelContract

SCENARIO = {
    "name": "blocks",
    "data": {"name": "synthetic", "clients": 60, "records_per_client": 5},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 6,
    "check_in": {"scheme": "alternating"},
    "submodels": {"scheme": "layers", "count": 2},
    "client": {"steps": 2, "learning_rate": 0.5},
    "server": {"optimizer": "sign", "learning_rate": 0.05, "momentum": 0.5},
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0},
    "engine": {"kind": "serial"},
}


class TestAlternating(CheckInContract):
    scheme = AlternatingCheckIn()


class TestLayers(SubmodelContract):
    scheme = LayerSubmodels(count=2)


class TestSign(OptimizerContract):
    optimizer = SignDescent(learning_rate=0.1, momentum=0.5)


def test_a_run_is_charged_for_what_is_hidden(tmp_path):
    """After the contracts above have passed: until then, the optimizer is refused, and nothing counts as hidden."""
    run = fedamp.run(SCENARIO, out=tmp_path / "run")
    both = Allocation(Repeat(Submodels(Gaussian(1.0), 2), 3), 1, 2).epsilon(1e-5)
    assert both.lower <= run.epsilon <= both.upper * 1.01
    assert run.epsilon < Repeat(Gaussian(1.0), 3).epsilon(1e-5).lower
    assert sum("has met its contract" in said for said in run.ledger.assumptions) == 3
