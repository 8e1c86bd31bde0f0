"""What a person may ask for: to know, to leave, and a certificate that is true."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import zlib
from contextlib import suppress

import numpy as np
import pytest
from scipy.stats import norm

import fedamp
from fedamp.accounting import Gaussian
from fedamp.accounting.search import Budget
from fedamp.engines.wire import RoundOrder
from fedamp.errors import DataError, InputError
from fedamp.extensions.audit import attack
from fedamp.extensions.pages.release import release
from fedamp.extensions.population import certificate, papers
from fedamp.extensions.population.certificate import Signatory, verify_certificate, write_certificate
from fedamp.extensions.population.history import history_of
from fedamp.extensions.population.store import DataUse, Population, PopulationError, UsePrice, counted
from fedamp.runs.folder import RunFolder
from fedamp.server.loop import ask, play
from fedamp.server.setup import prepare
from tests.deployed import Deployment
from tests.extensions.population.test_account import ALL, SCENARIO
from tests.extensions.population.test_store import killed_at
from tests.extensions.secure.consortium import FIVE, Consortium, living
from tests.extensions.secure.test_secure import assert_same_model
from tests.federations import Silent, small
from tests.orders import order_in
from tests.tools import killed_before_line, wait

DELTA, NOISE = 1e-5, 5.0
PEOPLE = [(str(number), str(number)) for number in range(30)]
HOSTILE = "</p><script>alert(1)</script>\n# {{ 7 * 7 }} \x1b[31m\u202e"
BY = Signatory("Clinic <b>", "dpo@example.org")
QUICK = {"rounds": 4, "privacy.noise_multiplier": 12.0, "privacy.precision": 0.05} | ALL


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "people.db"
    Population.new(file, PEOPLE, 4.0, DELTA)
    return file


def charge(file, name, noise=NOISE, purpose="", run="run"):
    """Settle a use of everybody: one release with Gaussian noise."""
    population = Population(file)
    contents = population.read()
    counts = contents.counted(population.owners([unit for unit, _ in PEOPLE]))
    price = UsePrice(1, 4.0, Budget(4.0, DELTA).share_of_use(Gaussian(noise)), Gaussian(noise))
    use = DataUse(name, run, "plan", (price,), counts, token="t", purpose=purpose)
    population.reserve(use, [unit for unit, _ in PEOPLE])
    population.move(name, "running", ["t"], "t")
    released = {"rounds": 3, "model": f"{name}-digest", "ledger": f"{name}-ledger"}
    population.move(name, "settled", ["t"], "t", released)


def gaussian_epsilon(noise):
    """Epsilon of a Gaussian mechanism by its closed form (Balle, Wang 2018), found by halving."""
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        delta = norm.cdf(0.5 / noise - middle * noise) - math.exp(middle) * norm.cdf(-0.5 / noise - middle * noise)
        low, high = (middle, high) if delta > DELTA else (low, middle)
    return high


# To know.


def test_a_history_says_purpose_models_and_what_the_closed_form_says_of_each_cost(file):
    charge(file, "a", purpose="sepsis")
    charge(file, "b")
    told = history_of(Population(file).read(), 3)
    first, second = told["uses"]
    assert (first["purpose"], first["state"]) == ("sepsis", "settled")
    assert first["released"] == {"rounds": 3, "model": "a-digest", "ledger": "a-ledger"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", first["date"])
    # Finite precision of the noise, and the part of delta for tails, cost less than a per cent of epsilon.
    assert first["epsilon"] == pytest.approx(gaussian_epsilon(NOISE), rel=0.01)
    both = gaussian_epsilon(NOISE / math.sqrt(2))
    assert told["fixed_epsilon"] == pytest.approx(both, rel=0.01)
    assert both <= second["epsilon_so_far"] == told["adaptive_epsilon"] < 1.05 * both
    # The best test between two Gaussians at distance d, at one false alarm in 100.
    found = norm.sf(norm.isf(0.01) - math.sqrt(2) / NOISE)
    assert found <= told["risk"]["found"] < found + 0.002
    assert norm.cdf(math.sqrt(0.5) / NOISE) <= told["risk"]["right"] < norm.cdf(math.sqrt(0.5) / NOISE) + 0.005


def pdf_text(file):
    """The letters that a PDF shows, of two bytes each; spaces between lines are left out."""
    shown = b""
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", file.read_bytes(), re.DOTALL):
        with suppress(zlib.error):  # not of text
            shown += b"".join(re.findall(rb"\(\x00(.)\)", zlib.decompress(stream), re.DOTALL))
    return shown.decode("latin-1")


@pytest.mark.parametrize(("language", "words"), [("en", "How your data was used"), ("de", "Wie Ihre Daten verwendet")])
def test_a_letter_is_a_page_and_a_pdf_in_which_no_name_is_markup(fedamp, file, tmp_path, language, words):
    charge(file, "a", purpose=HOSTILE, run=HOSTILE)
    given = ("--out", tmp_path / "letter", "--language", language)
    answer = fedamp("population", "history", file, "3", *given)
    assert answer.status == 0
    page = (tmp_path / "letter" / "history.html").read_text()
    assert words in page
    assert "a-digest" in page
    assert f'lang="{language}"' in page
    assert "<script>" not in page
    assert "{{ 7 * 7 }}" in page
    assert "\x1b" not in page + answer.out
    assert "\u202e" not in page
    assert page.count("<h1>") == 1
    text = pdf_text(tmp_path / "letter" / "history.pdf")
    assert words in text
    assert "a-digest" in text


def test_a_hospital_edits_the_text_of_a_letter(fedamp, file, tmp_path):
    template = tmp_path / "our.md.j2"
    given = ("population", "history", file, "3", "--out", tmp_path / "letter", "--template", template)
    new = fedamp(*given)
    assert new.status == 2
    assert "is new, with fedamp's text" in new.err
    assert "# How your data was used" in template.read_text()
    template.write_text("# Our letter\n\nTo {{ person }}: {{ left }} is left.\n")
    assert fedamp(*given).status == 0
    assert "<p>To 3: 100 % is left.</p>" in (tmp_path / "letter" / "history.html").read_text()
    for wrong in ("{{ nothing }}", "{% if %}"):
        template.write_text(wrong)
        answer = fedamp(*given)
        assert (answer.status, answer.err.count("\n")) == (2, 1)


def test_a_run_tells_its_purpose_and_its_last_model(file, tmp_path):
    run = fedamp.run(SCENARIO, tmp_path / "run", **{"privacy.population": str(file), "description": "sepsis", **QUICK})
    (use,) = history_of(Population(file).read(), 3)["uses"]
    assert (use["purpose"], use["run"]) == ("sepsis", "people")
    last = run.ledger.releases[-1].digest
    assert use["released"] == {"rounds": 4, "model": last, "ledger": run.ledger.head}


# To leave.


@pytest.fixture
def orders(monkeypatch):
    """The units of each order, by round; and those of side sums."""
    found, side, content = {}, [], RoundOrder.content

    def spied(order):
        if order.trains and order.round:
            found.setdefault(order.round, []).extend(order.ids)
        elif order.round:
            side.extend(order.ids)
        return content(order)

    monkeypatch.setattr(RoundOrder, "content", spied)
    return found, side


def test_who_leaves_is_not_asked_from_the_next_round_on_and_others_are_as_before(file, tmp_path, orders):
    """With a known seed both runs have the same schedule."""
    asked, _ = orders
    given = {**QUICK, "check_in": {"scheme": "poisson", "rate": 0.5}, "known_seed": True, "seed": 5}
    fedamp.run(SCENARIO, tmp_path / "before", **given)
    before = {round_: sorted(units) for round_, units in asked.items()}
    asked.clear()
    leaver = next(unit for unit in before[1] if unit in before[3] or unit in before[4])

    def leave(record):
        if record.round == 1:
            Population(file).leave(str(leaver))

    run = fedamp.run(SCENARIO, tmp_path / "run", callbacks=leave, **given, **{"privacy.population": str(file)})
    assert sorted(asked.pop(1)) == before.pop(1)
    assert {round_: sorted(units) for round_, units in asked.items()} == {
        round_: [unit for unit in units if unit != leaver] for round_, units in before.items()
    }
    assert len(run.ledger.releases) == 4
    # What was reserved is spent, as that of all others.
    contents = Population(file).read()
    assert contents.spent() == pytest.approx([contents.spent()[0]] * 30)
    assert contents.spent()[0] > 0


def test_a_new_run_asks_and_charges_nobody_who_has_left(file, tmp_path, orders):
    asked, side = orders
    charge(file, "a")
    paid = Population(file).read().spent()[7]
    Population(file).leave("7")
    Population(file).leave("7")  # changes nothing
    means = {"name": "standardise", "mean": "private", "range": [0, 1], "noise_multiplier": 30}
    asked_for = {
        "data": {"name": "digits", "clients": 30, "transform": [means]},
        "evaluation": {"on": "clients", "share": 0.5, "noise_multiplier": 20},
        "privacy.population": str(file),
    }
    fedamp.run(SCENARIO, tmp_path / "run", **QUICK, **asked_for)
    others = [unit for unit in range(30) if unit != 7]
    assert {round_: sorted(set(units)) for round_, units in asked.items()} == dict.fromkeys(range(1, 5), others)
    assert sorted(side) == others
    spent = Population(file).read().spent()
    assert spent[7] == paid
    assert spent[8] > paid
    assert len(history_of(Population(file).read(), 7)["uses"]) == 1


def test_a_use_that_counts_somebody_who_has_left_is_refused(file):
    population = Population(file)
    units = [unit for unit, _ in PEOPLE]
    Population(file).leave("7")
    price = UsePrice(1, 4.0, 0.1, Gaussian(NOISE))
    use = DataUse("a", "run", "plan", (price,), counted(population.owners(units)), token="t")
    with pytest.raises(PopulationError, match="changed"):
        population.reserve(use, units)


def test_a_round_of_people_who_have_all_left_releases_noise(tmp_path, orders):
    asked, _ = orders
    file = tmp_path / "two.db"
    Population.new(file, PEOPLE[:2], 4.0, DELTA)
    given = {"data": {"name": "synthetic", "clients": 2}, "check_in": {"scheme": "all"}, "rounds": 2}
    given |= {"privacy.noise_multiplier": 12.0, "privacy.population": str(file)}

    def leave(record):
        Population(file).leave("0")
        Population(file).leave("1")

    run = fedamp.run(SCENARIO, tmp_path / "run", anyway=True, callbacks=leave, **given)
    assert len(run.ledger.releases) == 2
    assert asked == {1: [0, 1]}
    with pytest.raises(PopulationError, match="everybody of this run has left"):
        fedamp.run(SCENARIO, tmp_path / "again", anyway=True, **given)
    assert not (tmp_path / "again" / "ledger.json").exists()


def test_nobody_who_is_unknown_leaves_and_one_line_says_so(fedamp, file):
    for person in ("stranger", HOSTILE, ""):
        answer = fedamp("population", "leave", file, person)
        assert (answer.status, answer.err.count("\n")) == (2, 1)
    assert Population(file).read().left == {}
    assert fedamp("population", "leave", file, "3").status == 0
    assert list(Population(file).read().left) == [3]


def test_nodes_that_draw_the_check_ins_leave_out_who_has_left_and_the_run_goes_on(file, tmp_path):
    """All units take part in each round, so the sums of the rounds say which units were in them."""
    every_round = ("rounds=3", "privacy.noise_multiplier=0", "check_in={scheme: balanced, k: 3}")
    consortium = Consortium(tmp_path, *every_round, "check_in.drawn_by=node")
    prepared = prepare(small(*living(FIVE), *every_round))
    alone, grid = (
        prepared.strategy(prepared.state),
        Deployment({name: {"hosts": units} for name, units in FIVE.items()}),
    )
    for round_, left in ((1, frozenset()), (2, frozenset({1, 9, 10}))):
        consortium.play(units_left=left)
        alone.release(round_, ask(alone, grid, round_, left))
        assert_same_model(consortium.strategy, alone)
    told = [order_in(message) for message in consortium.told["masked"]]
    assert sorted(unit for order in told[5:] for unit in order.ids) == [1, 9, 10]
    assert all(order.counted == [] for order in told)
    assert len({len(order.rows) for order in told}) == 1, "messages have one length"


def test_a_run_of_nodes_that_draw_goes_on_when_a_person_leaves(tmp_path, capsys):
    file = tmp_path / "people.db"
    Population.new(file, PEOPLE[:20], 4.0, DELTA)
    drawn = ("check_in={scheme: balanced, k: 3, drawn_by: node}", "rounds=3", "privacy.noise_multiplier=12")
    consortium = Consortium(tmp_path, *drawn, f"privacy.population={file}")
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    folder.write_scenario(consortium.prepared.plan.scenario)

    class Leaving(Silent):
        def round_done(self, record) -> None:
            if record.round == 1:
                Population(file).leave("7")

    play(consortium.prepared, consortium, folder, Leaving())
    ids = [order_in(message).ids for message in consortium.told["masked"]]
    assert ids[:5] == [[]] * 5
    assert sorted(ids[5:]) == [[]] * 8 + [[7]] * 2
    contents = Population(file).read()
    assert [use.state for use in contents.uses.values()] == ["settled"]
    assert contents.spent()[7] == contents.spent()[8] > 0


def test_an_audit_uses_no_records_of_a_person_who_has_left(tmp_path, monkeypatch):
    file, read = tmp_path / "people.db", []
    Population.new(file, [(str(number), str(number)) for number in range(20)], 4.0, DELTA)
    honest = attack.records_of
    monkeypatch.setattr(attack, "records_of", lambda dataset, unit: read.append(unit) or honest(dataset, unit))
    asked = small("data={name: digits, clients: 20}", f"privacy.population={file}", "rounds=1", "check_in.k=1")
    for left, canary in (("1", 0), ("0", 2)):
        Population(file).leave(left)
        attack.CanaryFederation(attack.subject_of(asked, 1))
        assert read == [canary]
        read.clear()
    for person in map(str, range(20)):
        Population(file).leave(person)
    with pytest.raises(DataError, match="none of the first 1000 clients has records and has not left"):
        attack.CanaryFederation(attack.subject_of(asked, 1))


@pytest.mark.slow
def test_a_person_leaves_a_run_of_another_process(file, tmp_path):
    """Two real processes; the run waits in its first round until the other has ended."""
    script = tmp_path / "train.py"
    script.write_text(
        "import json, sys, time, fedamp\nfrom pathlib import Path\n"
        "def wait(record):\n"
        "    if record.round == 1:\n"
        "        Path('began').touch()\n"
        "        while not Path('left').exists():\n"
        "            time.sleep(0.05)\n"
        "fedamp.run(json.loads(sys.argv[1]), 'run', callbacks=wait)\n"
    )
    raw = json.loads(json.dumps(SCENARIO)) | {"rounds": 3, "check_in": {"scheme": "all"}}
    raw["privacy"] |= {"population": str(file), "noise_multiplier": 12.0}
    process = subprocess.Popen([sys.executable, script, json.dumps(raw)], cwd=tmp_path)
    wait((tmp_path / "began").exists)
    leave = [sys.executable, "-m", "fedamp", "population", "leave", str(file), "3"]
    both = [subprocess.Popen(leave) for _ in range(2)]  # at once
    assert [each.wait() for each in both] == [0, 0]
    (tmp_path / "left").touch()
    assert process.wait() == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["reported"] for line in lines] == [30, 29, 29]


# The certificate.


def made(file, folder, person="3"):
    Population(file).leave(person)
    return write_certificate(Population(file), person, BY, folder)


def verdicts(folder, ledgers=(), key=None):
    return {check.name: check.verdict for check in verify_certificate(folder, ledgers, key)}


def test_a_certificate_names_models_and_cost_and_what_it_is_not(fedamp, file, tmp_path):
    charge(file, "a", purpose=HOSTILE)
    charge(file, "b")
    with pytest.raises(PopulationError, match="has not left"):
        write_certificate(Population(file), "3", BY, tmp_path / "paper")
    key = made(file, tmp_path / "paper")
    told = json.loads((tmp_path / "paper" / "certificate.json").read_text())
    both = gaussian_epsilon(NOISE / math.sqrt(2))
    assert both <= told["epsilon"] < 1.05 * both
    assert told["factor"] == pytest.approx(math.exp(told["epsilon"]))
    page = (tmp_path / "paper" / "certificate.html").read_text()
    for words in ("a-digest", "b-ledger", "no unlearning", "copies", "Clinic &lt;b&gt;", "Guessing alone"):
        assert words in page, words
    assert "<script>" not in page
    known = [(tmp_path / "run", {"head": "a-ledger"})]
    assert verdicts(tmp_path / "paper", known, key) == dict.fromkeys(
        ("files", "signature", "numbers", "models"), "pass"
    )
    assert verdicts(tmp_path / "paper")["signature"] == "caution"
    assert verdicts(tmp_path / "paper", key="0" * 64)["signature"] == "fail"
    assert verdicts(tmp_path / "paper", [(tmp_path / "run", {"head": "c-ledger"})], key)["models"] == "fail"
    assert fedamp("population", "verify", tmp_path / "paper", "--key", key).status == 0
    again = fedamp(
        "population", "certificate", file, "3", "--organisation", "o", "--contact", "c", "--out", tmp_path / "paper"
    )
    assert (again.status, again.err.count("\n")) == (2, 1)


def test_a_certificate_that_was_changed_or_claims_less_is_found(fedamp, file, tmp_path, monkeypatch):
    charge(file, "a")
    key = made(file, tmp_path / "paper")
    for number, name in enumerate(("certificate.json", "certificate.html", "certificate.pdf", "signature.json")):
        other = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "paper", other)
        content = (other / name).read_bytes()
        (other / name).write_bytes(content.rstrip() + b" ")
        assert verdicts(other, key=key)["files"] == "fail"
    (tmp_path / "0" / "more.txt").touch()
    assert verdicts(tmp_path / "0")["files"] == "fail"
    # One who signs may still lie: the numbers are computed again.
    honest = certificate.history_of

    def lie(contents, person):
        told = honest(contents, person)
        return told | {"adaptive_epsilon": told["adaptive_epsilon"] / 2}

    monkeypatch.setattr(certificate, "history_of", lie)
    write_certificate(Population(file), "3", BY, tmp_path / "lie")
    assert verdicts(tmp_path / "lie")["numbers"] == "fail"
    for content in (b"", b"{}", b"[" * 100_000, b"\xff"):
        (tmp_path / "1" / "certificate.json").write_bytes(content)
        answer = fedamp("population", "verify", tmp_path / "1")
        assert answer.status in (1, 2)
        assert "Traceback" not in answer.err


@pytest.mark.slow
def test_killed_while_a_certificate_is_written_it_is_whole_or_not_there(file, tmp_path):
    charge(file, "a")
    made(file, tmp_path / "first")  # with its imports and its key
    killed, step, seen = True, 1, set()
    while killed:
        shutil.rmtree(tmp_path / "paper", ignore_errors=True)
        killed = killed_before_line(
            step,
            lambda: write_certificate(Population(file), "3", BY, tmp_path / "paper"),
            lambda code: code is write_certificate.__code__,
        )
        seen.add(there := (tmp_path / "paper").exists())
        if there:
            assert verdicts(tmp_path / "paper")["files"] == "pass"
        step += 6
    assert seen == {False, True}
    shutil.rmtree(tmp_path / "paper")
    write_certificate(Population(file), "3", BY, tmp_path / "paper")
    assert not list(tmp_path.glob(".*writing"))


def test_of_processes_that_write_one_certificate_at_once_one_does(file, tmp_path):
    charge(file, "a")
    made(file, tmp_path / "first")  # with its imports and its key
    population, (starts, go), children = Population(file), os.pipe(), []
    for _ in range(4):
        if not (child := os.fork()):
            status = 2
            try:
                os.close(go)
                os.read(starts, 1)  # until all are there
                write_certificate(population, "3", BY, tmp_path / "paper")
                status = 0
            except InputError as error:
                status = 1 if "exists already" in str(error) else 2
            finally:
                os._exit(status)
        children.append(child)
    os.close(go)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(starts)
    assert sorted(ends) == [0, 1, 1, 1]
    assert verdicts(tmp_path / "paper")["files"] == "pass"
    assert not list(tmp_path.glob(".*writing"))


@pytest.mark.slow
def test_killed_while_a_letter_is_written_it_is_whole_and_of_one_text(file, tmp_path):
    charge(file, "a", run="old")
    folder = tmp_path / "letter"

    def write(words: str) -> None:
        papers.write_both(f"# {words}\n\nMore of {words}.\n", folder, "history", "en")

    killed, step, seen = True, 1, set()
    while killed:
        write("Before")
        killed = killed_before_line(
            step,
            lambda: write("After"),
            lambda code: code.co_name in ("write_both", "write_atomically") and "fedamp" in code.co_filename,
        )
        page, pdf = folder / "history.html", folder / "history.pdf"
        found = [page.read_text().count("After") == 3]
        assert page.read_text().endswith("</html>\n")
        if pdf.exists():
            found.append("More of After" in pdf_text(pdf))
            assert pdf.read_bytes().rstrip().endswith(b"%%EOF")
        assert len(set(found)) == 1
        seen.add((found[0], len(found)))
        step += 3
    assert seen == {(False, 2), (False, 1), (True, 1), (True, 2)}


# The certificate of a run.


def test_an_officer_reads_date_organisation_purpose_and_total_first(file, tmp_path):
    """The records name patients; 12 of the 16 public test records are of one class."""
    generator = np.random.default_rng(0)
    patients = np.repeat(np.arange(30), 6)
    (tmp_path / "d").mkdir()
    records = {"x": generator.normal(size=(180, 3)).astype(np.float32), "y": generator.integers(0, 2, 180)}
    np.savez(tmp_path / "d" / "train.npz", **records, patient_id=patients)
    test = generator.normal(size=(16, 3)).astype(np.float32), np.array([1] * 12 + [0] * 4)
    np.savez(tmp_path / "d" / "test.npz", x=test[0], y=test[1])
    data = {"name": "npz", "path": str(tmp_path / "d"), "classes": 2, "test_is_public": True}
    data |= {"partition": {"scheme": "natural", "column": "patient_id"}}
    asked = {**QUICK, "data": data, "privacy.population": str(file)}
    run = fedamp.run(SCENARIO, tmp_path / "run", anyway=True, **asked)
    answers = dict.fromkeys(("region", "product", "people", "legal_basis", "security", "tuning", "other_uses"), "so")
    answers |= {"organisation": "Clinic <b>", "contact": "dpo@example.org", "date": "2026-03-01", "license": "MIT"}
    (tmp_path / "about.yaml").write_text(json.dumps(answers | {"purpose": "early warning"}))
    release(run.folder, tmp_path / "release", tmp_path / "key.pem", tmp_path / "about.yaml")
    page = (tmp_path / "release" / "certificate.html").read_text()
    order = (
        "2026-03-01",
        "Clinic &lt;b&gt;",
        "dpo@example.org",
        "early warning",
        "all uses together",
        "ε ≤",
        "quality",
    )
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert "one patient of 30" in page
    assert "guessing alone: 75.0%" in page
    paper = (tmp_path / "release-papers" / "assessment.md").read_text()
    assert "30 patients" in paper
    assert "guessing alone: 75.0%" in paper
    assert "charged to this population" in paper


@pytest.mark.slow
@pytest.mark.parametrize("call", [lambda p: p.leave("3"), lambda p: p.join("3", "4")], ids=["leave", "join"])
def test_killed_while_a_person_leaves_or_is_joined_it_is_as_before_or_after(file, tmp_path, home, call):
    charge(file, "a")
    (note,) = (home / "populations").glob("*.json")
    begun, noted, killed, step, seen = file.read_bytes(), note.read_bytes(), True, 1, set()
    while killed:
        for each in tmp_path.glob("people.db*"):
            each.unlink()
        note.write_bytes(noted)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, begun)
        os.close(descriptor)
        killed = killed_at(step, lambda: call(Population(file)))
        contents = Population(file).read()
        changed = bool(contents.left or contents.joined)
        seen.add(changed)
        if not changed:
            call(Population(file))
        contents = Population(file).read()
        assert contents.left or contents.joined
        assert len(contents.links) == 6  # made, people, three states of the use, and this
        assert contents.spent()[5] == pytest.approx(Budget(4.0, DELTA).share_of_use(Gaussian(NOISE)))
        step += max(3, step // 4)
    assert seen == {False, True}
