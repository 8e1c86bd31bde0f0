"""What choosing a rate with charge costs: 6,000 clients of Fashion-MNIST, epsilon 1 for tuning, training, evaluation.

``python -m benchmarks.studies.tuning`` compares two ways over some seeds. *Charged*: ``fedamp tune`` tries server
rates, judged by their charged evaluation; the run that follows is evaluated with charge as well, and all of it costs
epsilon 1. *For nothing*: the rate with the best mean on the public test set, of runs that spend epsilon 1 alone, hold
no record out and are not charged for the choice. Both are scored on the public test set.
"""

import json
import shutil
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import fedamp
from benchmarks.record import made, store
from benchmarks.studies.federation_tasks import DELTA, FEDERATION, SERVER, features
from fedamp.runs.folder import begun_runs
from fedamp.runs.total import total

RESULTS = Path(__file__).with_suffix(".json")
SEEDS = (11, 12, 13)  # the settings were chosen on other ones
CLIP = 0.1  # nearly every update is longer, so the server's rate says how far the model gets: 2^5 to 2^9 in the run
RATES = [2**power * (1 - SERVER["momentum"]) / FEDERATION["rounds"] / CLIP for power in (5, 6, 7, 8, 9)]
KEY = "server.learning_rate"
EVALUATION = {"on": "clients", "share": 0.1, "noise_multiplier": 30.0}


def scenario(seed: int, **changes: Any) -> Any:
    """The federation of ``benchmarks.studies.federations``, k of T with independent noise."""
    privacy = {"clip": CLIP, "epsilon": 1.0, "delta": DELTA}
    settings = {**FEDERATION, "name": "tuning", "seed": seed, "data": features({"scheme": "iid"})(False)}
    settings |= {"privacy": privacy, "federation": {"evaluate_every": FEDERATION["rounds"]}, "server": SERVER}
    return fedamp.load(settings, **changes)


def measure(folder: Path) -> dict[str, Any]:
    """Test accuracy of both ways, by seed, and what the charged one cost."""
    free: dict[float, list[float]] = {}
    charged, chosen, costs = [], [], []
    noise = fedamp.privacy(scenario(1))["noise_multiplier"]
    for seed in SEEDS:
        for rate in RATES:
            asked = scenario(seed, **{KEY: rate, "privacy.epsilon": None, "privacy.noise_multiplier": noise})
            free.setdefault(rate, []).append(fedamp.run(asked, folder / "free", anyway=True).accuracy)
            shutil.rmtree(folder / "free")
        tuned = fedamp.tune(scenario(seed, evaluation=EVALUATION), {KEY: RATES}, folder / "tuned", jobs=1)
        run = fedamp.run(tuned.scenario, folder / "run", anyway=True)
        charged.append(run.accuracy)
        chosen.append(RATES.index(tuned.record.chosen[KEY]))
        if seed == SEEDS[0]:
            costs = [
                total([*begun_runs([folder / "tuned"]), folder / "run"])["fixed"]["upper"],
                tuned.record.epsilon.upper,
            ]
        for each in ("tuned", "run"):
            shutil.rmtree(folder / each)
    best = max(free.values(), key=fmean)
    return {
        "seeds": len(SEEDS),
        "rates": RATES,
        "free": {f"{rate:g}": [round(score, 4) for score in scores] for rate, scores in free.items()},
        "charged": [round(score, 4) for score in charged],
        "chosen": chosen,
        "best_for_nothing": fmean(best),
        "loss_points": 100 * (fmean(best) - fmean(charged)),
        "loss_deviation": 100
        * stdev(one - other for one, other in zip(best, charged, strict=True))
        / len(SEEDS) ** 0.5,
        "epsilon_total": costs,
        "noise": [noise, tuned.record.noise, tuned.record.trial_noise],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        found = made() | measure(Path(place))
    store(RESULTS, found)
    print(json.dumps(found, indent=1))
