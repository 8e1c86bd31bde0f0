"""Certify to a person who has left what was released from her data, and what it can reveal about her.

A certificate is a folder: ``certificate.json`` with every number, the same as a text (HTML and PDF), and
``signature.json`` with the digests of the three, signed as a release is (:mod:`fedamp.extensions.pages.release`). It
can be checked without the population's file. It promises no unlearning: docs/research/leaving.md says what it means.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedamp.accounting import from_json
from fedamp.accounting.search import Budget
from fedamp.accounting.verify import TOLERANCE, Check, check_signature, signed_content, text_of
from fedamp.base.files import flush, write_atomically, writing
from fedamp.base.reading import read_regular
from fedamp.errors import InputError
from fedamp.extensions.pages.release import default_key, signing_key
from fedamp.extensions.population import papers
from fedamp.extensions.population.history import epsilon_alone, finite, history_of, risk_of
from fedamp.extensions.population.store import Population, PopulationError, held
from fedamp.runs.ledger import WRITTEN_BY

FORMAT = "fedamp certificate of a person 1"
CERTIFICATE, SIGNATURE = "certificate.json", "signature.json"
FILES = (CERTIFICATE, "certificate.html", "certificate.pdf")


@dataclass(frozen=True)
class Signatory:
    """The organisation that signs a certificate.

    Attributes:
        name: of the organisation.
        contact: an address for questions and complaints.
        key: file of its Ed25519 key; None: this user's (:func:`fedamp.extensions.pages.release.default_key`).
    """

    name: str
    contact: str
    key: Path | None = None


def write_certificate(
    population: Population,
    person: str,
    by: Signatory,
    out: Path,
    language: papers.Language = "en",
    template: Path | None = None,
) -> str:
    """Write the certificate of a person who has left, as a new folder.

    A half folder never has its name, and of two processes with one name one is refused.

    Args:
        population: that the person has left.
        person: id.
        by: who signs.
        out: the folder; it must not exist.
        language: of the text.
        template: the organisation's own text (:func:`fedamp.extensions.population.papers.template_of`).

    Returns:
        The public key, 64 hexadecimal digits.

    Raises:
        PopulationError: nobody has this id, or the person has not left.
        InputError: the folder exists or cannot be written, or the key or the template cannot be read.
    """
    number, contents = population.person(person), population.read()
    if number not in contents.left:
        raise PopulationError(f"{population.file}: {person!r} has not left; expected: fedamp population leave, first")
    told = history_of(contents, number)
    mechanisms = {use.id: charge.mechanism.to_json() for use, charge in contents.series(number)}
    uses = [{key: each for key, each in use.items() if key not in ("share", "epsilon_so_far")} for use in told["uses"]]
    answer = {
        "format": FORMAT,
        "organisation": by.name,
        "contact": by.contact,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "person": person,
        "left_on": told["left_on"],
        "population": contents.id,
        "head": contents.head,
        "budget_epsilon": told["budget_epsilon"],
        "delta": told["delta"],
        "share": told["share"],
        "epsilon": told["adaptive_epsilon"],
        "factor": factor_of(told["adaptive_epsilon"]),
        "risk": told["risk"],
        "uses": [use | {"mechanism": mechanisms[use["use"]]} for use in uses],
    }
    text = papers.filled(papers.template_of("certificate", language, template), answer)
    signing = signing_key(by.key or default_key())
    beside = out.with_name(f".{out.name}.writing")
    with held(f"certificate-{hashlib.sha256(os.path.abspath(out).encode()).hexdigest()[:32]}"), writing(out):
        if out.exists() or out.is_symlink():
            raise InputError(f"{out}: exists already; expected: a new folder with --out")
        shutil.rmtree(beside, ignore_errors=True)  # of a crash
        beside.mkdir(mode=0o700, parents=True)
        try:
            papers.write_both(text, beside, "certificate", language)
            write_atomically(beside / CERTIFICATE, text_of(answer).encode())
            digests = {name: _digest(beside / name) for name in FILES}
            public_key = signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
            manifest: dict[str, Any] = {"format": FORMAT, "written_by": WRITTEN_BY, "name": person}
            manifest |= {"head": contents.head, "files": digests, "public_key": public_key}
            manifest["signature"] = signing.sign(signed_content(manifest)).hex()
            write_atomically(beside / SIGNATURE, text_of(manifest).encode())
            beside.rename(out)
            flush(out.parent)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return public_key


def factor_of(epsilon: float | None) -> float | None:
    """Return by how much the probability of a conclusion may differ between the two worlds, e^epsilon, rounded up."""
    return None if epsilon is None or epsilon > 700 else math.nextafter(math.exp(epsilon), math.inf)


def verify_certificate(
    folder: Path, ledgers: Sequence[tuple[Path, Mapping[str, Any]]] = (), public_key: str | None = None
) -> list[Check]:
    """Check the signature of a certificate, and compute its numbers again from the mechanisms that it names.

    Args:
        folder: of the certificate.
        ledgers: of runs or releases, each beside its folder: the certificate must name their models.
        public_key: received through a trusted channel; None: the certificate's own, which is a caution.

    Raises:
        InputError: it is no certificate.
    """
    try:
        manifest, told = (json.loads(read_regular(folder / name)) for name in (SIGNATURE, CERTIFICATE))
        wrong = next((name for name in FILES if _digest(folder / name) != manifest["files"][name]), None)
        wrong = wrong or next((each.name for each in folder.iterdir() if each.name not in (*FILES, SIGNATURE)), None)
        as_written = read_regular(folder / SIGNATURE).decode() == text_of(manifest) and manifest["format"] == FORMAT
        found = f"{wrong} is not as it was signed" if wrong else None if as_written else f"{SIGNATURE} was changed"
        checks = [Check.of_failure("files", "as they were signed", fail=found), check_signature(manifest, public_key)]
        if found:
            return checks  # nothing in it can be believed
        faults = "; ".join(_false_numbers(told))
    except (OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{folder}: no certificate that can be read ({' '.join(str(error).split())})") from None
    checks.append(
        Check.of_failure("numbers", f"epsilon <= {told['epsilon']} for all {len(told['uses'])} uses", fail=faults)
    )
    named = {use["released"]["ledger"] for use in told["uses"] if use["released"]}
    for run, ledger in ledgers:
        missing = None if ledger["head"] in named else f"{run}: its ledger is not named"
        checks.append(Check.of_failure("models", f"{run}: its ledger is named", fail=missing))
    return checks


def _digest(file: Path) -> str:
    """Compute the SHA-256 of a file."""
    return hashlib.sha256(read_regular(file)).hexdigest()


def _false_numbers(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield each number of a certificate that is smaller than it is when it is computed again; more may be claimed."""

    def less(claimed: float | None, value: float | None) -> bool:
        return claimed is not None and (value is None or claimed < value * (1 - TOLERANCE))

    budget = Budget(told["budget_epsilon"], told["delta"])
    mechanisms = [from_json(use["mechanism"]) for use in told["uses"]]
    share = sum(budget.share_of_use(mechanism) for mechanism in mechanisms)
    again = {"share": finite(share), "epsilon": finite(budget.spent_epsilon(share))}
    again["factor"] = factor_of(again["epsilon"])
    risk, claimed_risk = risk_of(budget, share), told["risk"]
    for key, value in again.items():
        if less(told[key], value):
            yield f"{key} is {told[key]}; computed again it is {value}"
    if claimed_risk is not None and (risk is None or any(less(claimed_risk[key], risk[key]) for key in risk)):
        yield f"risk is {claimed_risk}; computed again it is {risk}"
    for use, mechanism in zip(told["uses"], mechanisms, strict=True):
        if less(use["epsilon"], alone := epsilon_alone(mechanism, told["delta"])):
            yield f"epsilon of {use['run']} is {use['epsilon']}; computed again it is {alone}"
