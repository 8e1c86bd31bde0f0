"""The HTML report: one file, complete, and free of what must stay on the server."""

import hashlib
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedamp.errors import InputError
from fedamp.extensions.pages.page import write_report
from fedamp.report.words import KNOWN_SEED
from fedamp.runs.verification import verify_ledger
from tests.chains import forge


class Page(HTMLParser):
    """A page taken apart: facts by name, rows of tables, and the texts of every kind of element."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self._builder, self._open = ElementTree.TreeBuilder(), []
        self.feed(content)
        assert self._open == []
        root = self._builder.close()
        self.elements = {tag: list(root.iter(tag)) for tag in {element.tag for element in root.iter()}}
        self.facts = dict(zip(self.texts("dt"), self.texts("dd"), strict=True))
        self.rows = [[text(cell) for cell in row] for row in self.elements["tr"]]
        self.text = text(root)

    def texts(self, tag: str, kind: str | None = None) -> list[str]:
        return [text(element) for element in self.elements.get(tag, []) if kind in (None, element.get("class"))]

    def handle_starttag(self, tag, attributes):
        self._builder.start(tag, dict(attributes))
        self._open.append(tag)
        if tag in ("meta", "img"):
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self._builder.end(tag)

    def handle_data(self, data):
        self._builder.data(data)


def text(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def rounded_up(value: float) -> str:
    return f"{math.ceil(100 * value) / 100:.2f}"


def content_of(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def page_of(*folders: Path, out: Path) -> Page:
    return Page(write_report(folders, out / "page.html").read_text())


def test_the_page_of_a_run(runs, tmp_path):
    folder = runs["hidden"]
    page = page_of(folder, out=tmp_path)
    ledger, summary = content_of(folder, "ledger.json"), content_of(folder, "summary.json")
    epsilon = rounded_up(summary["epsilon"]["upper"])
    unamplified = rounded_up(summary["unamplified_epsilon"]["upper"])
    assert page.texts("title") == page.texts("h1") == ["small"]
    assert page.texts("h2") == ["In short", "Guarantee", "What was done", "Ledger"]
    boxes = [box for box in page.elements["div"] if box.get("class") in ("card", "card care")]
    cards = {text(box.find("h3")): text(box.find("p")) for box in boxes}
    assert list(cards) == [
        "Who is protected?",
        "Against whom?",
        "What does it mean for a person?",
        "How strong is it?",
        "Other uses of these people's data?",
        "Can anyone remove the noise?",
        "Who reported?",
    ]
    assert (
        cards["Other uses of these people's data?"] == "this run alone; other uses of these people's data add to this."
    )
    assert cards["Who is protected?"].startswith("Each of 60 clients: ")
    assert "The server is trusted" in cards["Against whom?"]
    assert cards["What does it mean for a person?"] == page.facts["interpretation"]
    assert cards["How strong is it?"].startswith(f"ε ≤ {epsilon} at δ = 1e-5. ")
    assert ("Yes: " in cards["Can anyone remove the noise?"]) == ("known" in ledger["noise_seed"])
    assert cards["Who reported?"] == "All scheduled clients, in 8 rounds."
    assert page.texts("p", "verdict") == [
        f"{summary['final']['accuracy']:.1%} accuracy at a privacy cost of ε ≤ {epsilon} (unamplified {unamplified})."
    ]
    assert page.facts["protected"] == "one client of 60, δ = 1e-5"
    assert page.facts["adjacency"] == ledger["adjacency"]
    assert page.facts["ε"].startswith(f"{epsilon} at most, ")
    assert page.facts["ε unamplified"] == unamplified
    assert page.facts["interpretation"].startswith("Somebody who suspects that you took part, and accepts a false ")
    assert page.facts["budget"] == "ε ≤ 12"
    assert page.facts["mechanism"] == f"{ledger['mechanism_in_words']}; amplification is charged"
    assert page.facts["rounds"] == "8 of 8 (finished)"
    assert page.facts["cohort"] == "22.5 of 60 expected a round"
    assert page.facts["protected by"] == "all: clipping norm 0.5, noise multiplier 1"
    assert page.facts["model"] == "logistic, 650 parameters; a client trains 100% of them"
    assert page.facts["a check-in"].startswith("7.8 kB received and sent; ")
    assert page.texts("li") == ledger["assumptions"]
    assert page.texts("p", "caution") == [f"Noise seed {ledger['noise_seed']}."]
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for row, release, line in zip(page.rows[1 : 1 + len(rounds)], ledger["releases"], rounds, strict=True):
        spent = rounded_up(release["epsilon_upper"])
        assert row == [str(release["round"]), f"{line['accuracy']:.1%}", spent, release["digest"][:12]]
    checks = page.rows[1 + len(rounds) :]
    assert {verdict for _, verdict, _ in checks} <= {"pass", "caution"}
    assert [name for name, *_ in checks] == [each.name for each in verify_ledger(folder) if each.name != "reported"]
    assert page.texts("code") == [hashlib.sha256((folder / "ledger.json").read_bytes()).hexdigest()]
    [scenario] = page.texts("pre")
    assert scenario.startswith("name: small seed: 3 known_seed: false data: name: digits")


def test_the_page_of_a_run_that_was_stopped_early_states_what_all_rounds_cost(stopped, tmp_path):
    page = page_of(stopped, out=tmp_path)
    ledger = content_of(stopped, "ledger.json")
    whole = rounded_up(ledger["guaranteed_epsilon"])
    released = rounded_up(ledger["releases"][-1]["epsilon_upper"])
    (verdict,) = page.texts("p", "verdict")
    assert f"at a privacy cost of ε ≤ {whole} (unamplified " in verdict
    assert verdict.endswith(f"; known seed: {KNOWN_SEED}.")
    assert page.facts["ε of these rounds"].startswith(f"{released}, if the stop was independent of the data")
    assert page.facts["rounds"].startswith("2 of 8 (interrupted")


def test_the_page_of_a_run_without_privacy_promises_nothing(runs, tmp_path):
    page = page_of(runs["open"], out=tmp_path)
    (verdict,) = page.texts("p", "verdict")
    assert verdict.endswith(" accuracy, without privacy: no noise was added.")
    assert "ε ≤" not in page.text
    assert "protected" not in page.facts


def test_the_page_of_a_merged_model_states_its_certificate(merged, tmp_path):
    page = page_of(merged, out=tmp_path)
    certificate, summary = content_of(merged, "certificate.json"), content_of(merged, "summary.json")
    epsilon, accuracy = rounded_up(certificate["epsilon"]["upper"]), f"{summary['final']['accuracy']:.1%}"
    assert page.texts("h1") == ["selected"]
    assert page.texts("p", "verdict") == [
        f"{accuracy} accuracy at a privacy cost of ε ≤ {epsilon}, merged from 2 models by random selection."
    ]
    assert page.facts["mechanism"] == certificate["mechanism_in_words"]
    assert page.facts["SHA-256 of the model"] == certificate["model_sha256"]
    assert page.facts["budget"] == "ε ≤ 20"
    assert page.texts("li") == certificate["assumptions"]
    assert page.texts("p", "caution")[0].startswith("A known seed: ")
    assert [row[0].removesuffix(" (drawn)") for row in page.rows[1:]] == [m["name"] for m in certificate["inputs"]]
    assert f"{certificate['draw']['model']} (drawn)" in [row[0] for row in page.rows]
    assert "img" not in page.elements
    # Accuracies of the inputs come from models that are not released.
    assert set(re.findall(r"\d+\.\d%", page.text)) == {accuracy}
    assert (merged / "salt.secret").read_text() not in page.text


def test_the_page_of_a_comparison_holds_every_model(runs, merged, tmp_path):
    folders = [*runs.values(), merged]
    page = page_of(*folders, out=tmp_path)
    names = [folder.name for folder in folders]
    assert page.texts("title") == page.texts("h1") == ["5 models compared"]
    assert page.texts("h2") == names
    assert [row[0] for row in page.rows[1:6]] == names
    for folder, row in zip(folders, page.rows[1:6], strict=True):
        summary = content_of(folder, "summary.json")
        upper = summary["epsilon"]["upper"]
        assert row[1] == f"{summary['final']['accuracy']:.1%}"
        assert row[2] == ("infinite" if upper is None else rounded_up(upper))
    assert page.rows[5][3:] == ["", "merged", "", ""]
    cautions = page.texts("p", "caution")
    assert any(caution.startswith("Caution: the runs have different deltas") for caution in cautions)
    assert any("selected holds only while nothing else of hidden" in caution for caution in cautions)
    assert len(page.elements["img"]) == 2


def test_the_file_needs_no_other_and_is_always_the_same(runs, tmp_path):
    contents = [write_report([runs["hidden"]], tmp_path / name).read_text() for name in ("a.html", "b.html")]
    assert contents[0] == contents[1]
    assert contents[0].startswith("<!doctype html>")
    images = Page(contents[0]).elements["img"]
    assert len(images) == 1
    assert all(image.get("src").startswith("data:image/svg+xml;base64,") for image in images)
    assert not re.search(r"@import|url\(|<link|<script| href=", contents[0])


def test_what_must_stay_on_the_server_does(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs["hidden"], folder)
    scenario = folder / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("agreement: null", "agreement: /srv/secret-clinic.json"))
    assert "secret-clinic" in scenario.read_text()
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"reported": 77_777, "unprotected": dict.fromkeys(line["unprotected"], 88888)}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = {"clients_trained": 8 * 77_777, "clients_failed": 8 * 88_888}
    summary = content_of(folder, "summary.json") | counts
    (folder / "summary.json").write_text(json.dumps(summary))
    forge(folder)
    in_all = f"{8 * 77_777:,}|{8 * 88_888:,}|of {sum(line['scheduled'] for line in lines)}"
    assert not re.search(rf"77,?777|88,?888|secret-clinic|{in_all}", page_of(folder, out=tmp_path).text)


def test_text_of_others_is_not_markup(runs, tmp_path):
    folder = tmp_path / "run <b>&"
    shutil.copytree(runs["hidden"], folder)
    scenario = folder / "scenario.yaml"
    scenario.write_text(scenario.read_text().replace("description: ''", "description: <script>alert(1)</script>"))
    forge(folder)
    page = page_of(folder, runs["open"], out=tmp_path)
    assert "script" not in page.elements
    assert page.texts("h2")[0] == "run <b>&"
    assert "<script>alert(1)</script>" in page.texts("p")


def test_a_place_that_cannot_be_written_is_refused(runs, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_report([runs["hidden"]], tmp_path / "nowhere" / "page.html")
