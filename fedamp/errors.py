"""The error tree. Every message is one line: what was wrong, where, and what is expected."""

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
    "testing": "pytest",
    **{each: each for each in ("mlflow", "opacus", "pandas", "rdata", "tensorboard", "tokenizers", "wandb")},
}


class FedampError(Exception):
    """Base of all errors raised on purpose by fedamp; the command line prints ``kind: message``."""

    exit_code, kind = 1, "failed"


class InputError(FedampError):
    """An input is wrong; the message says what, where and what is expected."""

    exit_code, kind = 2, "error"


class ScenarioError(InputError):
    """A scenario file, one of its keys, or a ``--set`` override is wrong."""


class DataError(InputError):
    """A data folder or file is missing, damaged, or not of the promised shape."""


class ModelError(InputError):
    """A model cannot be trained privately, or cannot be split as the scenario asks."""


class RunFolderError(InputError):
    """A run folder, ledger or checkpoint is missing, damaged, or belongs to another scenario."""


class UnwritableError(RunFolderError):
    """A file of a run cannot be written: a full disk, a read-only folder, a link. The run can be resumed."""


class DeploymentError(InputError):
    """A node, certificate or address of a deployment is wrong."""


class FederationError(FedampError):
    """The run could not continue: below quorum, past a deadline, or without workers."""


class DivergedError(FederationError):
    """The model of a round is not finite; the round is not released."""

    def __init__(self, round_: int, what: str) -> None:
        super().__init__(
            f"round {round_}: the model diverged, {what} is no longer finite; nothing of it was released; start anew "
            "with a smaller server.learning_rate, client.learning_rate or privacy.clip"
        )


class NobodyTrainedError(FederationError):
    """Each unit failed in each round of a run that has ended; its model is noise."""


class Interrupted(FedampError):
    """The run was stopped with Ctrl-C, or by SIGTERM; the message says how to resume it."""

    exit_code, kind = 130, "interrupted"  # as a shell tells it: 128, and the signal that has come to this process


# What stands for an option of the command line where somebody else calls.
OF_PYTHON = {"--out": "out=FOLDER", "--resume": "resume=True", "--known-seed": "known_seed=True"}
OF_PYTHON |= {"--anyway": "anyway=True", "--share": "share"}
OF_FLOWER = {"--out": "out=", "--resume": "resume=true", "--known-seed": "known-seed=true"}  # the run configuration


@contextmanager
def in_words_of(caller: Mapping[str, str]) -> Iterator[None]:
    """Errors, which name options and calls of ``fedamp run``, name those of a caller; also as a decorator."""
    try:
        yield
    except FedampError as error:
        told = str(error)
        if caller is OF_PYTHON and (command := re.search(r"fedamp run .+ --resume --out .+", told)):
            _, _, scenario, *_, out = shlex.split(command[0])
            told = told.replace(command[0], f"fedamp.run({scenario!r}, out={out!r}, resume=True)")
        for option, words in caller.items():
            told = told.replace(option, words)
        error.args = (told,)
        raise


class StopTraining(Exception):
    """A callback raises it, or returns False, to stop the run after the round; the run can be resumed."""


def missing(module: str | None) -> str | None:
    """What to install where a module is missing; None for one that no extra brings."""
    top = (module or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if top in modules.split()), None)
    return extra and f"{top} is not installed; expected: pip install 'fedamp[{extra}]'"


def one_line(error: BaseException) -> str:
    """A foreign exception as one line."""
    if isinstance(error, ModuleNotFoundError) and (words := missing(error.name)):
        return words
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextmanager
def needs_extras() -> Iterator[None]:
    """For imports inside: InputError, which names the extra to install, for a missing module of one."""
    try:
        yield
    except ModuleNotFoundError as error:
        if missing(error.name) is None:
            raise
        raise InputError(one_line(error)) from None


@contextmanager
def fails_alone(what: str) -> Iterator[None]:
    """For code that only reports a run: a failure inside ends nothing else. Log and terminal get a line each."""
    try:
        yield
    except Exception as error:
        tell(f"{what} failed ({one_line(error)}); the run goes on without it")


class LoggedWarning(UserWarning):
    """Warning that is also logged."""


def tell(line: str) -> None:
    """Say a line in the log and on the terminal, in a run that goes on."""
    log.warning(line)
    with suppress(Warning):  # also where warnings are made errors
        warnings.warn(line, LoggedWarning, stacklevel=4)
