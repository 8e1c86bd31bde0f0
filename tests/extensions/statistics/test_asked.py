"""Questions that were asked before: never a second answer with other noise, whatever plays the run or kills it."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedamp.errors import InputError, RunFolderError, ScenarioError
from fedamp.extensions.population import store as population_store
from fedamp.extensions.population.store import Population
from fedamp.extensions.statistics.answers import FILE, ReleasedAnswers, released_answers
from fedamp.extensions.statistics.asked import AskedFile, ask_questions, new_questions
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import opened
from fedamp.runs.records import LedgerRecord
from fedamp.runs.verification import verify_ledger
from fedamp.server.launch import launch
from fedamp.server.loop import play
from fedamp.server.setup import prepare
from tests.deployed import Deployment
from tests.extensions.statistics.ward import QUESTIONS, patients, scenario, write_ward
from tests.federations import Silent
from tests.tools import killed_before_line

ROWS = patients(12)
TWO = {name: QUESTIONS[name] for name in ("patients", "age")}
NODES = {"a": "0-3", "b": "4-7", "c": "8-11"}
HOSTS = "federation.hosts={a: '0-3', b: '4-7', c: '8-11'}"


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDAMP_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def ward(tmp_path):
    return write_ward(tmp_path / "ward", ROWS)


def deploy(asked: Scenario, folder: Path) -> None:
    """Play a deployment's run in a folder as the server's app does, from wherever it stands."""
    with opened(asked, folder, (folder / "scenario.yaml").exists()) as (run, seed):
        play(prepare(asked, seed), Deployment({name: {"hosts": units} for name, units in NODES.items()}), run, Silent())


# Deployments.


def test_a_deployment_answers_no_question_twice_and_its_stored_answers_cost_nothing(ward, tmp_path):
    store, asked = tmp_path / "store", scenario(ward, TWO, HOSTS)
    with pytest.raises(ScenarioError, match=r"patients, age: the records are on nodes; expected: --scenario"):
        ask_questions(asked, store, Silent())
    assert new_questions(asked, store).questions == asked.questions
    deploy(asked, store / "ward")
    first = released_answers(store / "ward")
    stored, again = ask_questions(asked, store, Silent())
    assert (again, stored.epsilon_upper, stored.answers) == (["patients", "age"], 0.0, first.answers)
    assert new_questions(asked, store) is None
    # A deployment with one of them among others is refused before anybody is asked; the new one alone is not.
    more = scenario(ward, {"years": TWO["age"], "women": QUESTIONS["women"]}, HOSTS, "privacy.noise_multiplier=0.5")
    with pytest.raises(RunFolderError, match="question years was asked before") as error:
        deploy(more, store / "more")
    assert "\n" not in str(error.value)
    assert not (store / "more" / "ledger.json").exists()
    deploy(new_questions(more, store), store / "more")
    together, again = ask_questions(more, store, Silent())
    assert again == ["years", "women"]
    assert together.answer("years").numbers == first.answer("age").numbers
    # Other nodes, or records that the owner says are others, are another question.
    for changed in (scenario(ward, TWO, HOSTS, edition="May"), scenario(ward, TWO, HOSTS.replace("8-11", "8-10"))):
        assert new_questions(changed, store).questions.ask == changed.questions.ask


def test_a_plain_run_is_refused_where_another_run_beside_it_has_answered(ward, tmp_path):
    launch(scenario(ward, TWO), Silent(), tmp_path / "runs" / "one")
    with pytest.raises(RunFolderError, match="was asked before"):
        launch(scenario(ward, TWO, "privacy.noise_multiplier=3"), Silent(), tmp_path / "runs" / "two")
    assert not (tmp_path / "runs" / "two").exists()
    (tmp_path / "runs" / "one" / "ledger.json").unlink()  # nobody knows any more what it has answered
    with pytest.raises(InputError, match=r"ledger\.json: missing"):
        ask_questions(scenario(ward, TWO), tmp_path / "runs", Silent())


# kill -9.


@dataclass
class Asking:
    """A way to ask, which is killed and tried again.

    Attributes:
        folder: of everything.
        way: ``alone``, ``population``, or ``deployment``: a population and nodes.
    """

    folder: Path
    way: str

    def begin(self, ward: Path) -> None:
        """Begin with an empty store, and with people who have paid nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(population_store._notes_folder(), ignore_errors=True)
        self.folder.mkdir()
        (self.folder / "store").mkdir()
        self.file, more = self.folder / "people.db", [] if self.way == "alone" else ["privacy.delta=1e-6"]
        if self.way != "alone":
            Population.new(self.file, [(row[0], row[0]) for row in ROWS], 5.0, 1e-5)
            more.append(f"privacy.population={self.file}")
        self.asked = scenario(ward, TWO, *more, *([HOSTS] if self.way == "deployment" else []))

    def ask(self) -> ReleasedAnswers:
        """Ask, from wherever it stands."""
        if self.way == "deployment":
            deploy(self.asked, self.folder / "store" / "ward")
        return ask_questions(self.asked, self.folder / "store", Silent())[0]

    @property
    def events(self) -> int:
        """Events of the population that charge its people."""
        if self.way == "alone":
            return 1
        with closing(sqlite3.connect(self.file)) as database:
            return database.execute('SELECT count(*) FROM events WHERE content LIKE \'%"kind": "use"%\'').fetchone()[0]


def changes_the_disk(code) -> bool:
    """Whether a function is one of those through which every file of a question is changed."""
    places = {"/base/files.py", "/runs/folder.py", "/population/store.py", "/statistics/asked.py"}
    names = {"write_atomically", "write_secret", "flush", "append_round", "delete_secrets", "register"}
    names |= {"_append_event", "_write_note", "_open"}
    return code.co_name in names and any(code.co_filename.endswith(place) for place in places)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["alone", "population", "deployment"])
def test_killed_between_any_two_steps_a_question_is_answered_once_and_charged_once(way, ward, tmp_path):
    asking = Asking(tmp_path / "all", way)
    asking.begin(ward)
    asking.ask()  # with its imports
    run, store, killed, step, seen = tmp_path / "all/store/ward", tmp_path / "all/store", True, 1, set()
    while killed:
        asking.begin(ward)
        killed = killed_before_line(step, asking.ask, changes_the_disk)
        releases = LedgerRecord.read(run / "ledger.json").releases if (run / "ledger.json").exists() else ()
        shown = ReleasedAnswers.read(run / FILE).answers if (run / FILE).exists() else None
        if (store / "asked.json").exists():
            AskedFile.read(store / "asked.json")
        if releases or (run / "model.safetensors").exists():
            assert asking.events == 1, "nothing is released that nobody has paid for"
            assert (store / "asked.json").exists(), "nothing is released that is not known as asked"
        assert releases or shown is None
        seen.add((bool(releases), shown is not None))
        answers = asking.ask()
        assert [each.name for each in store.iterdir() if each.is_dir()] == ["ward"]
        assert shown in (None, answers.answers)
        again = LedgerRecord.read(run / "ledger.json").releases
        assert tuple(again[: len(releases)]) == tuple(releases)
        assert len(again) == 1
        assert asking.events == 1, "people pay once"
        assert {check.verdict for check in verify_ledger(run)} <= {"pass"}
        step += 13
    assert seen == {(False, False), (True, False), (True, True)}
