"""Verification of a ledger and of a released bundle, from their files alone.

``python -m fedamp.accounting BUNDLE`` calls :func:`verify_bundle`. The module needs nothing that trains. It computes
each number of a ledger again from the mechanism that the ledger names, and refuses keys that nothing computes.
docs/results.md explains the keys of a ledger. A bundle holds the files that may leave the server, their digests, and
the server's signature over them.

A ledger may claim more than the cost, never less. A ledger alone does not show everything (:data:`UNCHECKED`): ``fedamp
verify`` plans the rest again from the scenario.
"""

import hashlib
import json
import math
import re
import shutil
import tempfile
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, get_args

import numpy as np

from fedamp.accounting.arithmetic import Array, delta_left
from fedamp.accounting.bounds import Bounds
from fedamp.accounting.hidden import GroupPoissonGaussian
from fedamp.accounting.mechanism import Mechanism, from_json
from fedamp.accounting.sampling import PRECISION
from fedamp.accounting.search import epsilon_over_rounds
from fedamp.base.reading import open_regular
from fedamp.base.version import version
from fedamp.extension import by_key

Json = Mapping[str, Any]
Verdict = Literal["pass", "caution", "unknown", "fail"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The verdicts of a check, from the best to the worst."""

TOLERANCE = 1e-6  # relative: another machine adds in another order, and a text has so many digits
UNCHECKED = "units, group_size, clips, denominators, assumptions, and whether the noise is the scenario's"
"""Facts that the ledger alone does not show."""

ENDED = ("finished", "budget")  # stops that were decided before the run began
FROM_SYSTEM = "from the operating system"  # the seed of noise that nobody knows

READ, LABEL = "read", "label"
COMPUTED_BY: Mapping[str, Mapping[str, str]] = {
    "ledger.json": {
        READ: "format guarantees_explained_in releases",
        "chain": "files head",
        "mechanism": "mechanism mechanism_in_words adjacency noise_coefficients",
        "whole run": "whole_run_epsilon epsilon_bound",
        "server": "server_mechanism epsilon_server",
        "nodes": "nodes_mechanism epsilon_nodes",
        "guarantee": "guaranteed_epsilon stopped_because",
        "scenario": "scenario scenario_sha256 unit units group_size delta budget_epsilon amplification_charged "
        "precision parts rounds_planned assumptions noise_seed rehearsal unchecked run",
        LABEL: "written_by frozen_sha256",
    },
    "releases": {
        "rounds": "round",
        "releases": "epsilon_upper",
        "chain": "record link",
        "model": "digest",
    },
    "summary.json": {
        READ: "format",
        "model": "parameters",
        "claim": "name final epsilon released_rounds_epsilon unamplified_epsilon epsilon_server epsilon_nodes delta "
        "has_known_seed rehearsal unchecked noise_multiplier rounds_completed clients_scheduled clients_trained "
        "clients_failed wall_seconds stopped_because",
        LABEL: "startup_seconds error cost",
    },
    "rounds.jsonl": {
        READ: "version",
        "claim": "round epsilon_upper scheduled reported seconds",
        LABEL: "accuracy loss metrics validation_score noise_surplus impossible_sum unprotected "
        "nodes_given_up nodes_back",
    },
    "release.json": {"files": "format files", "signature": "written_by name public_key signature", "chain": "head"},
}
"""The check that computes each key of a file again.

``READ``: no other value can be read. ``LABEL``: no guarantee rests on it, and the chain alone shows a change: what a
run measured, and the numbers that it released. Extensions add keys
(:class:`LedgerKey`, :class:`SideSumKeys`).
"""


def keys_of(file: str) -> set[str]:
    """Return the keys of a file that are computed again, or are labels.

    Others are refused, because a reader of the file would believe them.
    """
    known = {key for keys in COMPUTED_BY[file].values() for key in keys.split()}
    if file == "ledger.json":
        return known | {*ledger_keys(), *side_sums(), *last_keys()}
    return known if file == MANIFEST else known | {each.in_round for each in side_sums().values()}


@dataclass(frozen=True)
class Check:
    """One check: its subject, its verdict, and its finding; of a failure also the expectation.

    ``caution``: nothing is wrong, but a person who relies on the result must know the finding. ``unknown``: code of a
    user was not understood, and nothing was computed.

    Attributes:
        name: the subject, such as ``chain``.
        verdict: ``pass``, ``caution``, ``unknown`` or ``fail``.
        found: the finding, in words.
    """

    name: str
    verdict: Verdict
    found: str

    @classmethod
    def of_failure(cls, name: str, passed: str, caution: str | None = None, fail: str | None = None) -> "Check":
        """Return the failure or caution, if it has a text; else a check that passes.

        Example:
            >>> Check.of_failure("noise", "from the operating system").verdict
            'pass'
            >>> Check.of_failure("noise", "from the operating system", fail="none was added")
            Check(name='noise', verdict='fail', found='none was added')
        """
        return cls(name, "fail" if fail else "caution" if caution else "pass", fail or caution or passed)

    @property
    def passed(self) -> bool:
        """Whether it passes without caution."""
        return self.verdict == "pass"


# The chain of digests: each link covers the link before and the next release, the head everything. It finds later
# changes. A forger may make the chain anew: a head that was written down elsewhere, or signed, shows that.


def release_link(previous: str, content: Json) -> str:
    """Return the link of a release; after an empty one, of a ledger's plan and cost.

    Args:
        previous: the link before.
        content: the release, or the ledger.
    """
    excluded = {*last_keys(), "releases", "head", "link"}
    return chained_digest(previous, {key: value for key, value in content.items() if key not in excluded})


def ledger_head(last: str, ledger: Json) -> str:
    """Return the head: of the last link, why the run stopped, and the digests of its files."""
    return chained_digest(last, {key: ledger[key] for key in last_keys() if key in ledger})


def last_keys() -> tuple[str, ...]:
    """List the keys of a ledger that are written after its releases, which the head covers."""
    return ("stopped_because", "files", *(each.at_end for each in side_sums().values()))


def chained_digest(previous: str, content: Json) -> str:
    """Return SHA-256 of the link before and of content, as JSON with sorted keys."""
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def altered_ledger(ledger: Json) -> Iterator[str]:
    """List the rounds and keys of a ledger that differ from its chain, in words."""
    last = release_link("", ledger)
    for release in ledger["releases"]:
        if release["link"] != release_link(last, release):
            also = ", or a key that stands before releases," if release["round"] == 1 else ""
            yield f"ledger.json: releases: round {release['round']}{also} is not as it was written down"
        last = release["link"]
    if ledger["head"] != ledger_head(last, ledger):
        what = "stopped_because, files or the number of releases" if ledger["releases"] else "a key"
        yield f"ledger.json: head: {what} is not as it was written down"


# The keys of extensions.


class LedgerKey(ABC):
    """Interface: a key that an extension adds to ledgers, and how its value is checked.

    Its module needs the standard library and the accountant alone, because bundles are verified without the packages of
    training; what needs more is imported in its methods.

    Attributes:
        record: the class of its value, a :class:`fedamp.base.record.Record`, as ``package.module:Class``.
        shared: what no two independent runs have in common of it, in words.
        other: the fault of a resumed run that has another value, in words.
        first_release: what its value has told of all units before the first round, in words; empty: it is no release.
        labels: keys of its value that nothing computes again, so that the chain alone shows a change.
    """

    record: ClassVar[str]
    shared: ClassVar[str]
    other: ClassVar[str] = "with other keys of an extension"
    first_release: ClassVar[str] = ""
    labels: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def check_value(self, told: Json) -> Check:
        """Compute the value again from itself: a bundle has no more.

        Args:
            told: the value, as JSON.
        """

    def check_run(self, told: Json, run: Path, scenario: Any) -> Check:
        """Check the value of a run on the machine of its owner, by the files that its scenario names.

        Args:
            told: the value, as JSON.
            run: the run folder.
            scenario: of the run; None: unknown.
        """
        return self.check_value(told)

    @abstractmethod
    def is_asked(self, scenario: Any) -> bool:
        """Return whether the ledger of a scenario's run has the key."""

    def run_identity(self, told: Json) -> Any:
        """Return the part of the value that no two independent runs have in common, as JSON; None: nothing."""
        return None

    def for_people(self, value: Any) -> str:
        """Return the cost of all uses of the people's data together, in words; empty: the key says nothing about it.

        Args:
            value: an object of the class ``record``.
        """
        return ""

    def released_numbers(self, run: Path) -> dict[str, str]:
        """Return what a run has released beside its model, in words by name, for its pages; by default nothing.

        Args:
            run: the run folder, on the machine of its owner.
        """
        return {}


def ledger_keys() -> dict[str, LedgerKey]:
    """Return the keys that extensions add to ledgers, by their names."""
    return by_key("ledger_keys")


def first_release_words() -> dict[str, str]:
    """Return the releases before the first round in words, by their keys of a ledger."""
    return {name: key.first_release for name, key in ledger_keys().items() if key.first_release}


@dataclass(frozen=True)
class SideSumKeys:
    """The keys of a ledger for a side sum (:class:`fedamp.federation.side_sums.SideSum`).

    The section itself, with its noise, stands in the ledger under its own key.

    Attributes:
        section, release: the classes of the section and of a release, as ``package.module:Class``.
        in_round: the key of a release in the entry of a round, in a line of ``rounds.jsonl``, and in ``summary.json``.
        at_end: the key of the release after the last round.
        words: a release in words, as "an evaluation".
    """

    section: str
    release: str
    in_round: str
    at_end: str
    words: str


@cache
def side_sums() -> dict[str, SideSumKeys]:
    """Return the side sums that extensions offer, by the key of the section."""
    return by_key("side_sums")


# The numbers.


def has_left(ledger: Json) -> list[str]:
    """List the parts of a run that have left the server, in words; empty: the run costs nothing.

    This is the only place that says whether anything has left. Each part is written down before it leaves. A round is
    its model, with the side sum of its cohort, the clipping norms that follow from noisy counts, and what canaries
    are guessed from. A run that diverged has told one thing more: that a noisy sum is no model.

    Example:
        >>> has_left({"releases": [], "stopped_because": "diverged"})
        ['that a noisy sum is no model']
    """
    what = {
        **{words: ledger.get(key) for key, words in first_release_words().items()},
        "the models of its rounds": ledger["releases"],
        **{each.words: ledger.get(each.at_end) for each in side_sums().values()},
        "that a noisy sum is no model": ledger["stopped_because"] == "diverged",
    }
    return [words for words, left in what.items() if left]


def before_rounds(mechanism: Mechanism, beside: int) -> Mechanism:
    """Return the cost of a run that has released something, but no round.

    It is that of the releases ahead of the rounds, or of the first round.

    Args:
        mechanism: the whole run.
        beside: number of releases of all units beside the rounds.
    """
    return mechanism.after(max(ahead_of_rounds(mechanism, beside), 1))


def ahead_of_rounds(mechanism: Mechanism, beside: int) -> int:
    """Return how many releases a mechanism has before its first round: those of all units, which every cost includes.

    They are first releases and the side sum at the end, ``beside`` in all; with a single round all
    are one.
    """
    return beside if mechanism.span > 1 else 0


def ledger_checks(ledger: Json, by_round: Array | None = None) -> Iterator[Check]:
    """Compute the numbers of ``ledger.json`` again: each may be more than the cost, never less.

    Args:
        ledger: the ledger, as JSON.
        by_round: upper ends of epsilon after each round, where they do not follow from the mechanism alone.

    Returns:
        The checks, one after another: keys, whole run, server, nodes, releases, guarantee, budget.

    Raises:
        KeyError: a key is missing.
        ValueError: a value is impossible.
    """
    strange = set(ledger) - keys_of("ledger.json") | set().union(*ledger["releases"]) - keys_of("releases")
    if strange:
        yield Check("keys", "fail", f"nothing computes {', '.join(sorted(strange))} again; expected: no such key")
    # To the bit as the run did: draws of a sampled curve follow from delta's bits.
    delta = delta_left(ledger["delta"])
    mechanism, releases, planned = from_json(ledger["mechanism"]), ledger["releases"], ledger["rounds_planned"]
    private, precision = mechanism.is_private, ledger.get("precision", PRECISION)
    by_another = ledger.get("written_by", own := f"fedamp {version()}") != own
    planned_cost = mechanism.epsilon(delta, precision=precision)
    whole = compare_bracket("whole run", "whole_run_epsilon", ledger["whole_run_epsilon"], planned_cost, by_another)
    if whole.passed and ledger["epsilon_bound"] != planned_cost.method:
        told = f"epsilon_bound is {ledger['epsilon_bound']}; computed again it is {planned_cost.method}"
        whole = Check("whole run", "caution", f"{whole.found}; {told}")
    yield whole
    for whom in ("server", "nodes"):
        seen, claimed = ledger.get(f"{whom}_mechanism"), ledger.get(f"epsilon_{whom}")
        if (seen is None) != (claimed is None):
            yield Check(whom, "fail", f"{whom}_mechanism and epsilon_{whom}: one is missing; expected: both or none")
        elif seen is not None and claimed is not None:
            seen_cost = from_json(seen).epsilon(delta, precision=precision)
            yield compare_bracket(whom, f"epsilon_{whom}", claimed, seen_cost, by_another)
    if by_round is None and not private:
        by_round = np.full(planned, np.inf)
    at_end = sum(_every(ledger, key) == "end" for key in side_sums())
    beside = at_end + sum(ledger.get(key) is not None for key in first_release_words())
    ahead = ahead_of_rounds(mechanism, beside)
    follows = by_round is None and mechanism.span == planned + ahead

    def at_least(round_: int) -> float:
        """Return the least epsilon that another version may have claimed after a round.

        It is infinite where nothing below the upper end may be claimed.
        """
        if not (follows and by_another):
            return math.inf
        return mechanism.after(round_ + ahead).epsilon(delta, precision=precision).lower

    if follows:
        by_round = epsilon_over_rounds(mechanism, delta, range(1 + ahead, planned + ahead + 1), precision)
    spent = [_epsilon_value(entry["epsilon_upper"]) for entry in releases]
    if not spent and has_left(ledger):
        spent = [before_rounds(mechanism, beside).epsilon(delta, precision=precision).upper]
    if by_round is None:
        missing = "the ledger does not say when a unit can have taken part; expected: beside it a scenario.yaml to plan"
        yield Check("releases", "fail", missing)
    else:
        wrong: list[Check] = []
        for number, (upper, cost) in enumerate(zip(spent[: len(releases)], by_round.tolist(), strict=False), start=1):
            each = compare_claim("releases", f"round {number}: epsilon_upper", upper, cost, partial(at_least, number))
            wrong += [each] * (not each.passed)
            if each.verdict == "fail":
                break
        delta_told = f"{ledger['delta']:g}".replace("e-0", "e-")
        found = f"epsilon {_epsilon_in_words(spent[-1] if spent else 0.0)} at delta {delta_told} after the last one"
        yield wrong[-1] if wrong else Check("releases", "pass", found)
        guarantee = _check_guarantee(ledger, by_round, at_least)
        if private or not guarantee.passed:
            yield guarantee
    budget, most = ledger["budget_epsilon"], max(spent, default=0.0)
    over = f"{_epsilon_in_words(most)} exceeds {budget:g}" if budget is not None and not most <= budget else None
    yield Check.of_failure(
        "budget", "none was set" if budget is None else f"{_epsilon_in_words(most)} of {budget:g}", fail=over
    )
    if ledger.get("unchecked"):
        yield Check("schemes", "caution", str(ledger["unchecked"]))
    said = str(ledger.get("rehearsal") or ledger["noise_seed"])
    yield Check("noise", "pass" if said == FROM_SYSTEM else "caution", said)


def mechanism_check(ledger: Json) -> Check:
    """Check that the noise of every part of the model is in the charged mechanisms, and how it is correlated."""
    mechanism, wrong = from_json(ledger["mechanism"]), None
    others = {key: from_json(ledger[key]) for key in ("server_mechanism", "nodes_mechanism") if ledger.get(key)}
    charged = {"it": mechanism} | others
    for name, each in charged.items():
        noise = set(_values_of_key(each.to_json(), "noise_multiplier"))
        multipliers = {f"part {part['name']!r}": part["noise_multiplier"] for part in ledger["parts"]}
        for key in side_sums():
            multipliers |= {f"the {key}": ledger[key]["noise_multiplier"]} if ledger.get(key) else {}
        for what, multiplier in multipliers.items() if mechanism.is_private else ():
            # Of a group's release, where it is exact. All releases that one coin decides have one noise together, less.
            size = ledger["group_size"]
            least = min(noise) * (1 if each.contains(GroupPoissonGaussian) else size)
            together = size > 1 and least <= multiplier * (1 + TOLERANCE)
            if not together and not noise & {multiplier, multiplier / size}:
                wrong = f"the noise multiplier {multiplier} of {what} is not in {name}"
    told = list(ledger["noise_coefficients"])
    if any(coefficients != told for coefficients in _values_of_key(mechanism.to_json(), "coefficients")):
        wrong = f"noise_coefficients are {told}, but not in it"
    if mechanism.relation is not None and not ledger["adjacency"].startswith(f"{mechanism.relation}: "):
        wrong = f"adjacency is {ledger['adjacency']}, but its relation is {mechanism.relation}"
    for key, side in side_sums().items():
        every = _every(ledger, key)
        due = [every not in (None, "end") and entry["round"] % every == 0 for entry in ledger["releases"]]
        left = [entry.get(side.in_round) is None or asked for entry, asked in zip(ledger["releases"], due, strict=True)]
        if not (all(left) and (ledger.get(side.at_end) is None or every == "end")):
            wrong = f"{side.words} was released that is not in it"
    if any(len(told) >= classes for classes in _values_of_key(mechanism.to_json(), "classes")):
        wrong = f"noise_coefficients are of {len(told) + 1} bands, more than the classes in it"
    return Check.of_failure("mechanism", str(mechanism), fail=wrong)


def _every(ledger: Json, key: str) -> Any:
    """When units contribute to a side sum: ``end``, or rounds between cohorts that do; None: it is not there."""
    return (ledger.get(key) or {}).get("every")


def rounds_check(ledger: Json) -> Check:
    """Check that rounds 1, 2, 3, .. are released once each, and no more of them than planned."""
    numbers, planned = [entry["round"] for entry in ledger["releases"]], ledger["rounds_planned"]
    found = f"{len(numbers)} released of {planned} planned"
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) > planned:
        return Check("rounds", "fail", f"its rounds are not 1, 2, 3, ... each once, up to at most {planned}")
    if (ledger["files"] is None) != (ledger["stopped_because"] is None):
        return Check("rounds", "fail", "it has ended, or not: stopped_because and files contradict each other")
    ended = ledger["stopped_because"] in ("failed", "diverged")
    return Check.of_failure("rounds", found, caution=f"{found}; the run {ledger['stopped_because']}" if ended else None)


def compare_claim(
    name: str, what: str, claimed: float, cost: float, at_least: Callable[[], float] | None = None
) -> Check:
    """Compare a claimed epsilon with the upper end of the cost: it may be more (its accountant may be looser).

    It must not be less, but for a ledger of another version, whose samples may have been others: from the lower end
    ``at_least`` on nothing is refuted. That is a caution.

    Args:
        name: subject of the check.
        what: the claimed number, in words.
        claimed: the number.
        cost: computed again.
        at_least: gives the lower end, for a ledger of another version.
    """
    both = f"{what} is {_exact_epsilon(claimed)}; computed again it is"
    if not claimed >= cost * (1 - TOLERANCE):  # also of what is no number
        if at_least is None or not claimed >= (least := at_least()):
            return Check(name, "fail", f"{both} {_exact_epsilon(cost)}")
        return Check(name, "caution", f"{both} at most {_exact_epsilon(cost)} and at least {_exact_epsilon(least)}")
    looser = claimed > cost * (1 + TOLERANCE)
    return Check(
        name, "pass", f"{both} less, {_exact_epsilon(cost)}" if looser else f"epsilon {_epsilon_in_words(cost)}"
    )


def compare_bracket(name: str, what: str, claimed: Json, cost: Bounds, by_another: bool = False) -> Check:
    """Compare both ends of a claimed bracket with the cost.

    An upper end may be more than computed again, a lower one less (of a looser accountant). Of another version, a
    number between both ends is a caution, as in :func:`compare_claim`.
    """
    at_least, most = (cost.lower, cost.upper) if by_another else (math.inf, cost.lower)
    upper = compare_claim(name, what, _epsilon_value(claimed["upper"]), cost.upper, lambda: at_least)
    lower = _epsilon_value(claimed["lower"])
    if not upper.passed or math.isclose(lower, cost.lower, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        return upper
    both = f"the lower end of {what} is {_exact_epsilon(lower)}; computed again it is {_exact_epsilon(cost.lower)}"
    return Check(name, "caution" if lower <= most else "fail", both)


def _check_guarantee(ledger: Json, spent: Array, at_least: Callable[[int], float]) -> Check:
    """Check the guarantee however the run was stopped: the cost of all rounds that the budget pays for."""
    last = int(np.searchsorted(spent, float(ledger["budget_epsilon"] or math.inf), side="right"))
    cost, released = float(spent[last - 1]) if last else 0.0, len(ledger["releases"])
    told, stop = ledger["guaranteed_epsilon"], ledger["stopped_because"] or "not finished"
    if (told is None) != math.isinf(cost):
        return Check("guarantee", "fail", f"guaranteed_epsilon is {told}; computed again it is {_exact_epsilon(cost)}")
    again = compare_claim("guarantee", "guaranteed_epsilon", _epsilon_value(told), cost, partial(at_least, last))
    if again.verdict != "pass":
        return again
    if stop in ENDED and (released < last or stop != ENDED[last < len(spent)]):
        return Check("guarantee", "fail", f"stopped_because is {stop}, but after round {released} of {last}")
    if stop in ENDED or math.isinf(cost):
        cost = max(cost, _epsilon_value(told))
        return Check(
            "guarantee", "pass", f"epsilon {_epsilon_in_words(cost)}; the stop was decided before the run began"
        )
    if not has_left(ledger):
        return Check("guarantee", "pass", "epsilon 0.000: nothing was released, so no release decided the stop")
    early = f"{stop} after round {released}, perhaps because of its releases"
    return Check("guarantee", "caution", f"epsilon {_epsilon_in_words(cost)}, the cost of all {last} rounds: {early}")


def worst_verdict(checks: Sequence[Check]) -> Verdict:
    """Return the worst verdict of all checks; ``pass`` if there are none."""
    return max((check.verdict for check in checks), key=VERDICTS.index, default="pass")


def _values_of_key(mechanism: Any, key: str) -> Iterator[Any]:
    """List the values of a key in an expression and those in it."""
    if isinstance(mechanism, dict):
        if key in mechanism:
            yield mechanism[key]
        mechanism = list(mechanism.values())
    if isinstance(mechanism, list):
        for inner in mechanism:
            yield from _values_of_key(inner, key)


def _epsilon_value(value: float | None) -> float:
    """Return an epsilon of a ledger, where null is infinite: JSON has no infinity."""
    return math.inf if value is None else value  # JSON has no infinity


def _epsilon_in_words(epsilon: float) -> str:
    """Write an epsilon to three digits, rounded up."""
    if math.isinf(epsilon):
        return "infinite (no noise)"
    return f"{math.ceil(epsilon * 1000 * (1 - 1e-12)) / 1000:,.3f}"  # up, except for what multiplying rounded


def _exact_epsilon(epsilon: float) -> str:
    """Write an epsilon to six digits."""
    return "infinite" if math.isinf(epsilon) else f"{epsilon:.6g}"


MANIFEST = "release.json"
FILES = ("model.safetensors", "ledger.json", "scenario.public.yaml", "certificate.html")
"""All files that a bundle may hold beside its manifest. The first two are always there."""

FORMAT = "fedamp release 1"
_KEYS = keys_of(MANIFEST) - {"signature"}
_MOST_TEXT = 1 << 29  # bytes of a file that is read whole; the model is read in pieces
_PIECE = 1 << 20


def text_of(manifest: Json) -> str:
    """Return the only text of a manifest, so that no byte of it can change unseen."""
    return json.dumps(manifest, indent=1, sort_keys=True) + "\n"


def signed_content(manifest: Json) -> bytes:
    """Return the bytes that the signature of a manifest covers."""
    return json.dumps({key: manifest[key] for key in _KEYS}, sort_keys=True).encode()


def is_bundle(path: Path) -> bool:
    """Return whether a path is a released bundle: a folder with a manifest, or an archive."""
    return path.suffix == ".zip" or (path / MANIFEST).is_file()


class Bundle:
    """A folder or archive, opened for reading, as a context manager.

    Nothing outside of the known names is read. An archive must be stored without compression and be, byte by byte, the
    one that its files give.

    Args:
        path: the folder or archive.

    Raises:
        ValueError: it is no bundle, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._open, self._path = ExitStack(), path
        try:
            if path.is_dir():
                self._sizes = {file.name: file.stat().st_size for file in path.iterdir()}
                self._archive = None
                strange = [file.name for file in path.iterdir() if not file.is_file() or file.is_symlink()]
            else:
                self._archive = self._open.enter_context(zipfile.ZipFile(self._open.enter_context(open_regular(path))))
                names = [each.filename for each in self._archive.infolist()]
                strange = [name for name in names if names.count(name) > 1]
                self._sizes = {each.filename: each.file_size for each in self._archive.infolist()}
                # Stored as they are: no bomb.
                packed = any(each.compress_type != zipfile.ZIP_STORED for each in self._archive.infolist())
                if packed or sum(self._sizes.values()) > path.stat().st_size:
                    strange.append(path.name)
            self.strange = sorted({*strange, *(set(self._sizes) - {MANIFEST, *FILES})})
            if self._archive is not None and not self.strange and not self._is_canonical():
                self.strange = [path.name]
        except (OSError, RuntimeError, ValueError, EOFError, zipfile.BadZipFile) as error:
            self._open.close()
            raise ValueError(f"{path}: no bundle ({error})") from None

    def __enter__(self) -> "Bundle":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def file_names(self) -> set[str]:
        """The names of its files."""
        return set(self._sizes)

    def write_archive(self, file: IO[bytes]) -> None:
        """Write the one archive of these files; any other one of them holds bytes that nobody has signed."""
        with zipfile.ZipFile(file, "w") as archive:
            for name in (name for name in (MANIFEST, *FILES) if name in self._sizes):
                about = zipfile.ZipInfo(name)  # of 1980, without attributes
                about.create_system, about.file_size = 0, self._sizes[name]
                with self.open_stream(name) as content, archive.open(about, "w") as copied:
                    shutil.copyfileobj(content, copied, _PIECE)

    def _is_canonical(self) -> bool:
        """Return whether the archive is, byte by byte, the one of its files: no header, gap or attribute is unseen."""
        with open_regular(self._path) as ours, tempfile.TemporaryFile() as again:
            self.write_archive(again)
            again.seek(0)
            while True:
                one, other = ours.read(_PIECE), again.read(_PIECE)
                if one != other or not one:
                    return one == other

    def open_stream(self, name: str) -> IO[bytes]:
        """Open a file, by a name that a bundle may hold."""
        return open_regular(self._path / name) if self._archive is None else self._archive.open(name)

    def member_text(self, name: str) -> str:
        """Return the content of a file of text; ValueError: it is none, or too large."""
        if self._sizes.get(name, 0) > _MOST_TEXT:
            raise ValueError(f"{name}: larger than any ledger")
        try:
            with self.open_stream(name) as stream:
                return stream.read(_MOST_TEXT).decode()
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{name}: cannot be read ({error})") from None

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the content of a file of JSON; ValueError: it is no object, has a key twice, or is too large."""
        text = self.member_text(name)
        try:
            found = json.loads(text, object_pairs_hook=each_key_once)
        except (RecursionError, ValueError) as error:
            why = "nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(f"{name}: cannot be read ({why})") from None
        if not isinstance(found, dict):
            raise ValueError(f"{name}: not an object")
        return found

    def file_digest(self, name: str) -> str:
        """Return the SHA-256 of a file's content, in hexadecimal."""
        try:
            with self.open_stream(name) as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        except (OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{name}: cannot be read ({error})") from None


UNCHARGEABLE = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors that a ledger with impossible values may raise."""


def verify_bundle(path: Path, public_key: str | None = None) -> list[Check]:
    """Check digests, signature and chain of a folder or archive, and compute the ledger's numbers again.

    Args:
        path: the folder or archive.
        public_key: of the server, 64 hexadecimal digits, received through a trusted channel; default: the bundle's own,
            which proves nothing about its origin, and is a caution.

    Returns:
        The checks. After a failed digest nothing else is checked, because nothing in the bundle can be believed.

    Raises:
        ValueError: there is no bundle, or it cannot be read.
    """
    with Bundle(path) as bundle:
        if bundle.strange:  # before anything is read
            return [Check("files", "fail", "; ".join(f"{name}: not of the bundle" for name in bundle.strange))]
        manifest = bundle.read_json(MANIFEST)
        checks = [*_of_files(bundle, manifest), check_signature(manifest, public_key)]
        if checks[0].verdict == "fail":
            return checks  # nothing in it can be believed
        ledger = bundle.read_json("ledger.json")
        try:
            return checks + list(_of_ledger(ledger, manifest))
        except KeyError as error:
            return [*checks, Check("ledger", "fail", f"{error.args[0]}: missing")]
        except UNCHARGEABLE as error:
            return [*checks, Check("ledger", "fail", f"its mechanism cannot be charged ({error})")]


def _of_files(bundle: Bundle, manifest: Json) -> Iterator[Check]:
    """Check the manifest, and the digests of all files."""
    known = set(manifest) == _KEYS | {"signature"} and manifest["format"] == FORMAT
    known = known and bundle.member_text(MANIFEST) == text_of(manifest)
    digits = known and re.fullmatch("[0-9a-f]{64} [0-9a-f]{128}", f"{manifest['public_key']} {manifest['signature']}")
    if not digits or not isinstance(manifest["files"], dict):
        yield Check("files", "fail", f"{MANIFEST} is not a manifest of {FORMAT!r}")
        return
    told = manifest["files"]
    wrong = [f"{name}: not in {MANIFEST}" for name in sorted(bundle.file_names - {MANIFEST, *told})]
    wrong += [f"{name}: missing" for name in sorted({*told, *FILES[:2]} - bundle.file_names)]
    present = [name for name in FILES if name in bundle.file_names and name in told]
    wrong += [f"{name}: not as it was released" for name in present if bundle.file_digest(name) != told[name]]
    yield Check.of_failure("files", f"{len(told)} files, as they were released", fail="; ".join(wrong) or None)


def check_signature(manifest: Json, public_key: str | None) -> Check:
    """Check that the server's key has signed the manifest.

    Args:
        manifest: as JSON.
        public_key: the expected key; None: that of the manifest, which is a caution.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        missing = "not checked: cryptography is not installed (pip install 'fedamp[signatures]')"
        return Check("signature", "caution", missing)
    own = str(manifest.get("public_key"))
    if public_key is not None and public_key.strip().lower() != own:
        return Check("signature", "fail", f"by the key {own:.64}, but {public_key.strip():.64} was expected")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(own))
        key.verify(bytes.fromhex(manifest["signature"]), signed_content(manifest))
    except (InvalidSignature, LookupError, TypeError, ValueError):
        return Check("signature", "fail", f"not a signature of {MANIFEST} by the key {own:.64}")
    unknown = f"by the key {own}, as the bundle itself says: compare it with what the server told you, or give --key"
    return Check.of_failure("signature", f"by the key {own}", caution=None if public_key else unknown)


def _of_ledger(ledger: Json, manifest: Json) -> Iterator[Check]:
    """Check the chain, the mechanism, the rounds, all numbers, and the keys of extensions."""
    complaints = list(altered_ledger(ledger))
    if ledger["head"] != manifest["head"]:
        complaints.append(f"ledger.json: head: {ledger['head']}, but {MANIFEST} says {manifest['head']}")
    left, released = ledger["files"] or {}, manifest["files"]["model.safetensors"]
    if left.get("model.safetensors") != released:
        complaints.append("model.safetensors: not the model of this ledger")
    yield Check.of_failure("chain", f"head {ledger['head']}", fail="; ".join(complaints) or None)
    yield mechanism_check(ledger)
    yield rounds_check(ledger)
    yield from ledger_checks(ledger)
    for key, added in ledger_keys().items():
        if told := ledger.get(key):
            yield added.check_value(told)


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs of JSON as a dictionary; ValueError: a key occurs twice, and readers would differ in its value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found
