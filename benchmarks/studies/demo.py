"""The accuracies of the README's demo: 20 runs of the scenario ``digits``, each with noise of its own.

python -m benchmarks.studies.demo
"""

import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import fedamp
from benchmarks.finished import ROOT
from benchmarks.pages import put_in

PAGE, RESULTS = ROOT / "README.md", Path(__file__).with_suffix(".json")
RUNS = 20


def told(accuracies: Sequence[float]) -> str:
    """The line of the page."""
    least, middle, most = min(accuracies), statistics.median(accuracies), max(accuracies)
    return f"{len(accuracies)} runs gave {100 * least:.1f} to {100 * most:.1f} %, median {100 * middle:.1f} %."


def main() -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(RUNS):
            run = fedamp.run("digits", out=f"{folder}/{number}", **{"engine.kind": "serial"})
            assert run.accuracy is not None
            found.append(run.accuracy)
    RESULTS.write_text(json.dumps(found) + "\n")
    put_in(PAGE, "demo", told(found))


if __name__ == "__main__":
    main()
