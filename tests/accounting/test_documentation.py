"""The examples of docs/accounting.md, run in order."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"


def test_examples_print_what_the_page_says():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 15
    report = []
    results = doctest.DocTestRunner().run(examples, out=report.append)
    assert results.failed == 0, "".join(report)
