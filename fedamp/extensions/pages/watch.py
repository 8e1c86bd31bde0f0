"""Serve a live page about a run, for a browser on this machine. It is never a file, and not to be shared.

It listens on loopback alone. The address holds a secret, which other users of the machine cannot guess, and requests
under another host name (DNS rebinding) are refused.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from statistics import median
from threading import Thread
from time import time
from typing import Any

from fedamp import rng
from fedamp.base.numbers import at_least, at_most
from fedamp.errors import RunFolderError
from fedamp.extensions.pages.templates import environment
from fedamp.report import words
from fedamp.runs.folder import RunFolder
from fedamp.runs.records import LedgerRecord, reports

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LATEST = 10  # rounds whose median time is that of the rounds to come


def progress(folder: Path) -> dict[str, str]:
    """Return the statements of the page about a run, in words by key.

    ``reported`` follows from private data and is not protected.

    Args:
        folder: of the run, which may still go on.

    Raises:
        RunFolderError: there is no run.
    """
    files = RunFolder(folder)
    if not files.scenario.is_file():
        raise RunFolderError(f"{folder}: not a run folder (no scenario.yaml)")
    said = dict.fromkeys(("round", "quality", "spent", "left", "reported", "time"), "")
    if not files.ledger.exists():
        return said | {"state": "starting"}
    ledger, rounds = LedgerRecord.read(files.ledger), files.read_rounds()
    planned, spent, ended = ledger.rounds_planned, ledger.released_rounds_epsilon, ledger.stopped_because
    budget = ledger.whole_run_epsilon.upper if ledger.budget_epsilon is None else ledger.budget_epsilon
    scores = [record.score for record in rounds if record.score is not None]
    is_to_come = not ended and (ledger.is_evaluated or ledger.side_sum)
    missing = "not yet measured" if is_to_come else words.NOT_MEASURED
    quality = words.quality(scores[-1] if scores else None, ledger.side_release, missing)
    said |= {"round": f"{len(rounds):,} of {planned:,}", "quality": quality}
    said |= {"spent": "no noise: no privacy", "left": "none"}
    if ledger.mechanism.is_private:
        said |= {
            "spent": f"ε ≤ {at_most(spent)} of {at_most(budget)}",
            "left": f"ε {at_least(max(budget - spent, 0.0))}",
        }
    state = words.ENDINGS[ended] if ended else "running"
    if rounds:
        last, (scheduled, reported, failed) = rounds[-1], reports(rounds)
        in_all = f"{reported:,} of {scheduled:,} in all" + f", {failed:,} failed" * (failed > 0)
        said |= {"reported": f"{last.reported:,} of {last.scheduled:,} in the last round, {in_all}", "time": "none"}
        if not ended:
            ago, each = time() - files.rounds.stat().st_mtime, median(record.seconds for record in rounds[-LATEST:])
            state += f"; the last round ended {_duration_text(ago)} ago"
            said["time"] = f"at most about {_duration_text(each * (planned - len(rounds)))}"
    return said | {"state": state}


def _duration_text(seconds: float) -> str:
    """Write seconds as ``1:02:03``."""
    return str(timedelta(seconds=max(round(seconds), 0)))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the page of a run folder while the context lasts, and yield its address.

    Raises:
        RunFolderError: it is no run folder.
    """
    progress(folder)
    place = f"/{rng.fresh_bytes(16).hex()}/"

    class Handler(BaseHTTPRequestHandler):
        """Answers requests for the page and its numbers; all others get a 404."""

        timeout, server_version, sys_version = 10, "fedamp", ""  # seconds

        def do_GET(self) -> None:
            """Answer with the page, or with its numbers as JSON."""
            known = self.headers.get_all("Host") == [f"127.0.0.1:{port}"]
            known &= compare_digest(self.path[: len(place)].encode(), place.encode())
            kind = {"": "text/html", "progress.json": "application/json"}.get(self.path[len(place) :])
            if not (known and kind):
                return self.send_error(404)
            try:
                said = progress(folder)
            except (RunFolderError, OSError):
                return self.send_error(503)
            page = environment().get_template("watch.html.j2")
            text = page.render(name=folder.resolve().name, said=said) if kind == "text/html" else json.dumps(said)
            self.send_response(200)
            for name, value in HEADERS.items() | {"Content-Type": f"{kind}; charset=utf-8"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())
            return None

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the address is a secret."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        port = server.server_address[1]
        Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{port}{place}"
        finally:
            server.shutdown()


class _Server(ThreadingTCPServer):
    """Server with a thread for each request, which do not keep this process alive."""

    daemon_threads, block_on_close = True, False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a browser that went away is no event of the run."""
