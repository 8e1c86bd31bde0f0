"""Write papers for the people who decide whether a model may be published, beside its release.

Facts about privacy come from the run's ledger alone. No ledger can hold who publishes, for what, from whose data: that
comes from a file that the organisation fills in. docs/releasing.md explains the papers; their texts are templates in
``templates/board``.
"""

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, StringConstraints, ValidationError

from fedamp.base.files import write_atomically
from fedamp.base.numbers import at_most, power
from fedamp.base.reading import read_typed
from fedamp.base.record import one_line
from fedamp.base.section import Section
from fedamp.base.yaml_files import UNREADABLE, Loader
from fedamp.errors import InputError
from fedamp.extensions.evaluation.section import ClientEvaluation
from fedamp.extensions.pages.page import interpretation, person_word
from fedamp.extensions.pages.templates import environment
from fedamp.report import words
from fedamp.runs.run import Run

PAPERS = ("nist-sp-800-226.md", "registry.yaml", "model-card.md", "assessment.md")
Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class AboutRelease(Section):
    """The answers of an organisation about a release; each is in the papers as it is given."""

    organisation: Said = Field(description="who publishes the model")
    contact: Said = Field(description="an address for questions and complaints")
    date: datetime.date = Field(description="when the model is published: YYYY-MM-DD")
    product: Said = Field(description="what the model does, in a sentence")
    purpose: Said = Field(description="what it may be used for, and for what it must not be used")
    region: Said = Field(description="where the people live, or whose law applies")
    people: Said = Field(description="whose data trained it, how they were collected, who agreed")
    legal_basis: Said = Field(description="the legal ground of the processing")
    security: Said = Field(description="how the records are guarded where they lie, and who may read them")
    tuning: Said = Field(description="on whose data the settings were chosen, and whether that is charged")
    other_uses: Said = Field(description="what else was released from these people's data, or: none")
    license: Said = Field(description="the licence of the model, as an SPDX name, or: other")
    sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None = Field(
        None, description="Technology, Healthcare, Education, Government, Energy or Finance; may stay empty"
    )


def form() -> str:
    """Return the file to fill in: a key a line, each with its question."""
    return "".join(f"{key}:  # {field.description}\n" for key, field in AboutRelease.model_fields.items())


def read_about(file: Path) -> AboutRelease:
    """Read the answers of an organisation.

    Args:
        file: YAML; if there is none, the form to fill in is written there.

    Raises:
        InputError: a key is missing, empty, unknown or of another kind; or there was no file.
    """
    try:
        if not file.exists():
            write_atomically(file, form().encode(), durable=False)
            raise InputError(f"{file}: is new and empty; expected: each of its keys filled in, then the same command")
        raw = yaml.load(read_typed(file), Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read or written ({error})") from None
    except UNREADABLE as error:
        raise InputError(f"{file}: no YAML ({' '.join(str(error).split())})") from None
    try:
        return AboutRelease.model_validate(raw if isinstance(raw, dict) else {})
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        fields = AboutRelease.model_fields
        wanted = fields[key].description if key in fields else ", ".join(fields)
        raise InputError(f"{file}: {one_line(error)}; expected: {wanted}") from None


def _tested_quality(run: Run, guess: str) -> tuple[str, str]:
    """Describe how good the model is, for all people and by group."""
    asked, said = run.ledger.side_sum, words.released(run.ledger.side_release)
    said = {name: f"{name}: {found}" for name, found in said.items()}
    groups = asked.group_slots if isinstance(asked, ClientEvaluation) and asked.group_names else ()
    grouped = [said.pop(name) for name in list(said) if name.partition(" of ")[2] in groups]
    last = [f"{words.score(run.score)} on public test records (round {each.round})" for each in run.evaluated[-1:]]
    by_group = f"Quality by group: {'; '.join(grouped)}" if grouped else "Quality was not measured by group"
    tested = [*last, *said.values()]
    return "; ".join(filter(None, [*tested, guess])) if tested else words.NOT_MEASURED, by_group


def check_guarantee(run: Run) -> None:
    """Refuse a run that has no guarantee which a paper could state.

    Raises:
        InputError: it has no noise, or its seed is known.
    """
    if not run.is_private or run.has_known_seed:
        why = "its seed is known" if run.is_private else "no noise was added"
        raise InputError(f"{run.folder}: {why}; expected for papers: a private run with known_seed: false")


def write_papers(run: Run, guess: str, about: AboutRelease, folder: Path) -> Path:
    """Write :data:`PAPERS` of a run with a guarantee into a new folder, and return it.

    Args:
        run: that has ended.
        guess: what :func:`fedamp.extensions.pages.page.guessing_alone` says of it.
        about: answers of the organisation.
        folder: must not exist.

    Raises:
        InputError: the run has no guarantee, or the folder cannot be written.
    """
    check_guarantee(run)
    papers = dict(zip(PAPERS, _released_papers(run, guess, about), strict=True))
    try:
        folder.mkdir()
        for name, text in papers.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); expected: a new folder") from None
    return folder


def _released_papers(run: Run, guess: str, about: AboutRelease) -> Iterator[str]:
    """Yield the text of each paper, in the order of :data:`PAPERS`."""
    made, facts = environment().overlay(autoescape=False), _paper_facts(run, guess)
    flow: Any = {"allow_unicode": True, "default_flow_style": True, "width": math.inf}
    made.filters["quoted"] = lambda value: str(yaml.safe_dump([value], **flow))[1:-2]
    name = f"{run.ledger.scenario}-{about.organisation}".lower()
    slug = "".join(letter if letter.isalnum() else "-" for letter in name)
    values = {"about": about, "facts": facts, "ledger": run.ledger, "run": run, "slug": slug}
    for paper in PAPERS:
        head = (
            f"---\n{yaml.safe_dump(_card_metadata(run, about), sort_keys=False)}---\n"
            if paper == "model-card.md"
            else ""
        )
        yield head + made.get_template(f"board/{paper}.j2").render(values)


def _paper_facts(run: Run, guess: str) -> dict[str, str]:
    """Return the statements that several papers make."""
    ledger, alone, (tested, by_group) = run.ledger, run.ledger.group_size == 1, _tested_quality(run, guess)
    return {
        "unit": {"client": "All records that one client holds", "sample": "One record"}[ledger.unit]
        + ("" if alone else f"; the guarantee is for any {ledger.group_size} {ledger.unit}s together"),
        "person": (person := person_word(run.scenario)),
        "protected": words.protected(person, ledger.group_size),
        "epsilon": f"epsilon <= {at_most(ledger.epsilon)} at delta = {power(ledger.delta)}",
        "in_words": interpretation(run),
        "tested": tested,
        "by_group": by_group,
        "public": f"the number of {ledger.unit}s ({ledger.units:,}), and the public scenario of the release",
    }


def _card_metadata(run: Run, about: AboutRelease) -> dict[str, Any]:
    """Return the metadata of a model card, as Hugging Face's hub reads it."""
    card: dict[str, Any] = {
        "license": about.license,
        "library_name": "fedamp",
        "tags": ["federated-learning", "differential-privacy"],
    }
    if run.score is not None:
        metric, value = run.score
        result = {
            "task": {"type": "other"},
            "dataset": {"type": "public-test-records", "name": f"public test records of {run.ledger.scenario}"},
            "metrics": [{"type": metric, "value": value}],
        }
        card["model-index"] = [{"name": run.ledger.scenario, "results": [result]}]
    return card
