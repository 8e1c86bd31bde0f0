"""Papers for the people who decide whether a model may be published, written beside its release.

Facts about privacy come from the run's ledger alone. What no ledger can hold (who publishes, for what, from whose data)
comes from a file that the organisation fills in. docs/releasing.md.
"""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, StringConstraints, ValidationError

from fedamp.base.files import write_atomically
from fedamp.base.numbers import at_most, power
from fedamp.base.record import one_line
from fedamp.base.section import Section
from fedamp.errors import InputError
from fedamp.report import words
from fedamp.report.page import interpretation
from fedamp.runs.run import Run

PAPERS = ("nist-sp-800-226.md", "registry.yaml", "model-card.md", "assessment.md")
Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class About(Section):
    """What an organisation says about a release; every answer stands in the papers as it is given."""

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
    """The file to fill in: a key a line, each with its question."""
    return "".join(f"{key}:  # {field.description}\n" for key, field in About.model_fields.items())


def read_about(file: Path) -> About:
    """What the organisation says.

    Raises:
        InputError: a key is missing, empty, unknown or of another kind; or there was no file, and the form to fill in
            stands there now.
    """
    try:
        if not file.exists():
            write_atomically(file, form().encode(), durable=False)
            raise InputError(f"{file}: is new and empty; expected: each of its keys filled in, then the same command")
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read or written ({error})") from None
    except yaml.YAMLError as error:
        raise InputError(f"{file}: no YAML ({' '.join(str(error).split())})") from None
    try:
        return About.model_validate(raw if isinstance(raw, dict) else {})
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        wanted = About.model_fields[key].description if key in About.model_fields else ", ".join(About.model_fields)
        raise InputError(f"{file}: {one_line(error)}; expected: {wanted}") from None


def check_guarantee(run: Run) -> None:
    """InputError: the run has no guarantee that a paper could state."""
    if not run.is_private or run.has_known_seed:
        why = "its seed is known" if run.is_private else "no noise was added"
        raise InputError(f"{run.folder}: {why}; expected for papers: a private run with known_seed: false")


def write_papers(run: Run, about: About, folder: Path) -> Path:
    """Write :data:`PAPERS` of a run with a guarantee into a new folder; InputError: it cannot be written."""
    check_guarantee(run)
    papers = dict(zip(PAPERS, _papers(run, about), strict=True))
    try:
        folder.mkdir()
        for name, text in papers.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); expected: a new folder") from None
    return folder


def _papers(run: Run, about: About) -> Iterator[str]:
    made = words.environment().overlay(autoescape=False)
    facts = _facts(run)
    values = {"about": about, "facts": facts, "ledger": run.ledger, "run": run}
    yield made.get_template("board/nist_sp_800_226.md.j2").render(values)
    yield yaml.safe_dump(_registry(run, about, facts), sort_keys=False, allow_unicode=True, width=100)
    yield (
        "---\n"
        + yaml.safe_dump(_card(run, about), sort_keys=False)
        + "---\n"
        + made.get_template("board/model_card.md.j2").render(values)
    )
    yield made.get_template("board/assessment.md.j2").render(values)


def _facts(run: Run) -> dict[str, str]:
    """The statements that several papers make."""
    ledger, alone, server = run.ledger, run.ledger.group_size == 1, run.ledger.epsilon_server
    return {
        "unit": {"client": "All records that one client holds", "sample": "One record"}[ledger.unit]
        + ("" if alone else f"; the guarantee is for any {ledger.group_size} {ledger.unit}s together"),
        "protected": words.protected(ledger.unit, ledger.group_size),
        "epsilon": f"epsilon <= {at_most(ledger.epsilon)} at delta = {power(ledger.delta)}",
        "in_words": interpretation(run),
        "server": f"Guarantee towards who runs the server: {words.for_server(server.upper if server else None)}",
        "tested": f"{words.score(run.score)} on public test records" if run.evaluated else words.NOT_MEASURED,
        "rounds": f"The charge covers {len(ledger.releases)} models, one a round, of {ledger.rounds_planned} planned",
        "public": f"the number of {ledger.unit}s ({ledger.units:,}), and the public scenario of the release",
    }


def _registry(run: Run, about: About, facts: dict[str, str]) -> dict[str, Any]:
    """An entry of the registry of deployments of differential privacy (arXiv 2509.13509; schema: OpenDP's of 2026)."""
    ledger = run.ledger
    basic: dict[str, Any] = {
        "name": ledger.scenario,
        "data_curators": [about.organisation],
        "description": about.product,
        "intended_use": about.purpose,
        "data_product_type": "Machine learning model",
        "data_product_region": about.region,
        "publication_date": about.date.isoformat(),
    }
    basic |= {"data_product_sector": about.sector} if about.sector else {}
    deployment = {
        "basic": basic,
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": about.people,
            "unprotected_quantities": f"Public without noise: {facts['public']}.",
        },
        "privacy_loss": {
            "privacy_unit": facts["unit"],
            "privacy_unit_details": ledger.adjacency,
            "privacy_parameters": {"epsilon": ledger.epsilon, "delta": ledger.delta},
            "privacy_parameters_details": facts["in_words"],
        },
        "deployment_model": {
            "model_name": "Federated",
            "actors": f"Guarantee towards who sees the models: {facts['epsilon']}. {facts['server']}.",
            "release_type": "Many releases",
            "release_type_details": f"{facts['rounds']}. Other uses of these people's data: {about.other_uses}",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "composition": f"{ledger.mechanism_in_words}. The upper end is {ledger.epsilon_bound}.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": about.tuning,
            "mechanisms": "\n".join((f"{ledger.written_by}.", *ledger.assumptions, about.security)),
        },
        "administrative": {
            "notes": f"Head of the ledger's chain: {ledger.head}",
            "registry_authors": [about.organisation],
        },
    }
    slug = "".join(letter if letter.isalnum() else "-" for letter in f"{ledger.scenario}-{about.organisation}".lower())
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def _card(run: Run, about: About) -> dict[str, Any]:
    """The metadata of a model card, as Hugging Face's hub reads it."""
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
