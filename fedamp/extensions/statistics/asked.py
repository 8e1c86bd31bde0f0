"""Ask questions once: a question that was asked before gets its stored answer, at no cost.

A folder holds statistics runs of one owner, and ``asked.json``: which run has answered which question. Every run of
questions writes its own there before its first message, and is refused where another run has answered one of them: a
run of ``fedamp statistics``, of ``fedamp run``, and of a deployment.

The key of a question is a keyed digest of the question, of the records that it reads, and of the population that pays.
A server whose nodes have the records takes the nodes in place of the records, and what the owner calls their state
(``questions.edition``). Noise, budget and weight are no part of a key, so no question is answered a second time with
other noise.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedamp import rng
from fedamp.accounting.verify import ENDED
from fedamp.base.files import FileRecord, lock, make_folder, write_atomically, writing
from fedamp.base.record import Record
from fedamp.data import Dataset
from fedamp.errors import RunFolderError, ScenarioError
from fedamp.extensions.population.section import population_file
from fedamp.extensions.population.store import Population
from fedamp.extensions.statistics.answers import FILE as ANSWERS
from fedamp.extensions.statistics.answers import ReleasedAnswers, questions_record, released_answers
from fedamp.extensions.statistics.questions import PeopleQuestion
from fedamp.extensions.statistics.section import Questions
from fedamp.federation import reader
from fedamp.federation.losses import records_of
from fedamp.federation.scenario import Scenario
from fedamp.runs.folder import RunFolder, holds_no_run, read_summary
from fedamp.server.observers import Observer, RunHooks, RunStart

FILE = "asked.json"
Place = tuple[str, str]
"""Folder of a run in the store, and name of a question there."""


class AskedFile(FileRecord):
    """The content of ``asked.json``. It is for the owner: digests tell whether records have changed.

    Attributes:
        salt: of the digests, in hex.
        asked: by the digest of a question: the folder of its run, and its name there.
    """

    kind: ClassVar[str] = "file of asked questions"
    format: Literal["fedamp asked questions 1"] = "fedamp asked questions 1"
    salt: str
    asked: dict[str, Place]


class AskedStore:
    """The folder of an owner's statistics runs, for the questions of one scenario.

    Args:
        folder: in which the run folders are.
        scenario: with questions.

    Raises:
        DataError: the records cannot be read, or a column is missing.
        RunFolderError: ``asked.json`` is damaged.
    """

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self._folder, self._scenario, self._salt = folder, scenario, ""
        self._known = self._read()

    def _read(self) -> AskedFile:
        """Read what was asked so far, and compute the keys of these questions under the file's salt."""
        file = self._folder / FILE
        salt = self._salt or f"{rng.seed_from_system():064x}"
        known = AskedFile.read(file) if file.exists() else AskedFile(salt=salt, asked={})
        if known.salt != self._salt:
            self._salt, self._keys = known.salt, dict(_question_keys(self._scenario, int(known.salt, 16)))
        return known

    @property
    def runs(self) -> set[str]:
        """Folders of all runs that have asked."""
        return {run for run, _ in self._known.asked.values()}

    @property
    def places(self) -> dict[str, Place]:
        """Where the questions of the scenario were answered, by their names; the others are new.

        Raises:
            RunFolderError: the ledger of such a run is missing, so nobody knows what the run has answered.
        """
        found = {name: self._known.asked[key] for name, key in self._keys.items() if key in self._known.asked}
        for name, (run, _) in found.items():
            if not (ledger := self._folder / run / "ledger.json").exists():
                told = f"missing, and question {name} may have been answered there"
                raise RunFolderError(f"{ledger}: {told}; expected: that run folder back, or another store with --out")
        return found

    def register(self, run: str) -> None:
        """Write down that a run asks these questions now; to ask in the same run again changes nothing.

        Raises:
            RunFolderError: another run has answered one of them; nothing is written.
        """
        with writing(self._folder / FILE), lock(self._folder / ".asking"):
            self._known = self._read()
            self.refuse_others(run)
            entries = {key: (run, name) for name, key in self._keys.items()}
            if entries.keys() - self._known.asked.keys():
                self._known = self._known.model_copy(update={"asked": {**entries, **self._known.asked}})
                write_atomically(self._folder / FILE, self._known.to_text().encode(), mode=0o600)

    def refuse_others(self, run: str) -> None:
        """Refuse questions that another run of the store has answered; RunFolderError: there is one."""
        for name, (other, _) in self.places.items():
            if other != run and not self._scenario.known_seed:  # which draws the same noise
                found = f"question {name} was asked before, and an answer with other noise would tell more"
                stored = f"fedamp statistics FILE --out {self._folder}, which shows the stored answer"
                raise RunFolderError(f"{self._folder / other}: {found}; expected: {stored}")


class QuestionsHooks(RunHooks):
    """Hooks that enter the questions in the ledger of a run, and in the store before the run asks them.

    Args:
        asked: the scenario's section.
        start: of the run.

    Raises:
        RunFolderError: another run beside this one has answered a question.
    """

    def __init__(self, asked: Questions, start: RunStart) -> None:
        super().__init__()
        self._record, self._run = questions_record(asked), start.folder.path.resolve()
        self._store = None if start.has_ended else AskedStore(self._run.parent, start.plan.scenario)
        if self._store is not None:
            self._store.refuse_others(self._run.name)

    def ledger(self) -> dict[str, Record]:
        """Return the record by its key."""
        return {"questions": self._record}

    def before_question(self) -> None:
        """Enter the questions in the store."""
        if self._store is not None:
            self._store.register(self._run.name)


@contextmanager
def recorded(start: RunStart) -> Iterator[QuestionsHooks | None]:
    """Yield the hooks of a run that asks questions; None: it asks none."""
    asked: Questions | None = getattr(start.plan.scenario, "questions")  # noqa: B009 - a key of this extension
    yield None if asked is None else QuestionsHooks(asked, start)


def questions_of(scenario: Scenario) -> Questions:
    """Return the questions of a scenario.

    Raises:
        ScenarioError: it asks none.
    """
    found: Questions | None = getattr(scenario, "questions")  # noqa: B009 - a key of this extension
    if found is None:
        raise ScenarioError("questions: missing; expected: a section with the questions by name, under ask")
    return found


def new_questions(scenario: Scenario, store: Path) -> Scenario | None:
    """Copy a deployment's scenario with those of its questions that no run of a store has answered; None: all were.

    Args:
        scenario: with questions; without ``federation.hosts`` all of them are taken as new.
        store: folder of the runs; it may be missing.

    Raises:
        InputError: as :class:`AskedStore`.
    """
    known = AskedStore(store, scenario).places if _is_elsewhere(scenario) else {}
    new = [name for name in questions_of(scenario).ask if name not in known]
    return _with_questions(scenario, new) if new else None


def ask_questions(scenario: Scenario, store: Path, observer: Observer) -> tuple[ReleasedAnswers, list[str]]:
    """Answer the questions of a scenario: new ones together in one run, the others from earlier runs.

    Args:
        scenario: with questions. Its records are here, or all questions were answered in deployments.
        store: folder of the owner's statistics runs; it is made where it is missing.
        observer: of the run.

    Returns:
        The answers, and the names of the questions that were asked before. Epsilon is that of this call's run alone:
        zero where all were.

    Raises:
        InputError: the scenario is wrong; nothing was asked.
        FederationError: the run failed; the same call goes on with it.
    """
    asked, is_elsewhere = questions_of(scenario), _is_elsewhere(scenario)
    with writing(store):
        store.parent.mkdir(parents=True, exist_ok=True)
        make_folder(store)
    with lock(store / ".asked"):
        known = AskedStore(store, scenario)
        places, run = known.places, ""
        new = [name for name in asked.ask if name not in places]
        if new and is_elsewhere:
            raise ScenarioError(
                f"questions.ask: {', '.join(new)}: the records are on nodes; expected: --scenario NEW.yaml, and a "
                f"deployment with out={store}/NAME"
            )
        if new:
            wanted = _with_questions(scenario, new)
            folder, was_killed = _folder_of_run(store, wanted, known.runs)
            run = folder.name
            places |= {name: (run, name) for name in new}
            _finish_run(None if was_killed else wanted, folder, observer)
        folders = {name: store / place[0] for name, place in places.items()}
        for folder in dict.fromkeys(folders.values()):
            if is_elsewhere and not _has_ended(folder):
                raise RunFolderError(f"{folder}: has not ended; expected: the same deployment with resume=true")
            _finish_run(None, folder, observer)
    found = {folder: released_answers(folder, asked.level, asked.least) for folder in dict.fromkeys(folders.values())}
    answers = [found[folders[name]].answer(places[name][1]).model_copy(update={"name": name}) for name in asked.ask]
    whole = found[store / run] if run else found[folders[next(iter(asked.ask))]]
    epsilon = {} if run else {"epsilon_upper": 0.0}
    return whole.model_copy(update={"answers": tuple(answers)} | epsilon), [
        name for name in asked.ask if name not in new
    ]


def _has_ended(folder: Path) -> bool:
    """Say whether the run in a folder has come to its end."""
    return RunFolder(folder).summary.exists() and read_summary(folder).stopped_because in ENDED


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
    elif not _has_ended(folder):
        launch(reader.load(folder / "scenario.yaml"), observer, folder, resume=True)
    if not (folder / ANSWERS).exists():
        released_answers(folder).write(folder / ANSWERS)


def _folder_of_run(store: Path, scenario: Scenario, asked: set[str]) -> tuple[Path, bool]:
    """Choose the folder of a run: the scenario's name, perhaps with a number.

    A run of the same scenario that was killed before it asked anybody is gone on with, because a population may have
    reserved its cost.

    Args:
        store: in which the folder is.
        scenario: of the run.
        asked: folders of runs that have asked.

    Returns:
        The folder, and whether a killed run is in it.
    """
    for number in count(1):
        folder = store / (scenario.name if number == 1 else f"{scenario.name}-{number}")
        if not folder.exists() or holds_no_run(folder):
            return folder, False
        if folder.name not in asked and (file := folder / "scenario.yaml").exists():
            kept = reader.load(file)
            if kept.model_copy(update={"federation": scenario.federation}) == scenario:  # but what was filled in
                return folder, True
    raise AssertionError("there are numbers enough")


def _question_keys(scenario: Scenario, salt: int) -> Iterator[tuple[str, str]]:
    """Yield the digest of each question by its name.

    Raises:
        DataError: the records cannot be read, or a column is missing.
    """
    asked, file = questions_of(scenario), population_file(scenario)
    dataset = None if _is_elsewhere(scenario) else records_of(scenario)
    whose = [b"" if file is None else Population(file).id.encode()]
    whose += [f"seed {scenario.seed}".encode()] if scenario.known_seed else []  # a rehearsal answers nothing for good
    for name, question in asked.ask.items():
        what = question.model_dump_json(exclude={"weight"}).encode()
        where = _node_facts(scenario) if dataset is None else _record_facts(question, dataset)
        yield name, rng.keyed_digest(salt, "question", [what, *whose, *where])


def _is_elsewhere(scenario: Scenario) -> bool:
    """Say whether the records are on nodes of a deployment."""
    return scenario.federation.hosts is not None


def _node_facts(scenario: Scenario) -> Iterator[bytes]:
    """Yield what a server knows of records on nodes: which nodes, whose records, and the state that the owner names."""
    hosts = scenario.federation.hosts
    yield repr(sorted(hosts.items()) if isinstance(hosts, dict) else hosts).encode()
    yield scenario.data.model_dump_json(exclude={"path", "features", "label"}).encode()
    yield questions_of(scenario).edition.encode()


def _record_facts(question: PeopleQuestion, dataset: Dataset) -> Iterator[bytes]:
    """Yield all that a question reads of the records, and whose they are."""
    yield repr(dataset.record_places(np.arange(dataset.num_clients))[1].tolist()).encode()
    for column in filter(None, question.column_names):
        yield repr(dataset.column_values(column, "questions").tolist()).encode()


def _with_questions(scenario: Scenario, names: Sequence[str]) -> Scenario:
    """Copy a scenario with some of its questions."""
    raw = scenario.model_dump(mode="json", exclude={"model"})
    raw["questions"]["ask"] = {name: raw["questions"]["ask"][name] for name in names}
    return reader.load(raw)
