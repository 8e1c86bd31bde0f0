"""The error tree. Every message is one line: the fault, its place, and the accepted values.

All parts of fedamp raise these errors, and the accountant raises ``ValueError`` instead, because it stands alone. The
command line prints ``kind: message`` and exits with ``exit_code``; Python and Flower get the same error with names of
their own arguments (:func:`in_words_of`). Anything that is not a :class:`FedampError` is a bug of fedamp, or an error
of code that a user gave it.

``InputError`` and its kinds mean that nothing was run, or nothing was changed. ``FederationError`` means that a run
stopped after it began; its folder can be resumed unless the message says otherwise.
"""

import logging
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

log = logging.getLogger("fedamp")

# The modules of others that an extra of the distribution brings, for the line about a missing one.
EXTRAS = {
    "train": "click cloudpickle cryptography flwr httpx mpmath pydantic rich safetensors torch typer yaml",
    "data": "datasets huggingface_hub PIL pyarrow",
    "report": "jinja2 matplotlib",
    "ray": "grpc psutil ray",
    "interop": "dp_accounting",
    "peft": "peft transformers",
    "prometheus": "prometheus_client",
    "scikit-learn": "sklearn",
    "testing": "pytest",
    **{each: each for each in ("mlflow", "opacus", "pandas", "rdata", "tensorboard", "tokenizers", "wandb")},
}
"""Extras of the distribution, each with the packages that it installs, by the names under which they are imported."""


class FedampError(Exception):
    """Base of all errors that fedamp raises on purpose; the command line prints ``kind: message``.

    Attributes:
        exit_code: exit status of the command line.
        kind: the word before the message.
    """

    exit_code, kind = 1, "failed"


class InputError(FedampError):
    """An input is wrong: a file, a value or an argument. The message says which, and names the accepted values."""

    exit_code, kind = 2, "error"


class ScenarioError(InputError):
    """A scenario file, one of its keys, or a ``--set`` override is wrong."""


class DataError(InputError):
    """A data folder or file is missing or damaged, or its records have another shape than the scenario says."""


class ModelError(InputError):
    """A model cannot be trained privately, or cannot be split as the scenario asks."""


class RunFolderError(InputError):
    """A run folder, ledger or checkpoint is missing or damaged, or belongs to another scenario."""


class UnwritableError(RunFolderError):
    """A file of a run cannot be written: a full disk, a read-only folder, a link. The run can be resumed."""


class DeploymentError(InputError):
    """A node, certificate or address of a deployment is wrong."""


class FederationError(FedampError):
    """The run could not continue: too few clients reported, a deadline passed, or no worker was left."""


class DivergedError(FederationError):
    """The model of a round is not finite; the round is not released.

    That it diverged is itself told, and the ledger charges it as a release of that round.

    Args:
        round_: the round, from 1 on.
        what: the number that is not finite, such as a loss, in words.
    """

    def __init__(self, round_: int, what: str) -> None:
        super().__init__(
            f"round {round_}: the model diverged, {what} is no longer finite; nothing of it was released; start anew "
            "with a smaller server.learning_rate, client.learning_rate or privacy.clip"
        )


class NobodyTrainedError(FederationError):
    """Each unit failed in each round of a run that has ended; its model is noise alone."""


class Interrupted(FedampError):
    """The run was stopped with Ctrl-C or by SIGTERM; the message says how to resume it.

    The exit status is that of a shell: 128 plus the number of the signal (2 for Ctrl-C).
    """

    exit_code, kind = 130, "interrupted"  # as a shell tells it: 128, and the signal that has come to this process


# What stands for an option of the command line where somebody else calls.
OF_PYTHON = {"--out": "out=FOLDER", "--resume": "resume=True", "--known-seed": "known_seed=True"}
OF_PYTHON |= {"run the same command": "make the same call", "--anyway": "anyway=True", "--share": "share"}
OF_FLOWER = {"--out": "out=", "--resume": "resume=true", "--known-seed": "known-seed=true"}  # the run configuration


@contextmanager
def in_words_of(caller: Mapping[str, str]) -> Iterator[None]:
    """Translate errors raised inside: options of ``fedamp run`` become the names that a caller has for them.

    It also works as a decorator. Other exceptions pass unchanged.

    Args:
        caller: names by option, such as :data:`OF_PYTHON`.

    Example:
        >>> with in_words_of(OF_PYTHON):
        ...     raise InputError("runs/a exists; give --resume")
        Traceback (most recent call last):
            ...
        fedamp.errors.InputError: runs/a exists; give resume=True
    """
    try:
        yield
    except FedampError as error:
        told = str(error)
        if caller is OF_PYTHON and (command := re.search(r"fedamp run .+ --resume --out .+", told)):
            _, _, scenario, *_, out = shlex.split(command[0])
            told = told.replace(command[0], f"fedamp.run({scenario!r}, out={out!r}, resume=True)")
            told += f"; fedamp.open({out!r}) has the rounds so far" * isinstance(error, Interrupted)
        for option, words in caller.items():
            told = told.replace(option, words)
        error.args = (told,)
        raise


class StopTraining(Exception):
    """Stop a run after the current round, from a callback. The run can be resumed.

    It is no :class:`FedampError`: a callback raises it on purpose, or returns False for the same effect. The epsilon of
    the stopped run is that of all rounds that its budget pays for, because the releases may have decided the stop.

    Example:
        >>> import fedamp
        >>> def enough(record):
        ...     if record.round == 1:
        ...         raise fedamp.StopTraining
        >>> small = fedamp.load("digits", rounds=2, check_in={"k": 1}, engine={"kind": "serial"})
        >>> stopped = fedamp.run(small, out="runs/stopped", callbacks=enough)
        >>> stopped.summary.rounds_completed, round(stopped.epsilon, 2)
        (1, 8.0)
    """


def missing(module: str | None) -> str | None:
    """Return what to install for a missing module; None for a module that no extra brings.

    Args:
        module: the name that could not be imported, with dots; None: unknown.

    Example:
        >>> missing("mlflow.tracking")
        "mlflow is not installed; expected: pip install 'fedamp[mlflow]'"
    """
    top = (module or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules.split()), None)
    return extra and f"{top} is not installed; expected: pip install 'fedamp[{extra}]'"


def one_line(error: BaseException) -> str:
    """Return any exception as one line: for a missing module what to install, else its type and its message.

    Example:
        >>> one_line(KeyError("a"))
        "KeyError: 'a'"
    """
    if isinstance(error, ModuleNotFoundError) and (words := missing(error.name)):
        return words
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def needs_extras() -> Iterator[None]:
    """Turn a missing module of an extra into an InputError that names the extra; for imports inside.

    Raises:
        InputError: a module is missing that an extra brings. Other missing modules raise as usual.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if missing(error.name) is None:
            raise
        raise InputError(one_line(error)) from None


@contextmanager
def fails_alone(what: str) -> Iterator[None]:
    """Let code that only reports a run fail without ending the run. The log and the terminal get one line each.

    Args:
        what: the name of the code in that line, such as ``tracker mlflow``.
    """
    try:
        yield
    except Exception as error:
        tell(f"{what} failed ({one_line(error)}); the run goes on without it")


class LoggedWarning(UserWarning):
    """Warning that is also logged."""


def tell(line: str) -> None:
    """Print a line to the log and to the terminal, in a run that continues."""
    log.warning(line)
    with suppress(Warning):  # also where warnings are made errors
        warnings.warn(line, LoggedWarning, stacklevel=4)
