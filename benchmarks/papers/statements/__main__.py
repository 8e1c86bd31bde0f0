"""Runs the tests, and writes the page."""

from benchmarks.papers.statements import PAGE, check, page

check()
PAGE.write_text(page(), encoding="utf-8")
print(PAGE)
