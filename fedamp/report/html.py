"""The environment in which every page is made."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedamp.base import numbers
from fedamp.base.version import version
from fedamp.report import words


def environment() -> Environment:
    """Templates with numbers and words at hand; what is inserted is escaped."""
    made = Environment(loader=PackageLoader("fedamp.report"), autoescape=True, undefined=StrictUndefined)
    made.trim_blocks = made.lstrip_blocks = True
    made.globals |= {"numbers": numbers, "words": words, "version": version()}
    return made
