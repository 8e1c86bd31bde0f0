"""Numbers as a person reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fedamp.base.numbers import amount_of_bytes, amount_of_time, at_least, at_most, power


@given(some.floats(0, 1e6), some.sampled_from([None, 0, 1, 2, 3, 4]))
def test_bounds_stay_bounds(value, digits):
    above, below = (float(text(value, digits).replace(",", "")) for text in (at_most, at_least))
    slack = 1e-11 * value  # counts as written with these digits already
    assert below - slack <= value <= above + slack
    assert above - below <= 1.001 * 10 ** -(digits if digits is not None else 2 if value < 10 else value < 100)


UPPER = {None: "infinite", 0.0: "0.00", 7.9995: "8.00", 8.0: "8.00", 8.001: "8.01", 0.07: "0.07", 21.48: "21.5"}
BYTES = {0: "0 B", 999: "999 B", 57_720: "57.7 kB", 4.5e6: "4.5 MB", 2.5e12: "2.5e+03 GB"}
SECONDS = {12.34: "12.3 s", 1.0: "1 s", 0.00266: "2.66 ms", 3e-6: "3 µs", 2.5e-7: "0.25 µs"}
SMALL = {1e-5: "1e-5", 1e-10: "1e-10", 2.5e-7: "2.5e-7", 0.001: "0.001"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [(at_most, UPPER | {1234.5: "1,235"}), (amount_of_bytes, BYTES), (amount_of_time, SECONDS), (power, SMALL)],
)
def test_numbers_as_text(text, expected):
    assert {value: text(value) for value in expected} == expected
