"""Accuracy and cost of other tools at equal epsilon: the federations iid and sections.

    python -m benchmarks.peers [TASK ...]            resumes; about an hour on one core for all of it
    python -m benchmarks.peers --only jax            the peers with this in their name
    python -m benchmarks.peers --show                tables of the stored results, in docs/research/federations.md
    python -m benchmarks.peers --enter pfl-fedavg 1  a run of iid with a secret seed: an entry of the leaderboard

Everybody trains the same model on the same features of the same clients: rounds, expected cohort, local steps, momentum
of the server and the moving average of the models are those of the task. Rates are tuned by the rule of
benchmarks/studies/federations.py, then five seeds are tested. Updates are clipped at 0.1, which 96 % of them exceed on
iid and all on sections, as fedamp's own clipping scales all of them. A line of ``bench.jsonl`` is one run.

Each peer runs in an environment of its own, because what they pin clashes. ``--environments`` names the folder of both:

    python3.11 -m venv ENVIRONMENTS/pfl
    ENVIRONMENTS/pfl/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    ENVIRONMENTS/pfl/bin/pip install pfl==0.6.0
    python3.11 -m venv ENVIRONMENTS/jax_privacy
    ENVIRONMENTS/jax_privacy/bin/pip install jax_privacy==2.0.0 jax==0.10.2

Flower runs in fedamp's environment.
"""

import argparse
from pathlib import Path

from benchmarks import leaderboard
from benchmarks.peers.bench import FEDERATIONS, PEERS, RESULTS, Bench, entry, measure
from benchmarks.peers.table import put_table
from fedamp.base.files import cache_folder


def main() -> None:
    """Measure what is missing, and show the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = cache_folder() / "peers"
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(FEDERATIONS)} (default: all)")
    parser.add_argument("--environments", type=Path, default=home, help=f"folder of the peers' environments ({home})")
    parser.add_argument("--only", default="", help="peers with this in their name")
    parser.add_argument("--epsilons", type=float, nargs="+", help="default: those of the task")
    parser.add_argument("--show", action="store_true", help="the tables of what there is; measures nothing")
    parser.add_argument("--enter", nargs=2, metavar=("PEER", "EPSILON"), help="an entry of the leaderboard")
    asked = parser.parse_args()
    if unknown := set(asked.tasks) - set(FEDERATIONS):
        parser.error(f"no task {min(unknown)}; expected: {', '.join(FEDERATIONS)}")
    for task in asked.tasks or FEDERATIONS:
        with Bench(RESULTS, asked.environments, FEDERATIONS[task]) as bench:
            if asked.enter:
                name, epsilon = asked.enter[0], float(asked.enter[1])
                print(leaderboard.add_other(**entry(bench, name, epsilon)))
                return
            if not asked.show:
                peers = [name for name in PEERS if asked.only in name]
                measure(bench, peers, asked.epsilons or bench.about.epsilons)
        put_table(bench.runs, task)


if __name__ == "__main__":
    main()
