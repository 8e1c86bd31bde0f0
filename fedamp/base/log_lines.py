"""Write lines of a log for people, or as JSON for programs: ``FEDAMP_LOG=json`` asks for JSON.

A server, a node and ``fedamp doctor`` obey it. A JSON line has the keys ``time`` (UTC), ``level``, ``logger`` and
``message``, and ``traceback`` where there is one; some lines have numbers beside them.
"""

import json
import logging
import os
import sys
import time
from typing import Any

LONGEST_RECORD = 100_000  # letters of the log


def wants_json() -> bool:
    """Say whether the environment asks for JSON lines.

    Another value than ``json`` asks for none.
    """
    return os.environ.get("FEDAMP_LOG") == "json"


def line_of(logger: str, message: str, level: str = "info", when: float | None = None, **facts: Any) -> str:
    """Write one line: the message as it is, or a JSON object of it and its facts.

    Args:
        logger: who says it, such as ``fedamp.server``.
        message: for people.
        level: of the log, in lower-case letters.
        when: seconds since 1970; default: now.
        facts: further keys of the object; what is no number, as NaN, becomes null.

    Example:
        >>> line_of("fedamp.server", "round 1: accuracy 0.9", round=1)
        'round 1: accuracy 0.9'
    """
    if not wants_json():
        return message
    seconds = time.time() if when is None else when
    head = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z"
    known = {key: None if isinstance(value, float) and value - value != 0 else value for key, value in facts.items()}
    return json.dumps({"time": head, "level": level, "logger": logger, "message": message[:LONGEST_RECORD]} | known)


class JsonRecords(logging.Formatter):
    """Formats each record as one JSON line, whose letters are ASCII: no text of a node can look like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line, with its traceback as a key."""
        trace = {"traceback": self.formatException(record.exc_info)[:LONGEST_RECORD]} if record.exc_info else {}
        return line_of(record.name, record.getMessage(), record.levelname.lower(), record.created, **trace)


def log_as_json(*loggers: str) -> None:
    """Send what these loggers say to standard error as JSON lines, if the environment asks for it.

    Args:
        loggers: names; their handlers are replaced.
    """
    if wants_json():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonRecords())
        for name in loggers:
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [handler], False
