"""Each combination of the table is refused with its line, and the page lists them all."""

import pytest

from fedamp.errors import ScenarioError
from fedamp.federation.refusals import REFUSALS
from tests.documentation import ROOT
from tests.federations import small

PAGE = ROOT / "docs" / "strategies.md"
START, END = "<!-- refusals -->\n", "<!-- end of refusals -->\n"


def said(example: tuple[str, ...]) -> str:
    """What the reader says about the small federation with these keys."""
    with pytest.raises(ScenarioError) as caught:
        small("server.momentum=0", *example)
    return str(caught.value).removeprefix("small: ")


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.what)
def test_each_example_is_refused_for_its_own_reason(refusal):
    line = said(refusal.example)
    if isinstance(refusal.line, str):
        assert line == refusal.line
    assert "\n" not in line
    others = [each for each in REFUSALS if each is not refusal and isinstance(each.line, str) and each.line == line]
    assert others == []


def test_no_two_reasons_are_the_same():
    assert len({said(refusal.example) for refusal in REFUSALS}) == len(REFUSALS)


def table() -> str:
    return "".join(f"- {each.what}\n" for each in REFUSALS)


def test_the_page_lists_them_all():
    """To write it again: python -m tests.federation.test_refusals"""
    assert table() in PAGE.read_text()


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(START)
    PAGE.write_text(before + START + table() + END + rest.partition(END)[2])
