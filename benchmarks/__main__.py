"""All benchmarks, one after the other: ``make benchmarks``, or ``python -m benchmarks [NAME ...]``.

It says first how long each takes. What ended well with the same code is not run again, so an interrupted call can be
repeated; a named benchmark always runs. ``benchmarks.visits`` needs a package index and is run by itself.
"""

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.finished import ROOT, Finished

# Minutes on two cores, measured in November 2026 (without the peers that are not installed).
MINUTES = {
    "idea": 1,
    "demo": 3,
    "noise": 1,
    "leaderboard": 2,
    "clipping": 10,
    "correlated": 25,
    "tables": 1,
    "accounting": 25,
    "scale": 20,
    "zoo": 10,
    "gpu": 20,  # on a GPU; nothing without
    "simulation": 10,
    "deployment": 5,
    "secure": 30,
    "norm_proofs": 1,
    "canaries": 2,
    "tuning": 5,
    "soak": 30,
    "federations": 180,
    "submodels": 15,
    "lora_remedies": 20,
    "peers": 60,
    "rehearsal": 15,
}


def main(asked: Sequence[str]) -> int:
    """Exit status: 0 if all ended well."""
    if unknown := set(asked) - set(MINUTES):
        print(f"no benchmark {min(unknown)}; expected: {', '.join(MINUTES)}", file=sys.stderr)
        return 2
    finished = Finished("benchmarks", ("fedamp", "benchmarks"))
    names = asked or [name for name in MINUTES if name not in finished]
    print(f"{sum(MINUTES[name] for name in names)} minutes: " + ", ".join(f"{name} {MINUTES[name]}" for name in names))
    failed = []
    for name in names:
        print(f"\n--- {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=ROOT, check=False).returncode:
            failed.append(name)
        else:
            finished.add(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
