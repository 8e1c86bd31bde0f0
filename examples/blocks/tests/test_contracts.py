"""The package's schemes meet the contracts that ship with fedamp, and a run with both is charged for them."""

from fedamp_blocks.check_in import AlternatingCheckIn
from fedamp_blocks.submodels import LayerSubmodels

import fedamp
from fedamp.accounting import Allocation, Gaussian, Repeat, Submodels
from fedamp.testing import CheckInContract, SubmodelContract

SCENARIO = {
    "name": "blocks",
    "data": {"name": "synthetic", "clients": 60, "records_per_client": 5},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 6,
    "check_in": {"scheme": "alternating"},
    "submodels": {"scheme": "layers", "count": 2},
    "client": {"steps": 2, "learning_rate": 0.5},
    "privacy": {"clip": 0.5, "noise_multiplier": 1.0},
    "engine": {"kind": "serial"},
}


class TestAlternating(CheckInContract):
    scheme = AlternatingCheckIn()


class TestLayers(SubmodelContract):
    scheme = LayerSubmodels(count=2)


def test_a_run_is_charged_for_both(tmp_path):
    """After the contracts above have passed: until then, the run is charged without amplification."""
    run = fedamp.run(SCENARIO, out=tmp_path / "run")
    both = Allocation(Repeat(Submodels(Gaussian(1.0), 2), 3), 1, 2).epsilon(1e-5)
    assert both.lower <= run.epsilon <= both.upper * 1.01
    assert run.epsilon < Repeat(Gaussian(1.0), 3).epsilon(1e-5).lower
