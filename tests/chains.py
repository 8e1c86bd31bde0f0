"""The chain of a ledger as docs/results.md describes it, in code of its own: left out, or made anew by a forger."""

import hashlib
import json
from pathlib import Path

SALTED = ("rounds.jsonl", "summary.json")
FILES = ("scenario.yaml", "model.safetensors", *SALTED)


def without_chain(ledger: dict) -> dict:
    """What runs with the same known seed have in common: a line of a round holds its time, and the salt is secret."""

    def without(content: dict, *left_out: str) -> dict:
        return {key: value for key, value in content.items() if key not in left_out}

    releases = [without(release, "record", "link") for release in ledger["releases"]]
    return without(ledger, "files", "head") | {"releases": releases}


def relinked(ledger: dict) -> dict:
    """The ledger with links and a head that fit it."""

    def sha256(previous: str, content: dict) -> str:
        return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()

    ends = {key: ledger[key] for key in ("stopped_because", "files", "final_evaluation") if key in ledger}
    last = sha256("", {key: ledger[key] for key in ledger if key not in {*ends, "releases", "head"}})
    releases = []
    for release in ledger["releases"]:
        entry = {key: release[key] for key in release if key != "link"}
        last = sha256(last, entry)
        releases.append(entry | {"link": last})
    return ledger | {"releases": releases, "head": sha256(last, ends)}


def change_ledger(folder: Path, change) -> None:
    """Change what a ledger says, by a function that changes it in place, and its chain with it."""
    file = folder / "ledger.json"
    ledger = json.loads(file.read_text())
    change(ledger)
    file.write_text(json.dumps(relinked(ledger)))


def forge(folder: Path) -> None:
    """Make the whole chain anew for the files as they are."""
    salt = (folder / "salt.secret").read_bytes()

    def digest(name: str, content: bytes) -> str:
        return hashlib.sha256((salt if name in SALTED else b"") + content).hexdigest()

    def change(ledger: dict) -> None:
        lines = (folder / "rounds.jsonl").read_bytes().splitlines()
        for release, line in zip(ledger["releases"], lines, strict=True):
            release["record"] = digest("rounds.jsonl", line)
        ledger["files"] = {name: digest(name, (folder / name).read_bytes()) for name in FILES}

    change_ledger(folder, change)
