"""Numbers that fedamp's accountant gives, each kept with its question, so that a test can ask it again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedamp.accounting import Mechanism, calibrate, from_json
from fedamp.accounting.law import DEFAULT_POINTS, Detail, Law
from fedamp.accounting.mechanism import numerical_law

Direction = Literal["remove", "add"]


def upper_law(mechanism: Mechanism) -> Law:
    """The numerical law from above, which answers for each direction alone."""
    return numerical_law(mechanism, Detail(DEFAULT_POINTS, with_lower=False))


@dataclass(frozen=True)
class Question:
    """What the accountant is asked about a mechanism.

    Attributes:
        delta: given, it asks for epsilon.
        epsilon: given without ``delta``, it asks for delta; with it, for the noise multiplier that keeps this budget,
            and ``mechanism`` has that noise.
        end: of the bracket.
        direction: of the numerical law alone; None: the larger one, by the best evaluator.
        points: of the numerical law; given, nothing is sampled.
        precision: of a sampled delta, relative.
    """

    mechanism: Mechanism
    delta: float | None = None
    epsilon: float | None = None
    end: Literal["upper", "lower"] = "upper"
    direction: Direction | None = None
    points: int | None = None
    precision: float | None = None

    def answer(self) -> float:
        """Epsilon at ``delta``, or delta at ``epsilon``."""
        if self.direction is not None:
            law = upper_law(self.mechanism)
            one = law.remove if self.direction == "remove" else law.add
            return float(getattr(one.epsilon(self.delta), self.end))
        if self.delta is None:
            bounds = self.mechanism.delta(self.epsilon, points=self.points, precision=self.precision)
            return float(getattr(bounds, self.end))
        return float(getattr(self.mechanism.epsilon(self.delta, points=self.points), self.end))

    def to_json(self) -> dict[str, Any]:
        given = {each.name: getattr(self, each.name) for each in fields(self)} | {"mechanism": self.mechanism.to_json()}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Question":
        return cls(**value | {"mechanism": from_json(value["mechanism"])})


class Charged(float):
    """An answer of the accountant, or a noise multiplier that it calibrated: a number with its question."""

    asked: Question

    def __new__(cls, value: float, asked: Question) -> "Charged":
        number = super().__new__(cls, value)
        number.asked = asked
        return number

    def __getnewargs__(self) -> tuple[float, Question]:  # type: ignore[override]
        return float(self), self.asked


def epsilon(mechanism: Mechanism, delta: float, **how: Any) -> Charged:
    """Epsilon at ``delta``; ``how``: ``end``, ``direction`` or ``points`` of a :class:`Question`."""
    question = Question(mechanism, delta, **how)
    return Charged(question.answer(), question)


def delta(mechanism: Mechanism, epsilon: float, precision: float | None = None) -> Charged:
    """The upper end of delta at ``epsilon``; hidden rounds are sampled where a ``precision`` is given."""
    question = Question(mechanism, epsilon=epsilon, precision=precision)
    return Charged(question.answer(), question)


def noise(build: Callable[[float], Mechanism], epsilon: float, delta: float) -> Charged:
    """The smallest noise multiplier with which ``build`` keeps (epsilon, delta)."""
    smallest = calibrate(build, epsilon, delta)
    return Charged(smallest, Question(build(smallest), delta, epsilon))
