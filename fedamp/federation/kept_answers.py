"""Keep answers of the accountant that this user has asked for before, in a folder of the cache.

An answer is kept under a digest of its question: the mechanism, the numbers asked about, and the versions of fedamp's
accountant and of the libraries that compute. It is a convenience, never a proof. A plan uses it only where it was asked
to: verification, totals, prices to people and certificates compute everything anew. A file that is damaged, or altered
without a new digest, is ignored. The digest is no secret: a person who can write to the folder can forge answers.
``FEDAMP_CACHE=off`` keeps nothing.

Plans ask the accountant through an :class:`Answers` (:func:`fedamp.federation.plan.make_plan`): ``ANEW`` or ``KEPT``.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedamp import accounting
from fedamp.accounting import Bounds, Mechanism, in_words
from fedamp.accounting.bounds import Method, Origin
from fedamp.accounting.sampling import PRECISION
from fedamp.accounting.search import calibrate, epsilon_over_rounds
from fedamp.base.files import cache_folder, write_atomically
from fedamp.base.reading import read_regular
from fedamp.extension import extensions

_MOST_FILES, _FEWER = 2000, 1500  # in the folder; beyond the first number the oldest ones go, down to the second
_LARGEST = 1 << 20  # bytes of an answer; the curve of a longer run is computed each time
_FOLDER = "answers"


@dataclass(frozen=True)
class Answers:
    """The accountant's answers to a plan's questions, computed anew or kept.

    Attributes:
        keep: whether answers of earlier processes count, and new ones are kept for later ones.
    """

    keep: bool = False

    def epsilon(
        self, mechanism: Mechanism, delta: float, precision: float | None = None, points: int | None = None
    ) -> Bounds:
        """Compute ``mechanism.epsilon(delta, precision=precision, points=points)``."""
        ask = partial(mechanism.epsilon, delta, precision=precision, points=points)
        if not self._is_in_use:
            return ask()
        question = ["epsilon", mechanism.to_json(), delta, precision, points]
        return _bounds_from_content(self._kept_answer(question, lambda: _bounds_content(ask())))

    def over_rounds(
        self, mechanism: Mechanism, delta: float, rounds: range, precision: float = PRECISION
    ) -> NDArray[np.float64]:
        """Compute the upper end of epsilon after each round (:func:`fedamp.accounting.search.epsilon_over_rounds`).

        Args:
            mechanism: of the whole run.
            delta: in (0, 1).
            rounds: numbers of rounds, ascending.
            precision: relative width of the bracket, where hidden rounds are sampled.

        Returns:
            Array of shape [len(rounds)].
        """
        question = ["over rounds", mechanism.to_json(), delta, [rounds.start, rounds.stop, rounds.step], precision]
        found = self._kept_answer(question, lambda: epsilon_over_rounds(mechanism, delta, rounds, precision).tolist())
        return np.array(found, np.float64)

    def noise_multiplier(
        self, build: Callable[[float], Mechanism], budget: float, delta: float, precision: float = PRECISION
    ) -> float:
        """Find the smallest noise multiplier within a budget (:func:`fedamp.accounting.search.calibrate`).

        A function has no digest: ``build`` is known by two of its mechanisms. So a noise multiplier that was kept
        counts only if the mechanism with this noise keeps the budget, which is another question.

        Args:
            build: makes the mechanism of a noise multiplier.
            budget: epsilon at ``delta``.
            delta: in (0, 1).
            precision: relative width of the bracket, where hidden rounds are sampled.

        Raises:
            ValueError: no multiplier keeps the budget.
        """
        if not self._is_in_use:
            return calibrate(build, budget, delta, precision=precision)
        question = ["calibrate", build(1.0).to_json(), build(2.0).to_json(), budget, delta, precision]

        def compute_noise() -> float:
            return calibrate(build, budget, delta, precision=precision)

        found = float(self._kept_answer(question, compute_noise))
        return found if self.epsilon(build(found), delta, precision).upper <= budget else compute_noise()

    def membership_risk(self, mechanism: Mechanism, rate: float, whom: str) -> tuple[float, float, str]:
        """Compute the true positive rate of the best membership test.

        Args:
            mechanism: of the whole run.
            rate: false positive rate of the test.
            whom: the person or group in the words, such as ``you``.

        Returns:
            Lower and upper end of the true positive rate, and a sentence.
        """

        def compute_risk() -> list[Any]:
            lower, upper = mechanism.trade_off().true_positive_rate(rate)
            return [float(lower), float(upper), in_words(mechanism, rate, whom)]

        lower, upper, words = self._kept_answer(["risk", mechanism.to_json(), rate, whom], compute_risk)
        return lower, upper, words

    @property
    def _is_in_use(self) -> bool:
        """Say whether answers are looked up and kept; the environment may forbid it at any time."""
        return self.keep and os.environ.get("FEDAMP_CACHE") != "off"

    def _kept_answer(self, question: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """Return the answer to a question, as JSON: a kept one, or a computed one, which is kept from then on.

        Args:
            question: numbers and texts that decide the answer.
            compute: asks the accountant.
        """
        if not self._is_in_use:
            return compute()
        asked = json.dumps([_code_versions(_foreign_kinds()), *question])
        name = f"{hashlib.sha256(asked.encode()).hexdigest()}.json"
        with suppress(OSError, RuntimeError, ValueError, LookupError, TypeError):  # a damaged file is no answer
            found = json.loads(read_regular(cache_folder() / _FOLDER / name, _LARGEST, links=False, owned=True))
            if found["question"] == asked and found["digest"] == _answer_digest(asked, found["answer"]):
                return found["answer"]
        answer = compute()
        with suppress(Exception):  # no place, no permission, a full disk: the answer is the same
            text = json.dumps({"question": asked, "answer": answer, "digest": _answer_digest(asked, answer)}).encode()
            if len(text) <= _LARGEST:
                folder = cache_folder() / _FOLDER
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(folder / name, text, durable=False, mode=0o600)
                _forget_the_oldest(folder)
        return answer


ANEW, KEPT = Answers(), Answers(keep=True)


def _answer_digest(asked: str, answer: Any) -> str:
    """Compute the digest of a question with its answer, which shows a damaged file."""
    return hashlib.sha256(json.dumps([asked, answer]).encode()).hexdigest()


def _forget_the_oldest(folder: Path) -> None:
    """Remove the oldest answers once there are too many."""
    files = list(folder.glob("*.json"))
    if len(files) > _MOST_FILES:
        for file in sorted(files, key=lambda file: file.stat().st_mtime)[: len(files) - _FEWER]:
            file.unlink(missing_ok=True)


def _foreign_kinds() -> tuple[str, ...]:
    """Name the modules of other packages that have defined kinds so far, whether an extension offers them or not."""
    modules = {kind.__module__ for kind in Mechanism.kinds.values()}
    return tuple(sorted(each for each in modules if not each.startswith("fedamp.")))


def code_files() -> list[Path]:
    """List the files of the accountant, of the extensions that offer mechanisms, and of other packages' kinds."""
    folders = [Path(accounting.__file__).parent]
    for path in [path for extension in extensions() for path in extension.accounting.values()]:
        spec = find_spec(path.partition(":")[0])
        folders += [Path(spec.origin).parent] if spec and spec.origin else []
    files = [getattr(sys.modules.get(module), "__file__", None) for module in _foreign_kinds()]
    folders += [Path(file).parent for file in files if file]
    return [file for folder in dict.fromkeys(folders) for file in sorted(folder.glob("*.py"))]


@cache
def _code_versions(modules: tuple[str, ...]) -> list[str]:
    """Name what an answer depends on besides its question: the code of mechanisms, and the libraries that compute.

    Args:
        modules: that have defined kinds; with others, there is other code.
    """
    code = hashlib.sha256()
    for file in code_files():
        code.update(file.name.encode() + file.read_bytes())
    return [code.hexdigest(), *(metadata.version(name) for name in ("numpy", "scipy", "numba"))]


def _bounds_content(bounds: Bounds) -> dict[str, Any]:
    """Write a bracket as JSON; :func:`_bounds_from_content` reads it again."""
    return {"lower": bounds.lower, "upper": bounds.upper, "origin": _of_origin(bounds.origin)}


def _of_origin(origin: Origin) -> dict[str, Any]:
    """Write how a bracket was computed, as JSON; :func:`_origin_from_content` reads it again."""
    facts = [_of_origin(each) if isinstance(each, Origin) else each for each in origin.facts]
    return {"method": origin.method.name, "facts": facts, "unmixed": origin.unmixed}


def _bounds_from_content(told: dict[str, Any]) -> Bounds:
    """Read a bracket as :func:`_bounds_content` has written it."""
    return Bounds(told["lower"], told["upper"], _origin_from_content(told["origin"]))


def _origin_from_content(told: dict[str, Any]) -> Origin:
    """Read how a bracket was computed."""
    facts = tuple(_origin_from_content(each) if isinstance(each, dict) else each for each in told["facts"])
    return Origin(Method[told["method"]], facts, told["unmixed"])
