"""Define the commands of the first hour: a new scenario, the meaning of a key, and a check before a run.

:mod:`fedamp.cli.commands` adds them to the others. The docstring of a command is its help. The checks themselves are in
:mod:`fedamp.server.preflight`, and the words about a key in :mod:`fedamp.federation.messages`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fedamp.base.start import Later
from fedamp.base.text import printable
from fedamp.cli.terminal import (
    AsJson,
    Overrides,
    ScenarioArgument,
    complete_key,
    load_scenario,
    patiently,
    print_answer,
    print_cautions,
    print_paths,
)
from fedamp.errors import ScenarioError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedamp.data.dataset import Dataset
    from fedamp.report import tables
else:
    tables = Later("fedamp.report.tables")  # the plan and the accountant come with it

# By name of built-in data: clients, model, and what local training needs besides.
DATA = {
    "digits": (479, "{name: mlp, hidden: [64]}", ""),
    "segments": (479, "{name: mlp, hidden: [64]}", ", loss: binary-cross-entropy"),
    "diabetes": (353, "{name: logistic}", ", loss: mean-squared-error"),
    "shakespeare": (795, "{name: lstm, vocabulary: 61}", ", loss: token-cross-entropy"),
    "synthetic": (2000, "{name: mlp, hidden: [64]}", ""),
    "fashion-mnist": (6000, "{name: mlp, hidden: [128]}", ""),
    "mnist": (2000, "{name: mlp, hidden: [128]}", ""),
}
TEMPLATE = """\
# fedamp explain KEY explains a key, fedamp check finds problems, fedamp privacy computes the cost.
name: {name}
data: {data}  # the records, and the client of each
model: {model}
rounds: 60
check_in: {{scheme: balanced, k: 12}}  # every {unit} takes part in 12 hidden rounds of 60
client: {{{client}}}  # local training
server: {{learning_rate: 1.0, momentum: 0.8}}  # how the noisy mean update is applied
privacy:
  unit: {unit}  # what is protected as a whole
  clip: auto  # all updates are scaled to one norm
  noise_multiplier: auto  # the least noise that keeps epsilon
  epsilon: {epsilon}  # the budget
  delta: 1.0e-5  # well below 1 / {unit}s
engine: {{kind: auto}}  # where clients train; it changes no result
"""


def check(
    scenario: ScenarioArgument,
    overrides: Overrides,
    import_model: Annotated[bool, Option("--import", help="run the code of a custom model or loss, to try it")] = False,
    private: Annotated[bool, Option("--private", help="count people's records, too; the answer is private")] = False,
    device: Annotated[
        str | None, Option("--device", help="tell stacks, memory and speed on a device, such as cuda")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a scenario and its model before a run. Uses public numbers only, unless --private is given.

    It finds, for example, too little signal for the noise, or empty clients.
    Exit status: 0 if no check fails, 2 if one does; then fedamp run would refuse, too.
    """
    from fedamp.accounting.verify import Check
    from fedamp.federation.kept_answers import KEPT
    from fedamp.federation.losses import brings_code, look_for_files, records_of, shown_records
    from fedamp.federation.plan import make_plan, privacy_units
    from fedamp.runs.verification import checks_json

    asked = load_scenario(scenario, [*(overrides or ()), *([] if device is None else [f"engine.device={device}"])])
    look_for_files(asked)
    foreign = brings_code(asked) and not import_model
    plan = make_plan(asked, privacy_units(asked), answers=KEPT)
    plan.charge.check_budget()
    patiently(plan.charge.compute_now)
    from fedamp.server.preflight import (
        check_device,
        preflight,
        refuse,
    )  # torch takes a while, and nothing above needs it
    from fedamp.server.setup import prepare

    counted = _record_counts((records_of if import_model else shown_records)(asked)) if private else None
    sizes = None if counted is None or counted[1].all() else counted[0][~counted[1]]
    prepared = None if foreign else prepare(asked, planned=plan)
    checks = preflight(plan, prepared, thorough=True, sizes=sizes)
    if prepared is not None and device is not None:
        checks.append(check_device(prepared))
    if prepared is not None and asked.federation.hosted_units:
        checks.append(Check.of_failure("task", f"{prepared.task.without_places().digest}, for the policies of nodes"))
    if foreign:
        named = ", ".join(name for name in (asked.model.name, asked.client.loss) if ":" in name)
        checks.append(Check("code", "caution", f"{named} was not tried, because that runs it; add --import to try it"))
    if counted is not None and (wrong := counted[1]).any():
        found = f"{wrong.sum():,} of {len(wrong):,} clients cannot train: {counted[2]}"
        checks.append(Check("untrainable", "fail" if wrong.all() else "caution", found))
    seen = "; with counts of private records" if private else ""
    title = printable(f"{scenario}: valid; {plan.units} units, {plan.scenario.rounds} rounds{seen}")
    print_answer(checks_json(checks) | {"private": private}, as_json, lambda answer: tables.checks_table(title, answer))
    refuse(checks, "fedamp run --anyway")
    print_cautions(checks)


def _record_counts(dataset: "Dataset") -> "tuple[NDArray[np.int64], NDArray[np.bool_], str]":
    """Count the records of each client that is here, which of them cannot train, and why. The answer is private."""
    import numpy as np

    here = np.arange(dataset.num_clients) if dataset.hosted is None else dataset.hosted
    wrong = dataset.cannot_train(here)
    return dataset.sizes(here), wrong, dataset.why_all(here[wrong])


def explain(
    key: Annotated[str, Argument(help="for example privacy.clip", autocompletion=complete_key)], as_json: AsJson = False
) -> None:
    """Explain a key of a scenario: its meaning, the values that it accepts, and which other keys change with it.

    Of a section it lists the keys. Unknown keys are refused, with the nearest one.
    """
    from fedamp.federation.messages import explain_key

    print_answer(explain_key(key), as_json, lambda answer: tables.facts(key, answer))


def new(
    file: Annotated[Path, Argument(help="the scenario to write")] = Path("scenario.yaml"),
    data: Annotated[str | None, Option(help=f"{', '.join(DATA)}, or a folder with train.npz")] = None,
    unit: Annotated[str | None, Option(help="what is protected: client or sample")] = None,
    epsilon: Annotated[str | None, Option(help="the budget")] = None,
    classes: Annotated[str | None, Option(help="how many classes the labels of a folder have")] = None,
) -> None:
    """Write a commented scenario after three questions. Options answer them.

    Without a terminal, a question that no option answers gets its default.
    A folder with train.npz also needs the number of classes.
    An existing file is never replaced.
    """
    import json
    import os
    import re

    import yaml

    from fedamp.base.files import write_atomically
    from fedamp.federation.reader import validate_scenario

    def ask(question: str, given: str | None, default: str) -> str:
        if given is None and sys.stdin.isatty():
            return str(typer.prompt(question, default, err=True))
        return given or default

    source = ask(f"Data ({', '.join(DATA)}, or a folder with train.npz)", data, "digits")
    clients, model, loss = DATA.get(source, (100, "{name: logistic}", ""))
    unit = ask("What is protected: client, sample", unit, "client")
    epsilon = ask("Budget, epsilon", epsilon, "8")
    divided = f", clients: {clients}" if unit == "client" or source == "synthetic" else ""
    named = f"name: {source}"
    if source not in DATA:
        from fedamp.data.npz import arrays_of

        if not (classes := ask("How many classes the labels have", classes, "")):
            raise ScenarioError("--classes: people's labels must not decide it; expected: how many classes they have")
        if "client" in arrays_of(Path(source).expanduser(), "train"):
            divided = ", partition: {scheme: natural}" if unit == "client" else ""
        place = source if source.startswith("~") else os.path.relpath(source, file.parent)  # where the scenario lies
        named = f"name: npz, path: {json.dumps(place)}, classes: {classes}"
    text = TEMPLATE.format(
        name=file.stem,
        data=f"{{{named}{divided}}}",
        model=model,
        unit=unit,
        client=("steps: 3, learning_rate: 0.5" if unit == "client" else "learning_rate: 1.0") + loss,
        epsilon=epsilon,
    )
    for answer in (file.stem, unit, epsilon, classes or ""):
        if not re.fullmatch(r"[\w.+-]*", answer):  # YAML would read another one
            raise ScenarioError(f"{printable(answer)}: expected: a name of letters, digits, . - and _, or a number")
    validate_scenario(yaml.safe_load(text), str(file))
    if file.exists() or file.is_symlink():
        raise ScenarioError(f"{file}: File exists; expected: the name of a new file")
    write_atomically(file, text.encode())
    print_paths("scenario", file)
