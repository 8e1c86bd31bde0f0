"""Define the commands of runs with an agreement: ``fedamp agreement`` on the server, ``fedamp join`` on each node."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedamp.base.files import write_atomically
from fedamp.cli.terminal import Overrides, ScenarioArgument, load_scenario, patiently, print_paths
from fedamp.errors import ScenarioError
from fedamp.extensions.deployment.membership import made, public_key


def agreement(
    scenario: ScenarioArgument,
    keys: Annotated[list[Path], Argument(help="of each node of federation.hosts NAME.request, or NAME.pub")],
    run: Annotated[str, Option(help="a name that no other run of these nodes has")],
    overrides: Overrides,
) -> None:
    """Write the agreement of a secure-aggregation run: node keys, terms and task.

    Each node's owner reads agreement.json, and joins.
    """
    from fedamp.extensions.secure.participant import Agreement
    from fedamp.server.setup import prepare

    asked = load_scenario(scenario, overrides)
    if asked.aggregation.scheme != "secure":
        raise ScenarioError("aggregation is plain; expected: {scheme: secure}")
    found, named = {key.stem: key for key in keys}, set(asked.federation.hosted_units)
    if set(found) != named:
        raise ScenarioError(f"the keys are of {sorted(found)}; expected, as in federation.hosts: {sorted(named)}")
    peers = {name: public_key(file) for name, file in sorted(found.items())}
    inputs = patiently(prepare, asked)
    task, plan = inputs.task.without_places(), inputs.plan
    agreed = made(Agreement, run=run, peers=peers, task=task.digest, **asked.aggregation.task_keys(plan.agreed_terms))
    agreed.check(without_noise=True)  # each node says for itself whether it takes part without
    write_atomically(out := Path("agreement.json"), agreed.to_text().encode())
    print_paths("for every node", out)


def join(
    agreed: Annotated[Path, Argument(metavar="AGREEMENT", help="agreement.json, read and agreed to")],
    state: Annotated[Path, Option(help="folder that only this node's owner may read, and that is kept during the run")],
    without_noise: Annotated[bool, Option("--without-noise", help="also where the agreement has no noise")] = False,
) -> None:
    """On a node: create its state file. Required once before a run.

    A node without it takes no part, because it would forget what it signed.
    """
    from fedamp.extensions.secure.participant import join

    print_paths("keep during the run", join(agreed, state, without_noise))
