"""Define the key ``questions`` of a scenario: what is asked about people, in one vector for each person.

A scenario with it has one round of all people, a model that is the vector of the answers, and a clipping norm of 1.
:func:`fill_in` adds that.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field, model_validator

from fedamp.base.arrays import Floats
from fedamp.base.section import Before, NeedsHooks, NotNegative
from fedamp.extensions.statistics.columns import Range
from fedamp.extensions.statistics.questions import AnyQuestion, NoisySum, PeopleQuestion
from fedamp.federation import facts
from fedamp.federation.facts import AnyScenario
from fedamp.federation.first_releases import asked_releases
from fedamp.federation.optional import OptionalSection

MODEL = "statistics:answers"
ARRAY = "answers"
"""The only parameter of the model: the sum of the people's vectors over their number."""
MOST_CELLS = 1_000_000

QuestionName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class Questions(OptionalSection):
    """Questions about people that a run answers together, with noise, and with one charge."""

    ask: dict[QuestionName, AnyQuestion] = Field(min_length=1, max_length=1000, description="questions by name")
    least: NotNegative = Field(10, description="no number is shown that rests on a noisy count below this")
    level: Annotated[float, Field(ge=0.5, le=0.9999)] = Field(
        0.95, description="probability with which each interval alone covers its number"
    )
    edition: str = Field(
        "",
        max_length=100,
        exclude_if=lambda edition: not edition,
        description="your name of the state of the records on nodes; another edition is another question",
    )

    needs = facts.needs_facts(facts.UNIT_IS_CLIENT, facts.TRAINED_HERE, facts.WHOLE_MODEL, facts.GLOBAL_MODEL)
    keeps = facts.FACTS

    @model_validator(mode="after")
    def _not_too_many(self) -> "Questions":
        """Refuse more cells than a release can have."""
        if self.number_of_cells > MOST_CELLS:
            raise ValueError(
                f"ask: {self.number_of_cells:,} cells; expected: at most {MOST_CELLS:,} of all questions together"
            )
        return self

    @model_validator(mode="after")
    def _each_once(self) -> "Questions":
        """Refuse a question under two names: its two answers would have different noise."""
        names: dict[str, str] = {}
        for name, question in self.ask.items():
            if (other := names.setdefault(question.model_dump_json(exclude={"weight"}), name)) != name:
                raise ValueError(f"ask: {other} and {name} are one question; expected: each question once")
        return self

    @property
    def number_of_cells(self) -> int:
        """Length of the vector of a person."""
        return sum(question.number_of_cells for question in self.ask.values())

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns that the questions read, each once."""
        return tuple(dict.fromkeys(column for question in self.ask.values() for column in question.column_names))

    def vector_blocks(self) -> Iterator[tuple[str, PeopleQuestion, slice, float]]:
        """Yield each question with its name, its place in the vector, and what one record is multiplied by there.

        The squared weights of all questions add up to 1, so the whole vector has norm at most 1.
        """
        total, start = math.sqrt(sum(each.weight**2 for each in self.ask.values())), 0
        for name, each in self.ask.items():
            yield (
                name,
                each,
                slice(start, start + each.number_of_cells),
                each.weight / total / (each.records * each.norm),
            )
            start += each.number_of_cells

    def noisy_blocks(self, sums: Floats, deviation: float) -> Iterator[tuple[str, PeopleQuestion, NoisySum]]:
        """Yield each question with its part of the noisy sum, in records.

        Args:
            sums: the noisy sum of the people's vectors, [cells].
            deviation: of the noise in each number.
        """
        for name, each, place, factor in self.vector_blocks():
            yield name, each, NoisySum(sums[place] / factor, deviation / factor, 1 - self.level, self.least)

    def task_keys(self) -> Mapping[str, Any]:
        return {"questions": self}

    def check_within(self, scenario: AnyScenario) -> None:
        """Refuse a run that is not one release of all people's vectors."""
        wanted = {"rounds": 1, "model.name": MODEL, "model.options": {"cells": self.number_of_cells}, "privacy.clip": 1}
        wanted |= {
            "check_in.scheme": "all",
            "server.optimizer": "sgd",
            "server.learning_rate": 1,
        }
        for key, value in wanted.items():
            found: Any = scenario
            for part in key.split("."):
                found = getattr(found, part)
            if found != value:
                raise ValueError(f"questions need {key}: {value}, got {found}; expected: the key is left out")
        if (other := next(asked_releases(scenario), None)) is not None:
            raise ValueError(f"questions are the only release of a run; expected: none by {other.path}")


QUESTIONS_KEY = Annotated[
    Questions | None,
    Field(None, exclude_if=lambda asked: asked is None),
    Before("trackers"),
    NeedsHooks("a custom app answers no questions"),
]
"""The key ``questions`` of a scenario."""

TOLD_KEY = Annotated[Questions | None, Field(None, exclude_if=lambda asked: asked is None), Before("answer_after")]
"""The key ``questions`` of what clients are told."""


def fill_in(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Add what a run of questions needs beside data, privacy and the questions, where it is not given.

    Args:
        raw: content of a scenario's file, with the key ``questions``.
    """
    questions, cells = None, 1
    with suppress(ValueError):  # the scenario's own validation names the key
        questions = Questions.model_validate(raw["questions"])
        cells = questions.number_of_cells
    data, privacy = raw.get("data"), raw.get("privacy")
    if (
        isinstance(data, Mapping)
        and "features" not in data
        and questions
        and data.get("name") in ("csv", "parquet", "npz")
        and (column := _some_column(questions, data.get("partition")))
    ):
        data = {**data, "features": [column], "label": column}
    filled = {"data": data, "rounds": 1, "check_in": {"scheme": "all"}, "client": {"loss": "mean-squared-error"}}
    filled |= {"model": {"name": MODEL, "options": {"cells": cells}}}
    privacy = {"clip": 1, **privacy} if isinstance(privacy, Mapping) else privacy
    return {**filled, **raw, "data": data, "privacy": privacy}


def _some_column(questions: Questions, partition: object) -> object:
    """Return a column that a question reads, of numbers if there is one, else that of the units; None: there is none.

    A data set has inputs and labels; nothing trains on these.
    """
    for question in questions.ask.values():
        ranges = question.of if hasattr(question, "of") else (question,)
        for each in ranges:
            if isinstance(each, Range):
                return each.column
    units = partition.get("column") if isinstance(partition, Mapping) else None
    return next(filter(None, questions.column_names), units)
