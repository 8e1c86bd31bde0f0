"""Make the environment in which pages are written."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from fedamp.base import numbers
from fedamp.base.version import version
from fedamp.report import words


def environment(*packages: str) -> Environment:
    """Return an environment of templates with numbers and words at hand; inserted texts are escaped.

    Args:
        packages: that have templates beside those of this one, each in a folder ``templates``.
    """
    loader = ChoiceLoader([PackageLoader(package) for package in ("fedamp.extensions.pages", *packages)])
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    made.trim_blocks = made.lstrip_blocks = True
    made.globals |= {"numbers": numbers, "words": words, "version": version()}
    return made
