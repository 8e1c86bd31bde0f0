"""A board's papers say what the ledger and the organisation say, in the form of those who read them."""

import datetime
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from huggingface_hub import ModelCard

from fedamp.errors import InputError
from fedamp.extensions.pages.board import PAPERS
from fedamp.extensions.pages.release import release
from fedamp.federation.losses import records_of
from fedamp.server.launch import launch
from tests.federations import Silent, small

ABOUT = {
    "organisation": "St Mary's <Hospital>",
    "contact": "privacy@example.org",
    "date": "2026-11-26",
    "product": "A model that reads digits.",
    "purpose": "Research: not for decisions about people.",
    "region": "European Union",
    "people": "Patients of three wards.",
    "legal_basis": "Consent.",
    "security": "Encrypted disks.",
    "tuning": "Settings were chosen on public data.",
    "other_uses": "none",
    "license": "apache-2.0",
}
# The headings of chapters 2 to 4 of NIST SP 800-226, each of which asks something about a claim.
NIST = """Definition and relation; Unit of privacy; Privacy parameters; Composition and budget; Mechanism;
Public quantities; Utility; Bias; Trust model; Floating point; Side channels; Hyperparameters;
Data security and access control; Data collection exposure"""


@pytest.fixture(scope="module")
def run(runs, home):
    return runs["hidden"]


def papers_of(run: Path, folder: Path, **changes: object) -> dict[str, str]:
    about = folder / "about.yaml"
    about.write_text(yaml.safe_dump({key: value for key, value in (ABOUT | changes).items() if value is not None}))
    made = release(run, folder / "release", about=about).papers
    assert made == folder / "release-papers"
    assert {path.name for path in made.iterdir()} == set(PAPERS)
    return {name: (made / name).read_text() for name in PAPERS}


@pytest.fixture(scope="module")
def papers(run, tmp_path_factory):
    return papers_of(run, tmp_path_factory.mktemp("papers"))


def sections(text: str) -> dict[str, str]:
    _, *each = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return {title: body.strip() for title, body in zip(each[::2], each[1::2], strict=True)}


def test_every_heading_of_nist_has_an_answer(papers):
    answers = sections(papers["nist-sp-800-226.md"])
    assert list(answers) == [heading.strip() for heading in NIST.split(";")]
    assert all(answers.values())


def test_the_registry_accepts_the_entry(run, papers):
    entry = yaml.safe_load(papers["registry.yaml"])
    schema = yaml.safe_load((Path(__file__).parent / "registry_schema.yaml").read_text())
    jsonschema.validate(entry, schema, format_checker=jsonschema.FormatChecker())
    ledger = json.loads((run / "ledger.json").read_text())
    stated = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    assert stated == {"epsilon": ledger["guaranteed_epsilon"], "delta": ledger["delta"]}
    assert entry["deployment"]["basic"]["data_curators"] == [ABOUT["organisation"]]


def test_the_hub_reads_the_model_card(run, papers):
    card = ModelCard(papers["model-card.md"])
    last = json.loads((run / "summary.json").read_text())["final"]
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", last["accuracy"])
    assert card.data.license == "apache-2.0"
    titles = (
        "Model details",
        "Uses",
        "Bias, risks and limitations",
        "Training data",
        "Training procedure",
        "Evaluation",
    )
    assert set(titles) <= set(sections(card.text))


def test_every_number_is_of_the_ledger_the_organisation_or_the_score(run, papers):
    ledger = json.loads((run / "ledger.json").read_text())
    known = re.findall(r"\d[\d.e-]*", json.dumps(ledger | {"releases": len(ledger["releases"])}))
    known += [*ABOUT["date"].split("-"), "800", "226", "2025"]  # the name of NIST's publication, and its year
    known += [str(100 * json.loads((run / "summary.json").read_text())["final"]["accuracy"])]
    numbers = [float(text) for text in known if re.fullmatch(r"\d+\.?\d*(e-?\d+)?", text)]
    for name in ("nist-sp-800-226.md", "assessment.md"):
        text = re.sub(r"Somebody who suspects.*", "", papers[name])  # the risk, which tests of the accountant check
        text = re.sub(r"Against somebody who knows.*|`[0-9a-f]{64}`|epsilon, delta", "", text)
        for said in re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*(?:e-?\d+)?", text):
            value = float(said.replace(",", ""))
            assert any(abs(value - number) <= 0.01 * number for number in numbers), (name, said)


def test_an_answer_stands_as_it_was_given_and_changes_no_other(run, papers, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "fedamp.extensions.pages.page.records_of", lambda scenario: read.append(0) or records_of(scenario)
    )
    changed = papers_of(run, tmp_path, purpose="Triage only.", sector="Healthcare")
    assert read == [0]  # page and papers say how often a guess is right, and the records are read once
    for name in PAPERS:
        assert "Triage only." in changed[name]
        assert "St Mary's <Hospital>" in changed[name]
    assert changed["nist-sp-800-226.md"].count("\n") == papers["nist-sp-800-226.md"].count("\n")


def test_a_missing_file_becomes_the_form_and_nothing_is_released(run, tmp_path):
    about = tmp_path / "about.yaml"
    with pytest.raises(InputError, match=r"about\.yaml: is new and empty; expected: each of its keys filled in"):
        release(run, tmp_path / "release", about=about)
    assert set(yaml.safe_load(about.read_text())) == {*ABOUT, "sector"}
    with pytest.raises(InputError, match=r"about\.yaml: organisation: .*; expected: who publishes the model"):
        release(run, tmp_path / "release", about=about)
    assert [path.name for path in tmp_path.iterdir()] == ["about.yaml"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("contact", " "),
        ("contact", None),
        ("date", "soon"),
        ("sector", "Weapons"),
        ("people", ["a", "b"]),
        ("wish", "more"),
        ("date", datetime.datetime(2026, 1, 1, 12)),
    ],
)
def test_a_wrong_answer_is_named_and_nothing_is_released(run, tmp_path, key, value):
    with pytest.raises(InputError, match=rf"about\.yaml: {key}: .*; expected: "):
        papers_of(run, tmp_path, **{key: value})
    assert [path.name for path in tmp_path.iterdir()] == ["about.yaml"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [(["known_seed=true"], "its seed is known"), (["privacy={clip: 1, noise_multiplier: 0}"], "no noise was added")],
)
def test_a_run_without_a_guarantee_gets_no_papers(home, tmp_path, changes, why):
    launch(small("rounds=3", "known_seed=false", *changes), Silent(), tmp_path / "run")
    with pytest.raises(InputError, match=rf"{why}; expected for papers: a private run"):
        papers_of(tmp_path / "run", tmp_path)
    assert not (tmp_path / "release").exists()
