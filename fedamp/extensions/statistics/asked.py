"""Ask questions once: a question that was asked before gets its stored answer, at no cost.

A folder holds the statistics runs of one owner, and ``asked.json``: which run has answered which question. The key of a
question is a keyed digest of the question, of the records that it reads, and of the population that pays. Noise, budget
and weight are no part of it, so no question is answered a second time with other noise. The file is written before a
run begins. A run that was killed is continued, and one that has released nothing does not count.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedamp import rng
from fedamp.accounting.verify import ENDED
from fedamp.base.files import FileRecord, lock, make_folder, write_atomically, writing
from fedamp.data import Dataset
from fedamp.errors import ScenarioError
from fedamp.extensions.population.section import population_file
from fedamp.extensions.population.store import Population
from fedamp.extensions.statistics.answers import FILE as ANSWERS
from fedamp.extensions.statistics.answers import ReleasedAnswers, released_answers
from fedamp.extensions.statistics.questions import PeopleQuestion
from fedamp.extensions.statistics.section import Questions
from fedamp.federation import reader
from fedamp.federation.losses import records_of
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import RunFolder, read_summary
from fedamp.server.observers import Observer

FILE = "asked.json"


class AskedFile(FileRecord):
    """The content of ``asked.json``. It is for the owner: digests tell whether records have changed.

    Attributes:
        salt: of the digests, in hex.
        asked: by the digest of a question: the folder of its run, and its name there.
    """

    kind: ClassVar[str] = "file of asked questions"
    format: Literal["fedamp asked questions 1"] = "fedamp asked questions 1"
    salt: str
    asked: dict[str, tuple[str, str]]


def questions_of(scenario: Scenario) -> Questions:
    """Return the questions of a scenario.

    Raises:
        ScenarioError: it asks none.
    """
    found: Questions | None = getattr(scenario, "questions")  # noqa: B009 - a key of this extension
    if found is None:
        raise ScenarioError("questions: missing; expected: a section with the questions by name, under ask")
    return found


def ask_questions(scenario: Scenario, store: Path, observer: Observer) -> tuple[ReleasedAnswers, list[str]]:
    """Answer the questions of a scenario: new ones together in one run, the others from earlier runs.

    Args:
        scenario: with questions; its records are here.
        store: folder of the owner's statistics runs; it is made where it is missing.
        observer: of the run.

    Returns:
        The answers, and the names of the questions that were asked before. Epsilon is that of this call's run alone:
        zero where all were.

    Raises:
        InputError: the scenario is wrong; nothing was asked.
        FederationError: the run failed; the same call goes on with it.
    """
    asked = questions_of(scenario)
    with writing(store):
        store.parent.mkdir(parents=True, exist_ok=True)
        make_folder(store)
    with lock(store / ".asked"):
        file = store / FILE
        known = AskedFile.read(file) if file.exists() else AskedFile(salt=f"{rng.seed_from_system():064x}", asked={})
        keys = dict(_question_keys(scenario, int(known.salt, 16)))
        places = {name: known.asked[key] for name, key in keys.items() if key in known.asked}
        places = {name: place for name, place in places.items() if (store / place[0] / "ledger.json").exists()}
        new, run = [name for name in keys if name not in places], ""
        if new:
            run = _free_name(store, scenario.name)
            places |= {name: (run, name) for name in new}
            entries = {**known.asked, **{keys[name]: places[name] for name in new}}
            write_atomically(file, known.model_copy(update={"asked": entries}).to_text().encode(), mode=0o600)
        folders = {name: store / place[0] for name, place in places.items()}
        for folder in dict.fromkeys(folders.values()):
            _finish_run(_with_questions(scenario, new) if folder.name == run else None, folder, observer)
    found = {folder: released_answers(folder, asked.level, asked.least) for folder in dict.fromkeys(folders.values())}
    answers = [found[folders[name]].answer(places[name][1]).model_copy(update={"name": name}) for name in asked.ask]
    whole = found[store / run] if run else found[folders[next(iter(asked.ask))]]
    epsilon = {} if run else {"epsilon_upper": 0.0}
    return whole.model_copy(update={"answers": tuple(answers)} | epsilon), [name for name in keys if name not in new]


def _finish_run(scenario: Scenario | None, folder: Path, observer: Observer) -> None:
    """Play a new run in a folder, or go on with one that was killed there; a run that has ended stays as it is.

    Args:
        scenario: of a new run; None: there is one.
        folder: of the run.
        observer: of the run.
    """
    from fedamp.server.launch import launch

    if scenario is not None:
        launch(scenario, observer, folder)
    elif not RunFolder(folder).summary.exists() or read_summary(folder).stopped_because not in ENDED:
        launch(reader.load(folder / "scenario.yaml"), observer, folder, resume=True)
    if not (folder / ANSWERS).exists():
        released_answers(folder).write(folder / ANSWERS)


def _question_keys(scenario: Scenario, salt: int) -> Iterator[tuple[str, str]]:
    """Yield the digest of each question by its name.

    Raises:
        DataError: the records cannot be read, or a column is missing.
        ScenarioError: the records are elsewhere.
    """
    dataset, people = records_of(scenario), _population_id(scenario)
    if dataset.hosted is not None or scenario.federation.hosts is not None:
        raise ScenarioError(
            "data: the records are on nodes; expected: --scenario FILE, and a deployment (docs/deployment)"
        )
    for name, question in questions_of(scenario).ask.items():
        what = question.model_dump_json(exclude={"weight"}).encode()
        yield name, rng.keyed_digest(salt, "question", [what, people, *_record_facts(question, dataset)])


def _record_facts(question: PeopleQuestion, dataset: Dataset) -> Iterator[bytes]:
    """Yield all that a question reads of the records, and whose they are."""
    yield repr(dataset.record_places(np.arange(dataset.num_clients))[1].tolist()).encode()
    for column in filter(None, question.column_names):
        yield repr(dataset.column_values(column, "questions").tolist()).encode()


def _population_id(scenario: Scenario) -> bytes:
    """Return the id of the population that pays; empty: none."""
    file = population_file(scenario)
    return b"" if file is None else Population(file).id.encode()


def _with_questions(scenario: Scenario, names: Sequence[str]) -> Scenario:
    """Copy a scenario with some of its questions."""
    raw = scenario.model_dump(mode="json", exclude={"model"})
    raw["questions"]["ask"] = {name: raw["questions"]["ask"][name] for name in names}
    return reader.load(raw)


def _free_name(store: Path, name: str) -> str:
    """Return the first name of a new run in the store: the scenario's, perhaps with a number."""
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(each for each in numbered if not (store / each).exists())
