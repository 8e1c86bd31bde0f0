"""The finished runs of the tests of reports."""

from tests.report.conftest import home, merged, printed, runs, stopped

__all__ = ["home", "merged", "printed", "runs", "stopped"]
