"""Define the commands ``fedamp report``, ``fedamp watch`` and ``fedamp release``."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedamp.cli import terminal
from fedamp.cli.terminal import AsJson, print_paths


def report(
    runs: Annotated[list[Path], Argument(help="folders of runs, and of merged models; several are compared")],
    out_file: Annotated[Path, Option("--out", help="the HTML file")] = Path("report.html"),
) -> None:
    """Write one HTML file about a run, or several, to share.

    It holds what was released and what is public, and nothing else.
    """
    from fedamp.extensions.pages.page import write_report

    print_paths("report", write_report(runs, out_file))


def watch(run_: Annotated[Path, Argument(metavar="RUN", help="a run folder")]) -> None:
    """Serve a live page about a run to this machine's browsers, until Ctrl-C."""
    from threading import Event

    from fedamp.extensions.pages.watch import served

    with suppress(KeyboardInterrupt), served(run_) as address:
        # The address holds a secret, so it goes to the terminal and into no file.
        terminal.err.print(f"live page, for you alone: {address}", highlight=False, markup=False, soft_wrap=True)
        Event().wait()


def release(
    run_: Annotated[Path, Argument(metavar="RUN", help="a run folder")],
    out_folder: Annotated[Path | None, Option("--out", help="default: RUN-release")] = None,
    key: Annotated[Path | None, Option(help="file of the server's Ed25519 key; default: made once for you")] = None,
    about: Annotated[
        Path | None, Option(help="who publishes it and what for, to write the papers for a board; made to be filled in")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the signed folder, and zip, that may leave the server.

    It holds the model, the ledger, a certificate and the public scenario.
    Others check it with fedamp verify --key.
    """
    from fedamp.extensions.pages.release import release

    made = release(run_, out_folder, key, about)
    if as_json:
        print(json.dumps({"folder": str(made.folder), "archive": str(made.archive), "public_key": made.public_key}))
    print_paths("may leave the server", made.folder, made.archive, *filter(None, [made.papers]), unless=as_json)
    print_paths("signed by the key", made.public_key, unless=as_json)
