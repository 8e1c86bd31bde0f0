"""What uses that are chosen one after the other cost a person, beside uses that are fixed in advance.

    python -m benchmarks.studies.persons

It fills the table of docs/research/filter.md with answers of the accountant. Nothing is stored.
"""

from benchmarks.record import ROOT, put_in
from fedamp.accounting import Allocation, Compose, Gaussian, Mechanism, Poisson, Repeat
from fedamp.accounting.search import Budget
from fedamp.base.numbers import at_most

PAGE = ROOT / "docs" / "research" / "filter.md"
DELTA, TIMES = 1e-5, (1, 2, 4)
USES: dict[str, Mechanism] = {
    "3 of 60 hidden rounds, noise 1.622": Allocation(Gaussian(1.622), 3, 60),
    "4 of 40, noise 1.443": Allocation(Gaussian(1.443), 4, 40),
    "10 of 100, noise 1": Allocation(Gaussian(1.0), 10, 100),
    "Poisson .05, 200 rounds, noise 1": Repeat(Poisson(Gaussian(1.0), 0.05), 200),
}


def fixed(use: Mechanism, times: int) -> float:
    """Epsilon of equal uses that are fixed in advance."""
    return Compose([use] * times).epsilon(DELTA).upper


def filtered(use: Mechanism, times: int) -> float:
    """The least epsilon of a budget that pays for equal uses in any order, to three digits and a half."""
    low = high = fixed(use, times)
    while times * Budget(high, DELTA).share_of_use(use) > 1:
        high *= 1.25
    while high - low > 2e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if times * Budget(middle, DELTA).share_of_use(use) <= 1 else (middle, high)
    return high


def table() -> str:
    """The rows of the page."""
    lines = ["| use | fixed in advance | filter |", "| --- | --- | --- |"]
    for words, use in USES.items():
        cells = (" / ".join(str(at_most(each(use, n), 3)) for n in TIMES) for each in (fixed, filtered))
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    put_in(PAGE, "persons", table())
