"""The seams: what an extension may add to the core, and how the core finds it.

The core imports no extension. It asks this module for the offers of a seam, and imports them when they are used. An
extension is a package with an attribute ``extension``: a folder of ``fedamp/extensions``, or a package of another
distribution, which names itself as an entry point of the group ``fedamp.extensions``.

This module knows the names of seams and no more: each user of a seam says what its objects must be. A reader goes on
with CONTRIBUTING.md, with a folder of ``fedamp/extensions``, or with ``examples/blocks``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

OWN = "fedamp.extensions"
"""The package of fedamp's own extensions, and the group of the entry points of others."""


@dataclass(frozen=True)
class Extension:
    """An extension: all that one idea adds to the core.

    Objects are named as ``package.module:attribute``, so that naming them imports nothing. Each attribute is a seam:
    keys with such names. An empty seam adds nothing.

    Attributes:
        name: name of the idea, a lower-case word; for extensions of fedamp the name of the folder.
        commands: functions, or Typer applications, that become commands of ``fedamp``, by the command's name.
        help_groups: groups of ``fedamp --help``, by the command's name: ``Train``, ``Compare``, or any words. A command
            without a group is among those of other packages.
        accountant_commands: functions that become commands of ``fedamp-accounting``, by the command's name. They take
            the words after it, and return checks (:class:`fedamp.accounting.verify.Check`).
        pages: ``report``: a function that writes a page about runs, from their folders and the file.
        trackers: subclasses of :class:`fedamp.server.observers.Observer` that take no arguments, by the names that the
            key ``trackers`` of a scenario accepts.
        readers: readers of folders of models that are not runs, each a :class:`fedamp.runs.folder.FolderReader`, by the
            file that tells such a folder.
        series: readers of folders of several runs, each a :class:`fedamp.runs.folder.SeriesReader`, by the file that
            tells such a folder.
        functions: functions of the package ``fedamp``, as ``fedamp.sweep``, by their names.
        sections: keys of a scenario by their path (``mixing``, ``privacy.population``): a class of sections that may be
            left out, or an annotated type with its field (:func:`fedamp.federation.added_keys.extend`).
        fill_ins: functions that return the content of a scenario's file with what follows from a key of it, by the key.
        choices: further schemes of a key of the scenario, by its path (``check_in``, ``server.optimizer``): classes.
        accounting: names of ``fedamp.accounting``: kinds of :class:`fedamp.accounting.Mechanism`, which ledgers hold,
            and others.
        around_run: functions that run before and after each run, by any name: each a
            :data:`fedamp.server.observers.AroundRun`.
        before_runs: functions that may refuse several runs before the first one, by any name: each a
            :data:`fedamp.server.observers.BeforeRuns`.
        model_libraries: functions that build a model from a class of a library, by the name of the library in front of
            the colon of ``model.name``; each takes the section ``model`` and the number of outputs, and returns a
            ``torch.nn.Module`` with the values of ``model.initial``.
        task_keys: keys of the task that clients get (:class:`fedamp.client.task.ClientTask`); each an annotated type
            with its field and its place.
        local_parameters: rules that keep parameters with their client, by the key of the task that asks for it; each a
            :class:`fedamp.client.worker.LocalParameters`.
        server_rules: functions that change how the server steps, by the path of the key that asks for it; each takes
            the scenario, the number of units and the optimizer, and returns a
            :class:`fedamp.federation.optimizers.ServerOptimizer`.
        unit_vectors: functions that make what computes units' vectors in place of trained updates, by the key of the
            task that asks for it; each takes the task and the data set, and returns a
            :data:`fedamp.client.unit_vectors.UnitVectors`; or None: units train.
        exchanges: answers of a node in exchanges of an aggregator, by the key of its configuration that asks for them;
            each a :class:`fedamp.client.exchange.NodeExchange`.
        first_releases: releases of all units before the first round, by their key of the ledger and of the task; each a
            class of :class:`fedamp.federation.first_releases.FirstRelease`.
        side_sums: sums that rounds release beside the model's updates, by the key of their section
            (:class:`fedamp.federation.side_sums.SideSum`), which is also that of the task and of the ledger; each a
            :class:`fedamp.accounting.verify.SideSumKeys`.
        ledger_keys: keys of a ledger; each a :class:`fedamp.accounting.verify.LedgerKey`.
        policy_keys: keys of a node's ``policy.yaml``; each a :class:`fedamp.client.policy.PolicyKey`.

    Example:
        >>> Extension("blocks", commands={"draw": "mylab.blocks.commands:draw"}).commands
        {'draw': 'mylab.blocks.commands:draw'}
    """

    name: str
    commands: Mapping[str, str] = field(default_factory=dict)
    help_groups: Mapping[str, str] = field(default_factory=dict)
    accountant_commands: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    trackers: Mapping[str, str] = field(default_factory=dict)
    readers: Mapping[str, str] = field(default_factory=dict)
    series: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    fill_ins: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accounting: Mapping[str, str] = field(default_factory=dict)
    around_run: Mapping[str, str] = field(default_factory=dict)
    before_runs: Mapping[str, str] = field(default_factory=dict)
    model_libraries: Mapping[str, str] = field(default_factory=dict)
    task_keys: Mapping[str, str] = field(default_factory=dict)
    local_parameters: Mapping[str, str] = field(default_factory=dict)
    server_rules: Mapping[str, str] = field(default_factory=dict)
    unit_vectors: Mapping[str, str] = field(default_factory=dict)
    exchanges: Mapping[str, str] = field(default_factory=dict)
    first_releases: Mapping[str, str] = field(default_factory=dict)
    side_sums: Mapping[str, str] = field(default_factory=dict)
    ledger_keys: Mapping[str, str] = field(default_factory=dict)
    policy_keys: Mapping[str, str] = field(default_factory=dict)


class ExtensionError(ImportError):
    """An extension of another package cannot be imported; the message names the extension and what failed."""


@cache
def extensions() -> tuple[Extension, ...]:
    """List the extensions that are installed: those of fedamp by name, then those of other packages by name.

    Raises:
        ExtensionError: an entry point of another package gives no :class:`Extension`.

    Example:
        >>> "tune" in [extension.name for extension in extensions()]
        True
    """
    try:
        folders = import_module(OWN).__path__
    except ModuleNotFoundError as error:
        if error.name != OWN:
            raise
        folders = []
    own = [import_module(f"{OWN}.{module.name}").extension for module in iter_modules(folders)]
    others = []
    for entry in sorted(entry_points(group=OWN), key=lambda entry: entry.name):
        where = f"entry point {entry.name} of the group {OWN}: {entry.value}"
        others.append(found := _of_another_package(where, entry.load))
        if not isinstance(found, Extension):
            raise ExtensionError(f"{where} is {found!r}; expected: a fedamp.extension.Extension")
    return (*own, *others)


def _of_another_package(where: str, load: Callable[[], Any]) -> Any:
    """Import an object of another package; whatever its code raises becomes an ExtensionError that says where."""
    try:
        return load()
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ExtensionError(f"{where} cannot be imported ({why}); expected: a path that can") from error


def named(path: str) -> Any:
    """Import the object that ``package.module:attribute`` names.

    Args:
        path: the module, a colon, and the attribute.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such attribute.

    Example:
        >>> named("math:pi")
        3.141592653589793
    """
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def path_of(kind: type) -> str:
    """Write the path ``package.module:Class`` of a class, by which :func:`named` finds it.

    Example:
        >>> path_of(Extension)
        'fedamp.extension:Extension'
    """
    return f"{kind.__module__}:{kind.__qualname__}"


def offered(seam: str, key: str) -> Iterator[Any]:
    """Import, one by one, what the extensions offer for a key of a seam, and nothing else.

    Args:
        seam: an attribute of :class:`Extension`, such as ``commands``.
        key: a key of that attribute, such as ``merge``.

    Raises:
        ExtensionError: what an extension of another package offers cannot be imported.

    Example:
        >>> [function.__name__ for function in offered("functions", "tune")]
        ['tune']
    """
    for extension in extensions():
        paths = getattr(extension, seam).get(key, ())
        for path in (paths,) if isinstance(paths, str) else paths:
            if path.startswith("fedamp."):
                yield named(path)
            else:
                where = f"extension {extension.name}: {path}, for the key {key} of {seam},"
                yield _of_another_package(where, partial(named, path))


def all_offered(seam: str) -> Iterator[tuple[str, Any]]:
    """Import, one by one, all that the extensions offer for a seam.

    Args:
        seam: an attribute of :class:`Extension`.

    Returns:
        Pairs of a key and an object; a key for which several extensions offer something occurs several times.
    """
    return ((key, each) for key in keys(seam) for each in offered(seam, key))


def by_key(seam: str) -> dict[str, Any]:
    """Import all that the extensions offer for a seam whose keys have one object each.

    Args:
        seam: an attribute of :class:`Extension`.

    Returns:
        The objects by key.

    Raises:
        ExtensionError: two extensions offer something for one key, so that one of both would be ignored.

    Example:
        >>> "population" in by_key("ledger_keys")
        True
    """
    found = dict[str, Any]()
    for key, each in all_offered(seam):
        if key in found:
            both = " and ".join(other.name for other in extensions() if key in getattr(other, seam))
            raise ExtensionError(
                f"extensions {both}: each offers {key} of {seam}; expected: another key in one of them"
            )
        found[key] = each
    return found


def keys(seam: str) -> list[str]:
    """List the keys of a seam for which extensions offer something, each once.

    Example:
        >>> "sweep" in keys("functions")
        True
    """
    return list(dict.fromkeys(key for extension in extensions() for key in getattr(extension, seam)))
