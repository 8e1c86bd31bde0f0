"""The leaderboard: accuracy against epsilon for one client, on data that anyone can fetch. Makes
docs/research/leaderboard.md.

python -m benchmarks.leaderboard                    verifies all entries, and makes the page
python -m benchmarks.leaderboard add RUN WORDS      makes an entry from a run folder

Runs of other tools are entries too (:func:`add_other`; ``python -m benchmarks.peers --enter`` makes them).
"""

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.record import ROOT
from fedamp.accounting import Claims
from fedamp.base.numbers import amount_of_bytes, at_most
from fedamp.runs.records import Summary
from fedamp.runs.verification import complaint, verify_ledger

ENTRIES, PAGE = Path(__file__).parent, ROOT / "docs" / "research" / "leaderboard.md"
FILES = ("ledger.json", "scenario.yaml")  # what of a run can be handed out
LARGEST_DELTA = 1e-5
OTHER = "by another tool: mechanism stated, run not logged"


@dataclass(frozen=True)
class Task:
    """Data, and the clients that they are divided among."""

    words: str
    clients: int
    metric: str  # that counts
    least: bool = False  # whether less is better

    def value(self, summary: Summary) -> float:
        final = summary.final
        found = final.accuracy if self.metric == "accuracy" else final.metrics.get(self.metric)
        if found is None:
            raise ValueError(f"the run has no {self.metric}")
        return found


TASKS = {
    "digits": Task("1,797 handwritten digits, 479 people", 479, "accuracy"),
    "fashion-mnist": Task("Fashion-MNIST, 6,000 people with ten images each", 6000, "accuracy"),
    "insteval": Task("ratings of lectures by 2,972 students", 2972, "mean_absolute_error", least=True),
    "descriptions": Task("next characters in descriptions by 1,906 people and teams", 1906, "accuracy"),
    "sections": Task("sections of packages by 1,468 people and teams", 1468, "accuracy"),
}


def refused(folder: Path) -> str | None:
    """Why a run cannot be an entry; None if it can."""
    if any(not (folder / name).is_file() for name in FILES):
        return f"{folder} lacks one of {', '.join(FILES)}: it is not a run that has ended"
    if wrong := complaint(verify_ledger(folder)):
        return f"fedamp verify: {wrong}"
    ledger, scenario = json.loads((folder / FILES[0]).read_text()), yaml.safe_load((folder / FILES[1]).read_text())
    name = scenario["data"]["name"]
    rules = (
        (name in TASKS, f"data.name {name}; expected: {', '.join(TASKS)}"),
        (name in TASKS and ledger["units"] == TASKS[name].clients, f"{ledger['units']} units; expected: all clients"),
        (ledger["unit"] == "client", "privacy.unit must be client"),
        (ledger["delta"] <= LARGEST_DELTA, f"delta {ledger['delta']:g}; expected: at most {LARGEST_DELTA:g}"),
        (not ledger["noise_seed"].startswith("known"), "the seed is known; expected: a secret one"),
    )
    return next((words for holds, words in rules if not holds), None)


def add(folder: Path, words: str) -> Path:
    """Write an entry; ValueError: the run breaks a rule."""
    if why := refused(folder):
        raise ValueError(why)
    scenario, summary = yaml.safe_load((folder / FILES[1]).read_text()), Summary.read(folder / "summary.json")
    name = scenario["data"]["name"]
    claims = {
        "value": TASKS[name].value(summary),
        "check_ins": summary.clients_trained,
        "bytes": summary.cost.bytes_per_check_in,
    }
    content = {"words": words, "claims": claims} | {each: (folder / each).read_text() for each in FILES}
    file = ENTRIES / f"{name}-{json.loads(content[FILES[0]])['releases'][-1]['link'][:12]}.json"
    ENTRIES.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")
    return file


def refused_other(entry: dict[str, Any]) -> str | None:
    """Why a run of another tool cannot be an entry; None if it can. Nobody can verify that it ran as it is stated."""
    tool, stated, task = entry.get("tool", {}), entry.get("mechanism", {}), entry.get("task")
    missing = [name for name in ("name", "version") if not str(tool.get(name, "")).strip()]
    if missing:
        return f"tool.{missing[0]} is missing: an entry names the tool and its version"
    if task not in TASKS:
        return f"task {task}; expected: {', '.join(TASKS)}"
    try:
        claims = Claims(**stated)
        failed = [check for check in claims.checks() if check.verdict == "fail"]
    except (TypeError, ValueError) as error:
        return f"mechanism: {error}"
    people = TASKS[task].clients
    rules = (
        (not failed, " and ".join(f"{check.name}: {check.found}" for check in failed)),
        (claims.epsilon is not None, "mechanism.epsilon is missing: an entry claims one"),
        (claims.noise is not None, "mechanism.noise is missing: the deviation of what is added"),
        (claims.people == people, f"{claims.people} people; expected: all {people} clients"),
        (claims.delta <= LARGEST_DELTA, f"delta {claims.delta:g}; expected: at most {LARGEST_DELTA:g}"),
    )
    return next((words for holds, words in rules if not holds), None)


def charged(stated: dict[str, Any]) -> float:
    """Epsilon of a stated mechanism that is not refused, by fedamp's accountant."""
    claims = Claims(**stated)
    assert claims.noise is not None
    assert claims.clip is not None
    return claims.mechanism(claims.noise * claims.divided_by / claims.clip).epsilon(claims.delta).upper


def add_other(task: str, words: str, tool: dict[str, Any], mechanism: dict[str, Any], claims: dict[str, Any]) -> Path:
    """Write an entry of a run of another tool; ValueError: it breaks a rule.

    Args:
        task: see ``TASKS``.
        words: what it is, and how its rates were chosen.
        tool: its name and version.
        mechanism: the fields of :class:`fedamp.accounting.Claims`, with the claimed epsilon.
        claims: the value of the task's metric, check-ins, bytes a check-in.
    """
    content = {"words": words, "task": task, "tool": tool, "mechanism": mechanism, "claims": claims}
    if why := refused_other(content):
        raise ValueError(why)
    text = json.dumps(content, indent=1) + "\n"
    file = ENTRIES / f"{task}-{tool['name'].lower()}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    ENTRIES.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def entries() -> list[dict[str, Any]]:
    """All of them, each verified; ValueError names one that does not hold."""
    found = []
    for file in sorted(ENTRIES.glob("*.json")):
        entry = json.loads(file.read_text())
        if FILES[0] not in entry:  # no ledger: another tool's run
            if why := refused_other(entry):
                raise ValueError(f"{file.name}: {why}")
            words = f"{entry['tool']['name']} {entry['tool']['version']}, {entry['words']} (*{OTHER}*)"
            known = {"file": file.name, "words": words, "task": entry["task"]}
            found.append({**known, "epsilon": charged(entry["mechanism"]), **entry["claims"]})
            continue
        with tempfile.TemporaryDirectory() as place:
            for name in FILES:
                (Path(place) / name).write_text(entry[name])
            if why := refused(Path(place)):
                raise ValueError(f"{file.name}: {why}")
        task, epsilon = (
            yaml.safe_load(entry[FILES[1]])["data"]["name"],
            json.loads(entry[FILES[0]])["guaranteed_epsilon"],
        )
        found.append({"file": file.name, "words": entry["words"], "task": task, "epsilon": epsilon, **entry["claims"]})
    return found


HEADER = """# Leaderboard

This page ranks runs by accuracy over epsilon, and its entries can be verified. They protect a **client**: all records
of a person. An entry is a run with a secret seed. For a run of fedamp, its file in `benchmarks/leaderboard/` holds the
scenario and the ledger, and `fedamp verify` recomputes what it cost. What a run claims about the test set is not
recomputed.

A run of another tool has no ledger. Its entry names the tool and its version, and states the mechanism in the fields of
`fedamp-accounting check`. fedamp's accountant recomputes the epsilon. A claim below it, or numbers that contradict each
other, are refused. That the tool ran as stated is not verified. Such an entry is marked
"by another tool: mechanism stated, run not logged". Its seeds come from the operating system where the tool permits.

Rules: the data of a task, fetched by `make data`, and all its clients; delta at most 1e-5. The test set is the loader's
own, which is public, and is used once. Any model, check-in, submodels, noise and rates, but the words of an entry say
how its rates were chosen.

```bash
.venv/bin/python -m benchmarks.leaderboard add runs/mine "what it is; how its rates were chosen"   # an entry
.venv/bin/python -m benchmarks.peers --enter pfl-fedavg 1                                          # of another tool
.venv/bin/python -m benchmarks.leaderboard                                                         # verifies all
```
"""


def page(found: list[dict[str, Any]]) -> str:
    lines = [HEADER]
    for name, task in TASKS.items():
        own = [each for each in found if each["task"] == name]
        sign = 1 if task.least else -1
        lines += [f"## {name}: {task.words}", ""]
        lines += [f"| epsilon | {task.metric.replace('_', ' ')} | what | check-ins | bytes a check-in | entry |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for each in sorted(own, key=lambda each: (round(each["epsilon"], 1), sign * each["value"])):
            value = f"{each['value']:.3f}" if task.least else f"{each['value']:.1%}"
            costs = f"{each['check_ins']:,} | {amount_of_bytes(each['bytes'])}"
            link = f"[{each['file'].partition('.')[0]}](../../benchmarks/leaderboard/{each['file']})"
            lines.append(f"| {at_most(each['epsilon'], 3)} | {value} | {each['words']} | {costs} | {link} |")
        lines.append("")
    return "\n".join(lines)
