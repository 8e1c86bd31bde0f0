"""The accuracies of the README's demo: 20 runs of the scenario ``digits``, each with noise of its own.

python -m benchmarks.studies.demo
"""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import fedamp
from benchmarks.record import ROOT, made, put_in, store

PAGE, RESULTS = ROOT / "README.md", Path(__file__).with_suffix(".json")
RUNS = 20


def told(accuracies: Sequence[float]) -> str:
    """The line of the page."""
    least, middle, most = min(accuracies), statistics.median(accuracies), max(accuracies)
    return f"{len(accuracies)} runs gave {100 * least:.1f} to {100 * most:.1f} %, median {100 * middle:.1f} %."


def main() -> None:
    begun, found = made(), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(RUNS):
            run = fedamp.run("digits", out=f"{folder}/{number}", **{"engine.kind": "serial"})
            assert run.accuracy is not None
            found.append(run.accuracy)
    store(RESULTS, begun | {"accuracies": found})
    put_in(PAGE, "demo", told(found))


if __name__ == "__main__":
    main()
