"""Read a node's configuration, and find what follows from it and the task: its units, its records, its device.

data     folder with this node's records, instead of the scenario's
hosts    ids of the clients that live here, for example "0-9,12"; default: those whose records are here
device   auto, cuda or cuda:N; default: cpu

The keys are those of ``--node-config`` of a SuperNode; a simulated node has a ``device`` and its partition alone.
:mod:`fedamp.client.app` and :mod:`fedamp.client.policy` ask here. No server can change the configuration.
"""

import hmac
import json
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from flwr.app import ConfigRecord, Context
from pydantic import TypeAdapter

from fedamp import rng
from fedamp.base import devices
from fedamp.base.ids import ranges
from fedamp.base.reading import read_typed
from fedamp.base.version import version
from fedamp.client.task import DATA_PLACES, ClientTask, PackageVersion, log
from fedamp.data import Dataset
from fedamp.data.places import kept
from fedamp.data.sections import Data
from fedamp.engines import flower
from fedamp.engines.wire import RoundOrder
from fedamp.errors import DataError, DeploymentError
from fedamp.federation.first_releases import data_after
from fedamp.federation.local_training import DEPLOYED_RECORDS
from fedamp.federation.losses import form_of


class StartedAgainError(DeploymentError):
    """The node has forgotten the server, so the server must query it again before it orders anything."""


@lru_cache(maxsize=2)
def task_of(task_json: str) -> ClientTask:
    """Read the task of an order, and keep it, because it is the same in every round.

    Raises:
        DeploymentError: it is no task of this version, or this node lacks a package with schemes of the run. The server
            may know why, because it has made the task.
    """
    lacking = _lacking_packages(task_json)
    try:
        task = ClientTask.from_json(task_json)
        if not lacking:
            return task
        found = "this node has not all packages of the run"
    except ValueError as error:
        found = f"this node cannot read the task of the run: {error}"
    expected = f"on this node the server's version of fedamp, here {version()}, and all extensions that it has"
    if lacking:
        install = " ".join(each.replace(" ", "==") for each in lacking)
        expected = f"on this node the server's {', '.join(lacking)}, if you trust it: pip install {install}"
    raise DeploymentError(f"{found}; expected: {expected}")


def _lacking_packages(task_json: str) -> list[str]:
    """List the packages that a task needs, and that this node has not in the same version.

    The task itself may be unreadable without them.
    """

    def is_here(name: str, needed: str) -> bool:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name) == needed
        return False

    try:
        told = _PACKAGES.validate_python(json.loads(task_json).get("packages", ()))
    except (ValueError, AttributeError):
        return []
    return [each for each in told if not is_here(*each.split())]


def acquainted(kind: str, order: RoundOrder, context: Context) -> str:
    """Return the secret that this node shares with the server: made at its first query, and told in the sealed answer.

    A registered node can send others orders in the server's name (Flower 1.41), but it cannot read that answer.

    Args:
        kind: type of the message.
        order: that the message brings.
        context: of the node; its state keeps the secret while the SuperNode runs.

    Raises:
        StartedAgainError: an order to train without the secret; or the node has forgotten it, and will be queried
            again.
    """
    known = context.state.config_records.get("fedamp")
    if kind == "query" and known is None:
        known = context.state["fedamp"] = ConfigRecord({"secret": rng.fresh_bytes(16).hex()})
    secret = "" if known is None else str(known["secret"])
    if kind != "query" and not (secret and hmac.compare_digest(secret.encode(), order.secret.encode())):
        raise StartedAgainError("it was started again, and does not know this server yet")
    return secret


def text(context: Context, key: str) -> str:
    """Return a value of a node's configuration; empty where it has none."""
    return str(context.node_config.get(key, ""))


def device(context: Context) -> str:
    """Return torch's name of the device on which a node trains; default: the CPU."""
    return devices.available(text(context, "device") or "cpu")


def named_hosts(context: Context, by_partition: bool) -> set[int] | None:
    """Return the clients that a node's configuration names: its ``hosts``, else perhaps its ``partition-id``.

    Args:
        context: of the node.
        by_partition: whether a node without ``hosts`` speaks for its partition, as with handlers or external data.

    Returns:
        Ids; None: the configuration names none.

    Raises:
        DeploymentError: ``hosts`` cannot be read; or ``by_partition``, and there is neither.
    """
    listed, partition = text(context, "hosts"), context.node_config.get("partition-id")
    if listed:
        try:
            return {client for first, last in ranges(listed) for client in range(first, last + 1)}
        except ValueError as error:
            raise DeploymentError(f"hosts {error}") from None
    if not by_partition:
        return None
    if not isinstance(partition, int):
        raise DeploymentError('the node configuration names no client; add partition-id=3, or hosts="0-9"')
    return {partition}


def hosts(context: Context, task_json: str, by_partition: bool) -> set[int] | None:
    """Return the clients that live on a node: those that its configuration names, else those in its data folder.

    Args:
        context: of the node.
        task_json: the :class:`fedamp.client.task.ClientTask` as JSON; it says how the folder is read.
        by_partition: as for :func:`named_hosts`.

    Returns:
        Ids; None: all clients of the scenario.

    Raises:
        DeploymentError: as :func:`named_hosts`; or a folder that does not say whose records it has.
    """
    named, folder = named_hosts(context, by_partition), text(context, "data")
    if named is not None or not folder:
        return named
    ids = dataset(task_json, folder).hosted if task_json else None
    if ids is None:
        raise DeploymentError(
            f"{folder} has no federation.json, and the node configuration no hosts: say which clients live here"
        )
    return set(ids.tolist())


def dataset(task_json: str, folder: str) -> Dataset:
    """Return a task's records that train (a client each where the unit is a sample), the same in every round.

    Args:
        task_json: the :class:`fedamp.client.task.ClientTask` as JSON.
        folder: of the node's records; empty: the scenario's.
    """
    return divided(task_json, folder)[0]


@lru_cache(maxsize=2)
def divided(task_json: str, folder: str) -> tuple[Dataset, Dataset | None]:
    """Load a task's records, divided into those that train and those that are held out for a side sum.

    Args:
        task_json: the :class:`fedamp.client.task.ClientTask` as JSON.
        folder: of the node's records; empty: the scenario's.

    Returns:
        The records that train; and the held-out ones, None where the task has no side sum.

    Raises:
        DeploymentError: the configuration has a folder that the data cannot use, or lacks one that they need.
        DataError: the records cannot be read, or their owners changed since the node joined the run.
    """
    task = task_of(task_json)
    config = task.data.model_dump()
    if folder:
        key = next((key for key in DATA_PLACES if key in config), None)
        if key is None:
            raise DeploymentError(
                f"node configuration has a data folder, but the scenario's data are {config['name']}; "
                "expected: data with a path or dataset, e.g. npz"
            )
        config[key] = str(Path(folder).absolute())
    elif any(config.get(key) == "" for key in DATA_PLACES):
        raise DeploymentError('this node\'s configuration names no data folder; add data="FOLDER" to --node-config')
    section: Data = data_after(_DATA.validate_python(config), task)
    form = form_of(task.client, task.model)
    if form.most is None and flower.in_supernode():  # one client's number of records must not make the node late
        form = replace(form, most=DEPLOYED_RECORDS)
    records = section.load(task.data_seed, Path(), form)
    if nobodys := getattr(records, "nobodys", 0):  # for the node's owner
        log.warning("%d records in %s are of no client that is hosted here, and train nothing", nobodys, folder)
    if folder and task.run:
        _check_owners(records, task.run, str(Path(folder).absolute()))
    if task.side_sum is not None:
        return records.held_out(task.side_sum.share, task.data_seed)
    return (records.by_record() if task.unit == "sample" else records), None


def _check_owners(records: Dataset, run: str, folder: str) -> None:
    """Refuse owners that a node did not have when it joined the run: one person must not get the rounds of two.

    A digest in the cache, under a key of its own, is what a node remembers when it is started again.
    """

    def write(file: Path) -> None:
        seed = rng.seed_from_system()
        file.write_text(f"{seed} {rng.keyed_digest(seed, 'owners', records.whose())}")

    file = kept("owners", sha256(f"{run} {folder}".encode()).hexdigest(), write)
    seed, owners = read_typed(file).split()
    if rng.keyed_digest(int(seed), "owners", records.whose()) != owners:
        found = "the records have other owners, or another order, than when this node joined the run"
        raise DataError(f"{folder}: {found}; expected: the same ({file})")


_DATA: TypeAdapter[Data] = TypeAdapter(Data)
_PACKAGES: TypeAdapter[tuple[PackageVersion, ...]] = TypeAdapter(tuple[PackageVersion, ...])
