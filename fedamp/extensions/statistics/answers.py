"""Read the answers of a statistics run from its folder: they follow from the released vector without further charge."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from safetensors.numpy import load_file

from fedamp.base.files import FileRecord
from fedamp.base.reading import regular
from fedamp.base.record import Record
from fedamp.errors import RunFolderError
from fedamp.extensions.statistics.questions import NoisyNumber
from fedamp.extensions.statistics.record import QuestionsRecord
from fedamp.extensions.statistics.section import ARRAY, Questions
from fedamp.runs.ledger import digest
from fedamp.runs.run import Run, read_run

FILE = "answers.json"
TOLERANCE = 1e-6  # of numbers that another machine computes again
COVERS = (
    "Each interval alone covers its number with the stated probability, over the noise, and also among the results in "
    "which the number is shown. That the people are a sample is not covered."
)


class QuestionAnswer(Record):
    """The answer to a question.

    Attributes:
        name: of the question.
        question: as it was asked.
        numbers: with their intervals.
        caveats: sentences about bias that is known beforehand.
    """

    name: str
    question: dict[str, Any]
    numbers: tuple[NoisyNumber, ...]
    caveats: tuple[str, ...]

    def number(self, name: str) -> NoisyNumber:
        """Find a number by its name; KeyError: there is none."""
        return {each.name: each for each in self.numbers}[name]


class ReleasedAnswers(FileRecord):
    """The content of ``answers.json``. All of it is public: it follows from a release with noise.

    Attributes:
        scenario: name of the scenario.
        units: number of people.
        epsilon_upper, delta: cost of all answers together; None: no noise was added.
        noise_deviation: of each number of the vector, of which a person changes at most a norm of 1.
        level: probability with which each interval alone covers its number.
        least: public count below which no number is shown.
        covers: what the intervals cover, in words.
        answers: in the order of the questions.
    """

    kind: ClassVar[str] = "answers"
    format: Literal["fedamp answers 1"] = "fedamp answers 1"
    scenario: str
    units: int
    epsilon_upper: float | None
    delta: float
    noise_deviation: float
    level: float
    least: float
    covers: str = COVERS
    answers: tuple[QuestionAnswer, ...]

    def answer(self, name: str) -> QuestionAnswer:
        """Find the answer to a question by its name; KeyError: there is none."""
        return {each.name: each for each in self.answers}[name]

    def agrees_with(self, other: "ReleasedAnswers") -> bool:
        """Say whether these are the answers of other ones, up to rounding."""
        mine, others = (list(_leaves(each.content())) for each in (self, other))
        return len(mine) == len(others) and all(
            math.isclose(one, two, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            if isinstance(one, float) and isinstance(two, float)
            else one == two
            for one, two in zip(mine, others, strict=True)
        )


def _leaves(content: Any) -> Iterator[Any]:
    """Yield keys and values of a JSON value, in order."""
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield key
            yield from _leaves(value)
    else:
        yield content


def released_answers(folder: Path, level: float | None = None, least: float | None = None) -> ReleasedAnswers:
    """Compute the answers of a statistics run from its folder.

    Args:
        folder: of a run that has ended.
        level, least: other ones than the scenario's; a change costs nothing.

    Raises:
        RunFolderError: it is no run of questions, it has not ended, or its files are damaged or were changed.
    """
    run = read_run(folder)
    asked: Questions | None = getattr(run.scenario, "questions")  # noqa: B009 - a key of this extension
    if asked is None:
        raise RunFolderError(f"{folder}: its scenario asks no questions; expected: a run of fedamp statistics")
    changes = {"level": level, "least": least}
    asked = asked.model_copy(update={key: value for key, value in changes.items() if value is not None})
    sums, deviation = _released_sum(run)
    answers = [
        QuestionAnswer(
            name=name,
            question=question.model_dump(mode="json"),
            numbers=tuple(question.answer_numbers(noisy)),
            caveats=question.caveats,
        )
        for name, question, noisy in asked.noisy_blocks(sums, deviation)
    ]
    return ReleasedAnswers(
        scenario=run.scenario.name,
        units=run.ledger.units,
        epsilon_upper=run.epsilon,
        delta=run.ledger.delta,
        noise_deviation=deviation,
        level=asked.level,
        least=asked.least,
        answers=tuple(answers),
    )


def _released_sum(run: Run) -> tuple[np.ndarray[Any, np.dtype[np.float64]], float]:
    """Return the noisy sum of all vectors, and the deviation of the noise in each of its numbers."""
    try:
        released = load_file(regular(run.files.model))
        vector = released[ARRAY]
    except (OSError, ValueError, KeyError) as error:
        raise RunFolderError(f"{run.files.model}: cannot be read ({' '.join(str(error).split())})") from None
    if digest(released) != run.ledger.releases[-1].digest:
        raise RunFolderError(f"{run.files.model}: not the released vector; expected: as the run left it")
    surplus = run.rounds[-1].noise_surplus or 0.0
    deviation = run.plan.noise_deviations[0] * math.sqrt(1 + surplus)
    return vector.astype(np.float64) * run.plan.parts[0].denominator, deviation


def questions_record(asked: Questions) -> QuestionsRecord:
    """Make the record of questions for a ledger."""
    sha256 = hashlib.sha256(asked.model_dump_json().encode()).hexdigest()
    return QuestionsRecord(sha256=sha256, asked=len(asked.ask), cells=asked.number_of_cells)
