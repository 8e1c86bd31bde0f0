"""Papers, pages and tables of runs with each feature on and off: all of them say the same, and what the ledger says."""

import json
import re
from pathlib import Path

import pytest
from scipy.stats import norm

import fedamp
from fedamp.extensions.evaluation.section import ClientEvaluation
from fedamp.extensions.pages import page
from fedamp.extensions.pages.board import AboutRelease, write_papers
from fedamp.extensions.pages.watch import progress
from fedamp.extensions.population.store import Population
from fedamp.report.tables import printed, run_table
from fedamp.runs.run import read_run
from tests.extensions.pages.test_board import ABOUT
from tests.federations import small

NOISE = 4.0
ALONE = ("federation.evaluate_every=0", "check_in={scheme: all}", f"privacy.noise_multiplier={NOISE}", "rounds=3")
PEOPLE = {"on": "clients", "noise_multiplier": 20.0}
GROUPS = PEOPLE | {"by": {"north": "0-56", "south": "57-59"}, "noise_multiplier": 8.0}


def evaluated(**keys):
    return f"evaluation={json.dumps(PEOPLE | keys)}"


# A run: its overrides, and which of the features below it has.
RUNS = {
    "nothing": ((), ""),
    "by group": ((evaluated(**GROUPS), "privacy.population=people.db"), "people groups population"),
    "stopped early": (("federation.evaluate_every=1", "rounds=8"), "public early"),
    "adaptive clip": (("privacy.clip={initial: 0.5, noise_multiplier: 8}", "known_seed=true"), "adaptive known"),
    "public": (("federation.evaluate_every=1",), "public"),
    "people": ((evaluated(),), "people"),
    "every round": ((evaluated(every=1),), "people"),
    "people and public": ((evaluated(), "federation.evaluate_every=1"), "people public"),
    "loss alone": ((evaluated(metrics=["loss"], noise_multiplier=3),), "loss"),
    "stopped before its evaluation": ((evaluated(), "rounds=8"), "early unevaluated"),
    "means": (
        ("data.transform=[{name: standardise, mean: private, range: [0, 1], noise_multiplier: 20}]",),
        "means",
    ),
    "secure": (("aggregation={scheme: secure, nodes: 6, dropped: 0.0, colluding: 0.0}",), "secure"),
    "budget": (("privacy.epsilon=1.5",), "budget"),
    "no noise": (("privacy.noise_multiplier=0",), "open"),
}
BOARD = ("nist-sp-800-226.md", "model-card.md", "assessment.md")
PAGES = ("certificate", "report")
# A feature: what each of these texts says where it is on and no text where it is off; what no text says where it is on.
CLAIMS = {
    "public": ([*BOARD, *PAGES, "repr", "table", "watch"], r"% accuracy|accuracy \d", None),
    "people": ([*BOARD, *PAGES, "table"], "score of all people: |score of all people", None),
    "loss": (
        [*BOARD, *PAGES, "repr", "table", "watch"],
        r"loss( of all people)?:? ?\d\.\d+ ±|loss of all people",
        None,
    ),
    "groups": ([*BOARD, *PAGES, "table"], "score of south", "not measured by group"),
    "population": (
        [*BOARD, "registry.yaml", *PAGES],
        "all uses charged to this population",
        r"one run alone|this run alone",
    ),
    "early": (BOARD[:2], "because releases may have decided the stop", r"charge covers all of them"),
    "means": ([*BOARD, "certificate", "report"], "(means and deviations|sums) of inputs", None),
    "adaptive": (["report"], "adapted by noisy counts", None),
    "secure": ([*BOARD[::2], *PAGES], "may be dishonest", "server is trusted|it sees each node's sum"),
    "known": ([*PAGES, "repr", "table"], "known seed", "seed. It is secret"),
    "open": ([*PAGES, "repr", "table"], "[Nn]o noise was added", "epsilon <= |ε ≤ "),
}
OFF = {  # what is said where none of these features is on
    "public people loss": (
        [*BOARD, *PAGES, "repr", "table", "watch"],
        "[Nn]ot measured: |not evaluated|quality was not measured(?! by)",
    ),
    "groups": (BOARD, "not measured by group"),
    "population": ([*BOARD, "registry.yaml", "report"], "one run alone|this run alone"),
    "secure": ([*BOARD, *PAGES], "it sees each node.{1,6}s sum"),
    "early": (BOARD[:2], "charge covers all of them"),
}


@pytest.fixture
def texts(request, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(page, "run_pictures", lambda run: {})
    monkeypatch.chdir(tmp_path)
    changes, features = RUNS[request.param]
    if "population" in features:
        Population.new(Path("people.db"), [(str(unit), str(unit)) for unit in range(60)], 6.0, 1e-5)
        fedamp.run(small("known_seed=false", *ALONE, changes[1]), out=tmp_path / "before", anyway=True)
    stops = [lambda record: record.round != 2 and None] if "early" in features else []
    asked = small("known_seed=false", *ALONE, *changes)
    run = fedamp.run(asked, out=tmp_path / "run", callbacks=stops, anyway=True)
    said = {
        "repr": repr(run),
        "table": printed(run_table(run.summary)).export_text(),
        "certificate": page.certificate(run, guess := page.guessing_alone(run)),
    }
    said |= {"report": page.write_report([run.folder], tmp_path / "report.html").read_text()}
    said |= {"watch": " ".join(progress(run.folder).values())}
    if not {"open", "known"} & {*features.split()}:
        made = write_papers(read_run(run.folder), guess, AboutRelease.model_validate(ABOUT), tmp_path / "papers")
        said |= {file.name: file.read_text() for file in made.iterdir()}
    said = {name: " ".join(text.replace("&#39;", "'").replace("│", " ").split()) for name, text in said.items()}
    return said, {*features.split()}, json.loads((run.folder / "ledger.json").read_text())


@pytest.mark.few(0, 1, 2, 3)
@pytest.mark.parametrize("texts", RUNS, indirect=True)
def test_every_text_says_what_the_ledger_says(texts):
    said, features, ledger = texts
    for feature, (places, on, never) in CLAIMS.items():
        for name, text in said.items():
            if feature in features:
                assert name not in places or re.search(on, text), (feature, name, text)
                assert not never or not re.search(never, text), (feature, name, text)
            else:
                assert not re.search(on, text), (feature, name, text)
    for off, (places, words_) in OFF.items():
        for name in {*places} & {*said}:
            expected = not features & {*off.split()}
            if not ("open" in features and name in PAGES):  # such a page says nothing else
                assert bool(re.search(words_, said[name])) == expected, (off, name, said[name])
    spent = ledger["guaranteed_epsilon"] or float("inf")
    for name, text in said.items():
        stated = re.search(r"(?:epsilon <=|ε ≤</?b?>?|ε ≤) (\d+\.\d+)(?: at)?", text)
        if stated and name != "watch":
            assert spent <= float(stated[1]) <= spent + 0.011, name  # rounded up
    assert "50.0 ± 50.0" not in str(said)
    if "groups" in features:
        assert "score of south: not known: the noise hides every value" in said["assessment.md"]
        assert re.search(r"score of north: \d", said["assessment.md"])


@pytest.mark.parametrize("texts", ["stopped early"], indirect=True)
def test_what_is_said_to_a_person_is_of_all_that_is_charged(texts):
    """Oracle: eight rounds in which everybody is are one Gaussian release; 2 of them were played."""
    said, _, _ = texts
    power = 100 * norm.cdf(norm.ppf(0.01) + 8**0.5 / NOISE)
    found = {name: re.search(r"is right in at most ([\d.]+) of 100 cases", text) for name, text in said.items()}
    told = [float(each[1]) for each in found.values() if each]
    assert len(told) >= 5
    assert all(power - 1e-3 <= each <= power + 0.1 for each in told), (power, told)


@pytest.mark.parametrize("metric", ["score", "loss"])
def test_a_number_whose_interval_is_the_whole_range_is_not_known(metric):
    asked = ClientEvaluation.model_validate({"on": "clients", "noise_multiplier": 8.0, "metrics": [metric]})
    most = asked.loss_at_most if metric == "loss" else 1.0
    for part, rest in ((0.0, 0.0), (2.0, 1.0), (3.0, 1.0), (12.0, 2.0), (40.0, 2.0), (300.0, 0.0), (0.0, 300.0)):
        found = asked.released(1, [part, rest], 8.0, 60).of(metric)
        whole = (found.lower, found.upper) == (0.0, most)
        assert (found.in_words == "not known: the noise hides every value") == whole, (part, rest)
