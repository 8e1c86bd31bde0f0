"""Define the command ``fedamp doctor``."""

from pathlib import Path
from typing import Annotated

from typer import Option

from fedamp.base.log_lines import line_of, wants_json
from fedamp.base.text import printable
from fedamp.cli import terminal
from fedamp.cli.terminal import AsJson, print_answer


def doctor(
    superlink: Annotated[str | None, Option(help="HOST:PORT of a deployment's SuperLink to check as well")] = None,
    root_certificates: Annotated[Path | None, Option(help="file of the authority that its nodes trust")] = None,
    node: Annotated[
        tuple[Path, Path, Path] | None,
        Option(help="a node's agreement, key and state, to check that it can take part in secure aggregation"),
    ] = None,
    site: Annotated[str | None, Option(help="name of the node whose folder this is: what it lacks")] = None,
    server: Annotated[Path | None, Option(help="folder of a deployment's server: what it lacks")] = None,
    as_json: AsJson = False,
) -> None:
    """Show versions, devices and memory, and check a deployment. Prints a fix for each problem.

    FEDAMP_LOG=json prints a JSON line for each check.

    Exit status: 0 if nothing of the deployment fails, 1 if a check does.
    """
    from fedamp.extensions.deployment import doctor as examinations
    from fedamp.extensions.deployment.tables import doctor_table
    from fedamp.runs.verification import checks_json

    checks = examinations.examine_superlink(superlink, root_certificates) if superlink else []
    checks += examinations.examine_node(*node) if node else []
    checks += examinations.examine_site(site) if site else []
    checks += examinations.examine_server(server) if server else []
    checks += examinations.examine_capacity() if site or server else []
    if wants_json() and not as_json:
        for check in checks:
            level = {"pass": "info", "caution": "warning"}.get(check.verdict, "error")
            told = f"{check.name}: {printable(check.found)}"
            print(line_of("fedamp.doctor", told, level, check=check.name, verdict=check.verdict))
    else:
        answer = examinations.examine_machine() | ({"deployment": checks_json(checks)} if checks else {})
        print_answer(answer, as_json, doctor_table)
    terminal.judge(checks)
