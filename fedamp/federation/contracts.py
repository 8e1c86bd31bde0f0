"""Remember which schemes of other packages have met their contract, and charge those that have not.

A note in a folder of the cache says that a class has passed all tests of its contract (:mod:`fedamp.testing`). It names
the code of the packages of the class and of its bases outside of fedamp, the version of its package, and that of
fedamp. So other code, or another version, has not met the contract yet. Such a scheme is charged as if nothing that it
draws were hidden, unless ``privacy.unchecked`` says that its own word counts; then every epsilon of the run says so.

What no contract tests is refused unless ``privacy.unchecked`` is set: noise, aggregations, transforms and sections of
other packages, and correlated noise together with their check-in schemes.

The plan asks here for the scheme that is charged, ``fedamp.testing`` notes a pass, and ledgers record the words.
"""

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from types import new_class
from typing import TYPE_CHECKING, Any, TypeVar

from fedamp.base.files import cache_folder, write_atomically
from fedamp.base.reading import read_regular
from fedamp.base.section import Section
from fedamp.base.start import Later
from fedamp.base.version import version
from fedamp.extension import path_of
from fedamp.federation import facts
from fedamp.federation.choices import FAMILIES
from fedamp.federation.facts import AnyScenario
from fedamp.federation.first_releases import asked_releases

if TYPE_CHECKING:
    from fedamp import accounting
    from fedamp.accounting import Mechanism
else:
    accounting = Later("fedamp.accounting")  # as in fedamp.federation.check_in

S = TypeVar("S", bound=Section)


def is_foreign(kind: type) -> bool:
    """Say whether a class is of another package than fedamp."""
    return kind.__module__.partition(".")[0] != "fedamp"


def package_of(kind: type) -> str:
    """Return the distribution of a class, as :func:`distribution_of` its module."""
    return distribution_of(kind.__module__)


@cache  # to list all installed packages takes a tenth of a second
def distribution_of(module: str) -> str:
    """Return the distribution of a module with its version, as ``mylab 0.2``; empty: no installed one has it."""
    first = module.partition(".")[0]
    found = metadata.packages_distributions().get(first, [])
    return f"{found[0]} {metadata.version(found[0])}" if found else ""


def has_passed(kind: type) -> bool:
    """Say whether a class met its contract on this machine, with this code and these versions."""
    return tested_keys(kind) is not None


def note_pass(kind: type, tested: str = "") -> None:
    """Note that a class has met its contract.

    Nothing is noted with ``FEDAMP_CACHE=off``, or where the code of the class is in no file (a notebook).

    Args:
        kind: the class of the scheme; the pytest suites of :mod:`fedamp.testing` call this at their end.
        tested: the keys with which it was tested, such as ``k 2, rounds 6``; empty: it has none that matter.
    """
    identity = _identity_of(kind)
    if identity is not None and (file := _note_file(identity)) is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        keys = sorted({*(_keys_in(file, identity) or ()), tested} - {""})
        write_atomically(file, json.dumps({**identity, "tested": keys}).encode())


def forget_pass(kind: type) -> None:
    """Remove the note that a class has met its contract, because a test of it has failed."""
    if (file := _note_file(_identity_of(kind))) is not None:
        file.unlink(missing_ok=True)


def tested_keys(kind: type) -> list[str] | None:
    """Return the keys with which a class has met its contract, as :func:`note_pass` got them; None: it has not."""
    identity = _identity_of(kind)
    file = _note_file(identity)
    return None if file is None else _keys_in(file, identity)


class _OpenCheckIn:
    """A check-in scheme that is charged as if each unit were known to take part in every round."""

    def charge(self, one_round: "Mechanism", rounds: int) -> "Mechanism":
        return accounting.Repeat(one_round.unamplified(), rounds)

    def known_cost(self, one_round: "Mechanism") -> "Mechanism":
        return one_round.unamplified()

    def most_check_ins(self, first: int, rounds: int) -> int:
        return first


class _OpenSubmodels:
    """A submodel scheme that is charged as if each unit's submodel were known."""

    def charge(self, part: Any, release: "Mechanism", capacity: str | None = None) -> "Mechanism":
        return release


_OPEN: Mapping[str, type] = {"check_in": _OpenCheckIn, "submodels": _OpenSubmodels}
_CONTRACTS: Mapping[str, str] = {
    "check_in": "CheckInContract",
    "submodels": "SubmodelContract",
    "server.optimizer": "OptimizerContract",
}
"""Contract of the schemes of a key. A scheme that cannot be charged openly is refused until its contract passes."""


def foreign_schemes(scenario: AnyScenario) -> dict[str, type]:
    """Return the classes of other packages that a scenario names, by their key."""
    named: dict[str, type] = {key: type(attrgetter(key)(scenario)) for key in FAMILIES}
    named["server.optimizer"] = scenario.server.kind
    steps = getattr(scenario.data, "transform", ())
    named |= {f"data.transform.{place}": type(step) for place, step in enumerate(steps)}
    named |= {key: type(section) for key, section in scenario.sections.items()}
    named |= {each.path: type(each) for each in asked_releases(scenario)}
    return {key: kind for key, kind in named.items() if is_foreign(kind)}


def charged_scheme(scheme: S, key: str, scenario: AnyScenario) -> S:
    """Return a scheme of a plan with the charge that counts: its own one, or that without amplification.

    Args:
        scheme: of the key ``check_in`` or ``submodels``, fitted to the plan.
        key: which of the two.
        scenario: it names the scheme. The class that it names must have met its contract, and also the class of
            ``scheme``, because a scheme of another package may be fitted to another class.

    Returns:
        The scheme itself, or one of a new class that draws alike, and charges more.
    """
    kind = type(scheme)
    foreign = {each for each in (kind, type(getattr(scenario, key))) if is_foreign(each)}
    if scenario.privacy.unchecked or all(map(has_passed, foreign)):
        return scheme
    openly = new_class(f"Open{kind.__name__}", (_OPEN[key], kind))
    return openly.model_construct(scheme.model_fields_set, **dict(scheme))  # type: ignore[attr-defined, no-any-return]


def refuse_unproved(scenario: AnyScenario) -> None:
    """Refuse what other packages add and cannot be charged openly, unless ``privacy.unchecked`` is set.

    Raises:
        ValueError: an optimizer has not met its contract; noise, an aggregation, a transform or a section has no
            contract; or noise is correlated, which the contract of check-in does not test.
    """
    for key, kind in {} if scenario.privacy.unchecked else foreign_schemes(scenario).items():
        if key == "check_in" and facts.NOISE_INDEPENDENT not in scenario.privacy.noise.keeps:
            noise = f"privacy.noise.scheme {scenario.privacy.noise.scheme}"
            why = f"no contract tests the charge of check_in {_class_name(kind)} with it"
            raise ValueError(f"{noise}: {why}; expected: scheme independent, or privacy.unchecked: true")
        if key in _OPEN or (key in _CONTRACTS and has_passed(kind)):
            continue
        why, expected = "is of another package, and no contract of fedamp covers it", "it is left out"
        if key in _CONTRACTS:
            why, expected = "has not met its contract on this machine", f"its {_CONTRACTS[key]} has passed"
        raise ValueError(f"{key}: {_class_name(kind)} {why}; expected: {expected}, or privacy.unchecked: true")


def unchecked_words(scenario: AnyScenario) -> str:
    """Say which schemes are charged though nobody has checked them; empty: none is."""
    schemes = foreign_schemes(scenario) if scenario.privacy.unchecked else {}
    names = [f"{key} {_class_name(kind)}" for key, kind in schemes.items() if not has_passed(kind)]
    return f"unchecked: no contract has tested the charge of {' and of '.join(names)}" if names else ""


def charged_openly(scenario: AnyScenario) -> list[str]:
    """Say which schemes are charged without amplification because their contract has not passed, one a line."""
    schemes = {} if scenario.privacy.unchecked else foreign_schemes(scenario)
    return [
        f"{key} is charged without amplification: {_class_name(kind)} has not met its contract on this machine; "
        f"expected: its {_CONTRACTS[key]} has passed, or privacy.unchecked: true"
        for key, kind in schemes.items()
        if key in _OPEN and not has_passed(kind)
    ]


_SCHEME, _MET = "the scheme of ", "which has met its contract"
"""Words of the sentences of :func:`assumptions_of`."""


def assumptions_of(scenario: AnyScenario) -> list[str]:
    """Say on which packages the guarantee rests beside fedamp, and whether their schemes have met their contract."""
    said = []
    for key, kind in foreign_schemes(scenario).items():
        met = "which is charged without amplification"
        if (tested := tested_keys(kind)) is not None:
            met = " ".join([_MET, " and ".join(f"({keys})" for keys in tested)]).rstrip()
        elif scenario.privacy.unchecked:
            met = "which is charged as it says, unchecked"
        said.append(f"{_SCHEME}{key} is {_class_name(kind)}, {met}")
    return said


def without_tests(sentences: Iterable[str]) -> list[str]:
    """Copy a ledger's assumptions without the keys of tests, which may be others on another machine, or later."""
    return ["".join(each.partition(_MET)[:2]) if each.startswith(_SCHEME) else each for each in sentences]


def told_schemes(sentences: Iterable[str]) -> list[str]:
    """Return those of a ledger's assumptions that name schemes of other packages."""
    return [each for each in sentences if each.startswith(_SCHEME)]


def _class_name(kind: type) -> str:
    """Write a class with its package, for people."""
    package = package_of(kind)
    return path_of(kind) + (f" of {package}" if package else "")


def _keys_in(file: Path, identity: dict[str, object] | None) -> list[str] | None:
    """Read the tested keys in a note; None: there is none, or it is damaged or of something else."""
    if not file.is_file():
        return None
    try:
        found = json.loads(read_regular(file))
        tested = list(map(str, found.pop("tested")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return tested if found == identity else None


def _note_file(identity: dict[str, object] | None) -> Path | None:
    """Return the file of a class's note, by :func:`_identity_of` it; None where nothing is noted."""
    if identity is None or os.environ.get("FEDAMP_CACHE") == "off":
        return None
    return (
        cache_folder()
        / "contracts"
        / f"{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()}.json"
    )


def _identity_of(kind: type) -> dict[str, object] | None:
    """Return the content of a note; None: the source of a base cannot be found."""
    code = {}
    for base in filter(is_foreign, kind.__mro__):
        if base.__module__.partition(".")[0] in ("pydantic", *sys.stdlib_module_names):
            continue
        try:
            code[path_of(base)] = _code_digest(base)
        except (OSError, TypeError):
            return None
    return {
        "class": path_of(kind),
        "code": code,
        "package": package_of(kind),
        "fedamp": version(),
    }


def _code_digest(kind: type) -> str:
    """Hash the code of the whole package of a class: its charge may rest on any module there.

    Raises:
        OSError, TypeError: its code is in no file.
    """
    file = Path(inspect.getfile(kind))
    folders = getattr(sys.modules.get(kind.__module__.partition(".")[0]), "__path__", None)
    files = [file] if folders is None else sorted(each for folder in folders for each in Path(folder).rglob("*.py"))
    found = hashlib.sha256()
    for each in files:
        text = each.read_bytes()
        found.update(f"{each.name} {len(text)}\n".encode() + text)
    return found.hexdigest()
