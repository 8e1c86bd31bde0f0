"""How many functions and files of fedamp a question enters: each one is something that a reader has to follow."""

import sys
import threading
from pathlib import Path

import pytest

import fedamp
from fedamp.accounting import Allocation, Gaussian, Poisson

HOME = str(Path(fedamp.__file__).parent)


def entered(ask):
    """The functions of fedamp that are entered, each with its file; comprehensions count, too."""
    found = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            found.add(frame.f_code)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        ask()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return found


@pytest.mark.parametrize(
    ("build", "functions", "files"),
    [
        (lambda noise: Poisson(Gaussian(noise), 0.1), 70, 6),
        (lambda noise: Allocation(Gaussian(1.1 * noise), 10, 100), 179, 7),  # no law that the other case has computed
    ],
    ids=["Poisson", "Allocation"],
)
def test_pricing_is_flat(build, functions, files):
    build(1.01).epsilon(1e-5)  # compiles the inner loops
    found = entered(lambda: build(1.0).epsilon(1e-5))
    assert len(found) <= functions, sorted(code.co_qualname for code in found)
    assert len({code.co_filename for code in found}) <= files
