"""The HTML report: one file, complete, and free of what must stay on the server."""

import hashlib
import json
import math
import re
import shutil
from html.parser import HTMLParser

import pytest

from fedamp.errors import InputError
from fedamp.report.page import write_report

pytestmark = pytest.mark.xdist_group("report")

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Checks that tags are balanced, and keeps text and addresses."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text, self.addresses = "", []
        self.feed(content)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    file = write_report([runs["hidden"]], tmp_path_factory.mktemp("page") / "run.html")
    return Page(file.read_text())


def test_the_file_needs_no_other(page):
    assert len(page.addresses) == 2
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    assert "@import" not in page.text
    assert "url(" not in page.text


def test_it_states_the_guarantee_with_its_assumptions(runs, page):
    ledger = json.loads((runs["hidden"] / "ledger.json").read_text())
    summary = json.loads((runs["hidden"] / "summary.json").read_text())
    assert f"ε ≤ {math.ceil(100 * summary['epsilon']['upper']) / 100:.2f}" in page.text
    for fact in (ledger["adjacency"], ledger["mechanism_in_words"], ledger["noise_seed"], *ledger["assumptions"]):
        assert fact in page.text


def test_it_names_ledger_and_models_by_their_digests(runs, page):
    content = (runs["hidden"] / "ledger.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() in page.text
    assert json.loads(content)["releases"][-1]["digest"][:12] in page.text


def test_what_must_stay_on_the_server_does(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["hidden"], folder)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["reported"] = 77_777
        line["unprotected"] = dict.fromkeys(line["unprotected"], 88888)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = json.loads((folder / "summary.json").read_text()) | {"clients_trained": 99_999}
    (folder / "summary.json").write_text(json.dumps(summary))
    text = Page(write_report([folder], tmp_path / "run.html").read_text()).text
    assert not re.search(r"77,?777|88,?888|99,?999", text)


def test_text_of_others_is_not_markup(runs, tmp_path):
    folder = tmp_path / "run <b>&"
    shutil.copytree(runs["hidden"], folder)
    scenario = folder / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("description: ''", "description: <script>alert(1)</script>"))
    content = write_report([folder, runs["open"]], tmp_path / "page.html").read_text()
    assert "<script>" not in content
    assert "run <b>&" in Page(content).text


def test_a_comparison_holds_every_run(runs, tmp_path):
    page = Page(write_report(list(runs.values()), tmp_path / "page.html").read_text())
    assert all(name in page.text for name in runs)
    assert "Caution: the runs have different deltas" in page.text
    assert "without privacy" in page.text


def test_a_run_without_privacy_promises_nothing(runs, tmp_path):
    text = Page(write_report([runs["open"]], tmp_path / "page.html").read_text()).text
    assert "without privacy: no noise was added" in text
    assert "ε ≤" not in text


def test_the_same_runs_give_the_same_file(runs, tmp_path):
    files = [write_report([runs["hidden"]], tmp_path / name).read_bytes() for name in ("a.html", "b.html")]
    assert files[0] == files[1]


def test_a_place_that_cannot_be_written_is_refused(runs, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_report([runs["hidden"]], tmp_path / "nowhere" / "page.html")
