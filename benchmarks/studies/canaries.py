"""What an audit in the real run shows, and what its canaries cost: 6,000 clients of Fashion-MNIST at epsilon 4.

    python -m benchmarks.studies.canaries [PATH]     two minutes on one core; writes benchmarks/studies/canaries.json

PATH is a folder of the IDX files, where no package has them. Each seed trains twice, with canaries and without, with
the same noise and the same check-ins of people. Beside it: what jax_privacy's ``CanaryScoreAuditor`` finds in the same
scores, where jax_privacy is installed.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedamp
from benchmarks.record import made, store
from fedamp.extensions.audit.bound import CONFIDENCE
from fedamp.extensions.audit.canaries import audit_runs

RESULTS = Path(__file__).with_suffix(".json")
CANARIES, SEEDS = 2000, (1, 2, 3)
FEDERATION: dict[str, Any] = {
    "name": "canaries",
    "known_seed": True,
    "model": {"name": "mlp", "hidden": [64]},
    "rounds": 60,
    "check_in": {"scheme": "balanced", "k": 3},
    "client": {"steps": 2, "learning_rate": 0.1},
    "server": {"learning_rate": 4.0, "momentum": 0.5},
    "privacy": {"clip": "auto", "epsilon": 4},
    "federation": {"evaluate_every": 60},
    "engine": {"kind": "serial"},
}


def trained(seed: int, canaries: int, data: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Test accuracy of a run, and its processor seconds."""
    began = time.process_time()
    privacy = {**FEDERATION["privacy"], "canaries": canaries}
    run = fedamp.run({**FEDERATION, "seed": seed, "data": data, "privacy": privacy}, out=folder)
    return float(run.summary.final.accuracy or 0), time.process_time() - began


def others(run: Path, delta: float) -> dict[str, float] | None:
    """The bounds of jax_privacy from the scores of the attacker with all models; None: it is not installed."""
    try:
        from jax_privacy.auditing import CanaryScoreAuditor
    except ImportError:
        return None
    found = audit_runs([run])
    scores, coins = found.guesses[0].scores, found.guesses[0].coins
    auditor = CanaryScoreAuditor(scores[coins], scores[~coins])
    asked = {"significance": 1 - CONFIDENCE, "delta": delta}
    names = ("epsilon_one_run", "epsilon_one_run_fdp", "epsilon_clopper_pearson", "epsilon_from_gdp")
    return {name: float(getattr(auditor, name)(**asked)) for name in names}


def main(path: str | None = None) -> None:
    data = {"name": "fashion-mnist", "clients": 6000, **({"path": path} if path else {})}
    lines, begun = [], made()
    with tempfile.TemporaryDirectory() as home:
        trained(0, 0, data, Path(home) / "warm")
        for seed in SEEDS:
            alone, seconds_alone = trained(seed, 0, data, Path(home) / f"alone{seed}")
            run = Path(home) / f"run{seed}"
            accuracy, seconds = trained(seed, CANARIES, data, run)
            began = time.process_time()
            found = audit_runs([run]).to_json()
            line = {"seed": seed, "accuracy": accuracy, "without": alone, "seconds": seconds,
                    "seconds_without": seconds_alone, "seconds_of_audit": time.process_time() - began,
                    "audit": found, "jax_privacy": others(run, found["delta"])}  # fmt: skip
            lines.append(line)
            print(json.dumps(line), flush=True)
    shares = [line["audit"]["epsilon"]["lower"] / line["audit"]["epsilon"]["upper"] for line in lines]
    answer = {
        **begun,
        "canaries": CANARIES,
        "share_of_upper_end": float(np.median(shares)),
        "points_lost": 100 * float(np.mean([line["without"] - line["accuracy"] for line in lines])),
        "more_time": float(np.median([line["seconds"] / line["seconds_without"] - 1 for line in lines])),
        "runs": lines,
    }
    store(RESULTS, answer)
    print({key: value for key, value in answer.items() if key not in begun | {"runs": ()}})


if __name__ == "__main__":
    main(*sys.argv[1:])
