"""What successive halving gives over one stage of trials: digits of 479 people, nine rates, epsilon 4 for all of it.

``python -m benchmarks.studies.halving`` tunes ``server.learning_rate`` twice for each seed, with one stage and with the
best third played again, for the same budget. The chosen run is scored on the public test set. The charge is the same,
so only the choice and the noise that is left for the run can differ.
"""

import json
import shutil
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import fedamp
from benchmarks.record import ROOT, made, store

RESULTS = Path(__file__).with_suffix(".json")
SEEDS = (21, 22, 23, 24, 25)
KEY = "server.learning_rate"
RATES = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
SETTINGS = {
    "privacy.epsilon": 4.0,
    "privacy.precision": 0.05,
    "data.test_is_public": True,
    "evaluation": {"on": "clients", "share": 0.34, "metrics": ["score"], "noise_multiplier": 12.0},
    "engine": {"kind": "serial"},
}


def measure(folder: Path) -> dict[str, Any]:
    """The test accuracy of the run with the chosen rate, and the place of that rate, for both ways and each seed."""
    found: dict[str, list[Any]] = {}
    for seed in SEEDS:
        for name, halving in {"one stage": None, "halving": 3}.items():
            asked = fedamp.load(ROOT / "examples" / "zoo" / "people.yaml", seed=seed, **SETTINGS)
            tuned = fedamp.tune(asked, {KEY: RATES}, folder / "tuned", jobs=1, halving=halving)
            run = fedamp.run(tuned.scenario, folder / "run", anyway=True)
            found.setdefault(name, []).append(round(float(run.accuracy or 0.0), 4))
            found.setdefault(f"{name}, chosen", []).append(RATES.index(tuned.record.chosen[KEY]))
            found[f"{name}, noise"] = [tuned.record.noise, *(tuned.record.stage_noise or [tuned.record.trial_noise])]
            for each in ("tuned", "run"):
                shutil.rmtree(folder / each)
    gains = [100 * (one - other) for one, other in zip(found["halving"], found["one stage"], strict=True)]
    return found | {"gain_points": fmean(gains), "gain_deviation": stdev(gains) / len(gains) ** 0.5}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        result = made() | measure(Path(place))
    store(RESULTS, result)
    print(json.dumps(result, indent=1))
