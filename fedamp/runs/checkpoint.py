"""Write and read checkpoints: everything that the next round needs, in one file that is whole or absent.

No generator state is stored, because randomness is addressed (:mod:`fedamp.rng`). A round is in a checkpoint first,
where one is due, and then in the ledger; :mod:`fedamp.server.journal` keeps that order.

Checkpoints are secret: they hold private counts of the round, and the memory of correlated noise. They are deleted
when a run has ended, unless ``federation.keep_secrets`` is set.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, PositiveInt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedamp.base.files import make_folder, refuse_link, write_atomically, writing
from fedamp.base.reading import regular
from fedamp.base.record import Record
from fedamp.errors import RunFolderError
from fedamp.runs.ledger import digest
from fedamp.runs.records import RoundRecord
from fedamp.strategies.pipeline import ServerState

KEPT = 2
FORMAT: Literal["fedamp checkpoint 1"] = "fedamp checkpoint 1"


class CheckpointHeader(Record):
    """The metadata of a checkpoint: its round, the round's line of ``rounds.jsonl``, and what the arrays belong to.

    Attributes:
        round: the round after which the state is, from 1.
        clip_scale: the adaptive clipping norm over the plan's; exact, as a hexadecimal text in the file.
        scenario: the scenario's fingerprint.
        owners: digest, keyed by the seed, of whose records are whose.
        record: the line of the round.
        arrays_sha256: digest of all arrays in the file.
    """

    format: Literal["fedamp checkpoint 1"]
    round: PositiveInt
    clip_scale: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False),
        BeforeValidator(lambda value: float.fromhex(value) if isinstance(value, str) else value),
        PlainSerializer(lambda value: value.hex()),
    ]
    scenario: str
    owners: str = ""
    record: RoundRecord
    arrays_sha256: str


def write_checkpoint(
    folder: Path, state: ServerState, record: RoundRecord, fingerprint: str, every: int = 1, owners: str = ""
) -> None:
    """Write a checkpoint; then delete older ones, except the last two and the last two multiples of ``every``.

    Args:
        folder: of the checkpoints; made where it is missing.
        state: after the round.
        record: the line of the round.
        fingerprint: of the scenario.
        every: rounds between the checkpoints that are kept longer.
        owners: digest of whose records are whose.

    Raises:
        UnwritableError: the disk is full, or the folder is a link; older checkpoints stay.
    """
    groups = {"parameters": state.parameters, **{f"moment.{name}": moment for name, moment in state.moments.items()}}
    groups |= {f"noise.{name}": remembered for name, remembered in state.noise.items()}
    if state.previous is not None:
        groups["previous"] = state.previous
    arrays = {f"{group}/{name}": array for group, members in groups.items() for name, array in members.items()}
    what = {"round": state.round, "clip_scale": state.clip_scale, "record": record}
    belongs = {"scenario": fingerprint, "owners": owners, "arrays_sha256": digest(arrays)}
    header = CheckpointHeader.model_validate({"format": FORMAT, **what, **belongs})
    refuse_link(folder)
    with writing(folder):
        make_folder(folder)
    content = save(arrays, metadata={"fedamp": header.to_json(), "order": json.dumps(list(state.parameters))})
    write_atomically(folder / f"round-{state.round:08d}.safetensors", content)
    files = checkpoints(folder)
    due = [file for file in files if int(file.stem.removeprefix("round-")) % every == 0]
    for old in sorted({*files} - {*files[-KEPT:], *due[-KEPT:]}):
        with writing(old):
            old.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    return sorted(folder.glob("round-*.safetensors"))


def read_checkpoint(
    file: Path, fingerprint: str, like: ServerState, owners: str | None = None
) -> tuple[ServerState, RoundRecord]:
    """Read the server's state after a round, and that round's line of ``rounds.jsonl``.

    Args:
        file: one of :func:`checkpoints`.
        fingerprint: of the scenario (:func:`fedamp.runs.ledger.fingerprint`).
        like: a state of the same model.
        owners: of the data that are there now: one person must not get the rounds of two; None: not compared.

    Raises:
        RunFolderError: it is damaged or belongs to another scenario; the line names the newest older one that is good.
    """
    try:
        return _read_checkpoint(file, fingerprint, like, owners)
    except ValueError as problem:
        for older in [other for other in reversed(checkpoints(file.parent)) if other < file]:
            with suppress(ValueError):
                _read_checkpoint(older, fingerprint, like, owners)
                advice = f"{older.name} is good: delete {file.name} to resume from it"
                raise RunFolderError(f"{file}: {problem}; {advice}") from None
        raise RunFolderError(f"{file}: {problem}; there is no older one that is good") from None


def _read_checkpoint(
    file: Path, fingerprint: str, like: ServerState, owners: str | None
) -> tuple[ServerState, RoundRecord]:
    """Read a checkpoint, or raise ValueError: why the run cannot resume from it."""
    try:
        with safe_open(regular(file), framework="numpy") as content:
            metadata = content.metadata() or {}
            arrays = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118 (not a mapping)
        header = CheckpointHeader.from_json(metadata["fedamp"])
        order, names = json.loads(metadata["order"]), sorted({key.split("/")[0] for key in arrays})
        groups = {name: {key: np.array(arrays[f"{name}/{key}"]) for key in order} for name in {*names, "parameters"}}
        state = ServerState(
            groups["parameters"],
            header.round,
            {name.removeprefix("moment."): groups[name] for name in names if name.startswith("moment.")},
            groups.get("previous"),
            header.clip_scale,
            {name.removeprefix("noise."): groups[name] for name in names if name.startswith("noise.")},
        )
    except (SafetensorError, LookupError, ValueError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"damaged or foreign checkpoint ({type(error).__name__}: {reason})") from None
    if header.arrays_sha256 != digest(arrays):
        raise ValueError("damaged checkpoint: its arrays were altered")
    if header.scenario != fingerprint:
        raise ValueError("checkpoint of another scenario")
    if owners is not None and header.owners != owners:
        raise ValueError("the records have other owners, or another order, than when the run began; expected: the same")
    ours, theirs = (
        {name: (array.shape, array.dtype.str) for name, array in each.parameters.items()} for each in (state, like)
    )
    if ours != theirs:
        raise ValueError("damaged or foreign checkpoint: the model in it is another one")
    return state, header.record
