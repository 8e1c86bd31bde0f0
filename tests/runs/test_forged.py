"""A forger changes a value of a run's files, and makes the chain anew: ``fedamp verify`` sees it, or it is a label."""

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedamp.accounting.verify import COMPUTED_BY, LABEL, VERDICTS, keys_of, ledger_keys, side_sums
from fedamp.errors import Interrupted, RunFolderError
from fedamp.extensions.population.store import Population
from fedamp.runs.records import LedgerEntry, LedgerRecord, RoundRecord, Summary
from fedamp.runs.verification import verify_ledger
from fedamp.server.launch import launch
from tests.chains import change_ledger, forge
from tests.federations import Silent, small

QUICK = ("rounds=3", "check_in={scheme: all}", "data.clients=20")  # whose cost is known soonest
EVALUATION = "evaluation={on: clients, noise_multiplier: 5, "
KINDS = {
    "plain": (),
    "secure": ("aggregation={scheme: secure, dropped: 0.2, colluding: 0.2}",),
    "evaluated at the end": (EVALUATION + "every: end, metrics: [score, loss]}",),
    "evaluated in rounds": (EVALUATION + "every: 2, by: {first: 0-9}}",),
    "means": (),
    "population": (),
    "adaptive clip": ("privacy.clip={initial: 0.3}",),
    "stopped early": (),
    "no noise": ("privacy={clip: 0.5, noise_multiplier: 0}",),
    "budget": ("privacy={clip: 0.5, noise_multiplier: 2, epsilon: 4}",),
}
OWNERS = ("summary.json", "rounds.jsonl", "salt.secret")  # which a forger need not hand out


class Stop(Silent):
    def round_done(self, record) -> None:
        super().round_done(record)
        if record.round == 2:
            raise KeyboardInterrupt


def scenario(kind: str, folder: Path):
    more = list(KINDS[kind])
    if kind == "means":
        generator = np.random.default_rng(0)
        inputs, owners = generator.normal(size=(60, 2)).astype(np.float32), np.repeat(np.arange(20), 3)
        np.savez(folder / "train.npz", x=inputs, y=(inputs.sum(1) > 0).astype(int), client=owners)
        step = "{name: standardise, mean: private, range: [-3, 3], noise_multiplier: 4}"
        partition = "{scheme: natural, column: client}"
        more.append(f"data={{name: npz, path: {folder}, classes: 2, partition: {partition}, transform: [{step}]}}")
    if kind == "population":
        more.append(f"privacy.population={folder / 'people.db'}")
        Population.new(folder / "people.db", [(str(n), str(n)) for n in range(20)], 9.0, 1e-5)
    return small(*QUICK, *more)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The folder of a run of a kind, made at its first use."""
    made: dict[str, Path] = {}

    def play(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("forged")
            run = folder / "run"
            if kind == "stopped early":
                with pytest.raises(Interrupted):
                    launch(scenario(kind, folder), Stop(), run)
            else:
                launch(scenario(kind, folder), Silent(), run)
            made[kind] = run
        return made[kind]

    return play


@dataclass(frozen=True)
class Forgery:
    """One value of a file becomes another one, or is removed."""

    kind: str
    file: str
    path: tuple
    value: object

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(part for part in self.path if isinstance(part, str))

    def __str__(self) -> str:
        return f"{self.kind}: {self.file}: {'.'.join(map(str, self.path))} = {self.value!r}"


GONE, FAIL = "(gone)", VERDICTS.index("fail")


def leaves(content: object, *path: object):
    """The paths to everything in some JSON, and what is there: also objects and lists, to remove them."""
    yield path, content
    for key, value in content.items() if isinstance(content, dict) else enumerate(content or ()):
        if isinstance(value, dict | list):
            yield from leaves(value, *path, key)
        else:
            yield (*path, key), value


def others(value: object) -> list[object]:
    """What a forger may put there."""
    match value:
        case bool():
            return [not value, None]
        case int():
            return [value - 1, value + 1, 0, 10**9, None]
        case float():
            return [0.9 * value, 1.1 * value, 0.0, value + 1, -value, 1e9, None]
        case str():
            return ["", value + "!", "Nobody is trusted.", "0" * len(value), None]
        case None:
            return [0.5, 1, "Nobody is trusted.", []]
        case list():
            return [[], value[:-1], [*value, *value[-1:]], None]
    return [None, {}]


def forgeries(kind: str, run: Path) -> list[Forgery]:
    found = []
    for file in ("ledger.json", "summary.json", "rounds.jsonl"):
        text = (run / file).read_text()
        content = [json.loads(line) for line in text.splitlines()] if file == "rounds.jsonl" else json.loads(text)
        for path, value in leaves(content):
            if not path or path[-1] in ("head", "link"):  # which are made anew
                continue
            values = [other for other in others(value) if other != value or type(other) is not type(value)]
            found += [Forgery(kind, file, path, other) for other in [*values, GONE]]
        if isinstance(content, dict):
            found.append(Forgery(kind, file, ("another_key",), 1))
    return found


def handed_out(forgery: Forgery, run: Path, into: Path) -> Path:
    """A copy of a run; without the owner's files, which a forger of the ledger need not show, unless it is of them."""
    hidden = ("checkpoint", "log.txt", "*.lock")
    alone = forgery.file == "ledger.json" and not {"files", "record", "assumptions"} & set(forgery.path)
    shutil.rmtree(into, ignore_errors=True)
    return shutil.copytree(run, into, ignore=shutil.ignore_patterns(*hidden, *(OWNERS if alone else ())))


def forge_one(forgery: Forgery, run: Path) -> None:
    file, text = run / forgery.file, (run / forgery.file).read_text()
    lines = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else None

    def change(content: dict | list) -> None:
        *above, last = forgery.path
        for key in above:
            content = content[key]
        if forgery.value is GONE:
            del content[last]
        else:
            content[last] = forgery.value

    if forgery.file == "ledger.json":
        try:
            change_ledger(run, change)
        except (LookupError, TypeError, AttributeError):  # no chain can be made of it
            change(content := json.loads(text))
            file.write_text(json.dumps(content))
        return
    change(content := json.loads(text) if lines is None else lines)
    whole = [json.dumps(line) + "\n" for line in lines] if lines is not None else [json.dumps(content)]
    file.write_text("".join(whole))
    if lines is None or len(lines) == len(json.loads((run / "ledger.json").read_text())["releases"]):
        forge(run)


def verdicts(run: Path) -> dict[str, int]:
    """How bad each check is; nothing: it is refused in one line."""
    try:
        checks = verify_ledger(run)
    except RunFolderError as error:
        checks, [_line] = [], str(error).splitlines()
    found: dict[str, int] = {}
    for check in checks:
        found[check.name] = max(found.get(check.name, 0), VERDICTS.index(check.verdict))
    return found


def is_seen(before: dict[str, int], after: dict[str, int]) -> bool:
    return any(after.get(name, FAIL) > verdict for name, verdict in before.items()) or FAIL in after.values()


def check_of(forgery: Forgery) -> str:
    """Who computes the key again, by the table."""
    key = forgery.key
    table, names = forgery.file, [".".join(key[:2]), key[0] if key else ""]
    if forgery.file == "ledger.json" and key[0] == "releases" and len(key) > 1:
        table, names = "releases", [".".join(key[1:3]), key[1]]
    for name in names:
        if added := ledger_keys().get(name):
            return LABEL if set(forgery.key[1:2]) & set(added.labels) else name
        if name in side_sums():
            return "scenario"
        for key, side in side_sums().items():
            if name in (side.in_round, side.at_end):
                return key if forgery.file == "ledger.json" else "claim"
        for check, keys in COMPUTED_BY[table].items():
            if name in keys.split():
                return check
    return ""


DEFAULTS = {"format", "version", "guarantees_explained_in", "relation"}
DEFAULTS |= {"share", "every", "loss_at_most", "bins", "metrics"}  # of an evaluation
UPPER_ENDS = {"epsilon_upper", "guaranteed_epsilon", "upper", "share", "adaptive_epsilon", "fixed_epsilon"}


def is_harmless(forgery: Forgery, run: Path) -> bool:
    """A larger epsilon than the cost; a default that is left out; why it stopped early; an earlier model's digest."""
    *above, last = forgery.path
    text, gone = (run / forgery.file).read_text(), forgery.value is GONE
    before = [json.loads(line) for line in text.splitlines()] if forgery.file == "rounds.jsonl" else json.loads(text)
    for key in above:
        before = before[key]
    value = before.get(last) if isinstance(before, dict) else before[last]
    more = forgery.value is None or (isinstance(forgery.value, int | float) and forgery.value >= (value or 0))
    upper = UPPER_ENDS if forgery.file == "ledger.json" or "unamplified_epsilon" in above else set()
    early = {"interrupted", "failed", "diverged", None}
    return (
        (last in upper and value is not None and more)
        or (gone and (value in (None, [], {}, "", False) or last in DEFAULTS))
        or (last == "run" and (gone or forgery.value is None))  # as in ledgers of earlier versions
        or (last == "stopped_because" and {value, None if gone else forgery.value} <= early)
        or (last == "digest" and above[1] < len(json.loads((run / "ledger.json").read_text())["releases"]) - 1)
    )


def unseen(these: list[Forgery], played, tmp_path: Path) -> list[str]:
    found, before = [], {}
    for forgery in these:
        run = played(forgery.kind)
        if check_of(forgery) == LABEL or is_harmless(forgery, run):
            continue
        copy = handed_out(forgery, run, tmp_path / "forged")
        shown = forgery.kind, (copy / "summary.json").exists()
        before[shown] = before.get(shown) or verdicts(copy)
        forge_one(forgery, copy)
        if not is_seen(before[shown], verdicts(copy)):
            found.append(str(forgery))
    return found


def test_each_key_of_each_file_has_its_line():
    records = {
        "ledger.json": LedgerRecord,
        "releases": LedgerEntry,
        "summary.json": Summary,
        "rounds.jsonl": RoundRecord,
    }
    for file, record in records.items():
        assert {key for key in keys_of(file) if "." not in key} == set(record.model_fields)
        keys = [key for names in COMPUTED_BY[file].values() for key in names.split()]
        assert len(keys) == len(set(keys)), "each once"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_forgery_passes_unseen(kind, played, tmp_path):
    these = forgeries(kind, played(kind))
    assert len(these) > 500
    assert unseen(these, played, tmp_path) == []


@pytest.mark.slow
def test_no_forgery_of_a_sample_passes_unseen(played, tmp_path):
    kinds = ("means", "evaluated in rounds", "population")
    these = [forgery for kind in kinds for forgery in forgeries(kind, played(kind))]
    assert unseen(random.Random(0).sample(these, 200), played, tmp_path) == []
