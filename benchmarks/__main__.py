"""All benchmarks, one after the other: ``make benchmarks``, or ``python -m benchmarks [NAME ...]``.

It says first how long each takes. What ended well with the same code is not run again, so an interrupted call can be
repeated. A benchmark that is named, or whose folder is named, always runs.
"""

import subprocess
import sys
from collections.abc import Sequence

from benchmarks.record import ROOT, Finished

# Minutes on two cores, measured in November 2026 (without the peers that are not installed).
MINUTES = {
    "studies.idea": 1,
    "studies.demo": 3,
    "studies.install_sizes": 1,
    "studies.persons": 2,
    "leaderboard": 2,
    "speed.noise": 1,
    "speed.start": 10,
    "speed.accounting": 25,
    "speed.scale": 10,
    "speed.population": 15,
    "speed.zoo": 10,
    "speed.gpu": 8,  # on a GPU; nothing without
    "speed.simulation": 10,
    "speed.deployment": 5,
    "speed.server": 10,
    "speed.secure": 30,
    "studies.clipping": 10,
    "studies.correlated": 25,
    "studies.norm_proofs": 1,
    "studies.canaries": 2,
    "studies.tuning": 5,
    "studies.halving": 10,
    "studies.survival": 1,
    "studies.federations": 180,
    "studies.submodels": 15,
    "studies.lora_remedies": 20,
    "peers": 60,
    "peers.rehearsal": 15,
    "peers.epsilons": 10,
}


def main(asked: Sequence[str]) -> int:
    """Exit status: 0 if all ended well."""
    finished = Finished("benchmarks", ("fedamp/**/*.py", "benchmarks/**/*.py"))
    names = [] if asked else [name for name in MINUTES if name not in finished]
    for each in asked:
        found = [name for name in MINUTES if f"{name}.".startswith(f"{each}.")]
        if not found:
            print(f"no benchmark {each}; expected: {', '.join(MINUTES)}", file=sys.stderr)
            return 2
        names += found
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
