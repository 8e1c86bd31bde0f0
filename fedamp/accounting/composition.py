"""Releases after one another."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedamp.accounting import checks
from fedamp.accounting.mechanism import Mechanism, OfOne, mechanism_of, mechanisms_of
from fedamp.accounting.releases import NotPrivate


@dataclass(frozen=True)
class Compose(Mechanism):
    """Releases after one another, each may depend on those before.

    If every part is a single release they make one round together (for instance the shared and the split part of a
    model); if some part spans several rounds, the parts' rounds follow one another.

    Args:
        mechanisms: one or more, of one neighbouring relation.
    """

    mechanisms: Sequence[Mechanism]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", mechanisms_of("mechanisms", self.mechanisms))

    @property
    def words(self) -> str:
        return "[" + "; then ".join(part.words for part in self.mechanisms) + "]"

    @property
    def span(self) -> int:
        spans = [part.span for part in self.mechanisms]
        return 1 if all(span == 1 for span in spans) else sum(spans)

    def unamplified(self) -> Mechanism:
        return Compose(tuple(part.unamplified() for part in self.mechanisms))

    def _prefix(self, rounds: int) -> Mechanism:
        released: list[Mechanism] = []
        for part in self.mechanisms:
            taken = min(rounds, part.span)
            if taken:
                released.append(part.after(taken))
            rounds -= taken
        return Compose(tuple(released)) if released else NOTHING


@dataclass(frozen=True)
class Repeat(OfOne):
    """The same mechanism several times, one after another, with fresh randomness each time.

    Args:
        mechanism: what is repeated.
        times: >= 0; 0 releases nothing.
    """

    times: int

    def __post_init__(self) -> None:
        mechanism_of(self.mechanism)
        object.__setattr__(self, "times", checks.count("times", self.times, 0))

    @property
    def words(self) -> str:
        return f"{self.times} times ({self.mechanism.words})" if self.times else "nothing"

    @property
    def is_empty(self) -> bool:
        return self.times == 0

    @property
    def span(self) -> int:
        return self.times * self.mechanism.span

    def unamplified(self) -> Mechanism:
        return Repeat(self.mechanism.unamplified(), self.times)

    def _prefix(self, rounds: int) -> Mechanism:
        whole, rest = divmod(rounds, self.mechanism.span)
        released = Repeat(self.mechanism, whole)
        return Compose((released, self.mechanism.after(rest))) if rest else released


NOTHING = Repeat(NotPrivate(), 0)
"""The release that tells nothing, whatever the neighbouring relation."""
