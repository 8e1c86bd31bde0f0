"""Keep the objects and arrays that a person gives in Python, by digest, for this process and those that it starts.

They lie in a folder that only its owner can read, and that is removed with the process. A scenario holds digests alone:
reading a run folder never unpickles anything. A digest needs the user's secret key, else everybody with a guess of all
private records could test it on a released scenario.

``fedamp.load`` and ``fedamp.run`` bring objects here (:mod:`fedamp.federation.objects`), arrays come from
:mod:`fedamp.data.npz`. Models and losses find theirs by name when a worker builds them (:mod:`fedamp.models.custom`).
"""

import copy
import dis
import hashlib
import hmac
import os
import pickle
import re
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from fedamp.base.files import home, temporary_folder
from fedamp.base.reading import TYPED, read_regular
from fedamp.errors import InputError, one_line

PREFIX = "given:"
_PLACE = "FEDAMP_GIVEN"  # names the folder to processes that this one starts
_made: list["TemporaryDirectory[str]"] = []
_objects: dict[str, Any] = {}
# What Python adds to a class, and what only says where it was written.
_NOT_COUNTED = {"__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl"}
_NOT_COUNTED |= {"__firstlineno__", "__static_attributes__", "__annotations_cache__"}
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
_Seen = dict[int, tuple[int, Any]]


def folder() -> Path:
    """Return the folder of this process with all that was given; the first use makes it.

    Processes that this one starts find it through the environment.
    """
    if _PLACE not in os.environ:
        _made.append(temporary_folder("fedamp-given-"))
        os.environ[_PLACE] = _made[0].name
    return Path(os.environ[_PLACE])


@contextmanager
def writing() -> Iterator[Path]:
    """Make a new folder beside the given objects, to be renamed to its final name; what is left in it is removed.

    Yields:
        Its path.

    Raises:
        InputError: there is no space; the line names TMPDIR.
    """
    try:
        with TemporaryDirectory(dir=folder(), ignore_cleanup_errors=True) as beside:
            yield Path(beside)
    except OSError as error:
        raise InputError(f"{folder()}: cannot be written ({error.strerror}); TMPDIR names another place") from None


def digest(parts: Iterable[bytes]) -> str:
    """Compute HMAC-SHA-256 under the secret key of this user, ``given.key``; the first use makes the key.

    Args:
        parts: pieces in order; each is hashed by itself, so moving a byte from one to the next changes the digest.

    Returns:
        64 hexadecimal letters.

    Raises:
        InputError: the key can be neither read nor made.
    """
    file = home() / "given.key"
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(secrets.token_bytes(32))
        state = hmac.new(read_regular(file, TYPED), digestmod="sha256")
    except OSError as error:
        raise InputError(f"{file}: cannot be read or made ({error.strerror})") from None
    for part in parts:
        state.update(hashlib.sha256(part).digest())
    return state.hexdigest()


def keep(thing: Any, what: str) -> str:
    """Keep a class, a function or another object as it is now.

    The digest is over what the object does (code, constants, used globals), not over file names or line numbers. So it
    is the same in another process, and after a notebook's cell ran again. A scenario's fingerprint holds it.

    Args:
        thing: anything that cloudpickle can write.
        what: its place in the scenario, for errors.

    Returns:
        Its name, ``given:NAME-DIGEST``, which a scenario holds in its place.

    Raises:
        InputError: it cannot be pickled or copied.
    """
    try:
        import cloudpickle

        facts, content = [fact.encode() for fact in _facts_of(thing, {})], cloudpickle.dumps(thing)
        copied = copy.deepcopy(thing)  # of classes and functions the same
    except Exception as error:  # an object may raise anything
        raise InputError(f"{what}: cannot be handed to other processes ({one_line(error)})") from None
    label = re.sub(r"[^A-Za-z0-9_]", "", getattr(thing, "__name__", what))
    name = f"{label}-{digest(facts)[:32]}"
    with writing() as beside:
        (beside / name).write_bytes(content)
        (beside / name).rename(folder() / name)
    _objects[PREFIX + name] = copied
    return PREFIX + name


def find(name: str) -> Any:
    """Return the object that was kept under a name.

    Args:
        name: as :func:`keep` has returned it.

    Raises:
        InputError: nothing was kept under it, in this process or the one that started it.
    """
    if name in _objects:  # unpickling a person's class here would replace its methods
        return _objects[name]
    known = re.fullmatch(r"[A-Za-z0-9_]*-[0-9a-f]{32}", name.removeprefix(PREFIX))
    if not known or not (folder() / known[0]).is_file():
        raise InputError(f"{name!r} is not given here; expected: the same object again (docs/python.md)")
    return pickle.loads(read_regular(folder() / known[0], owned=True))


def _facts_of(thing: Any, seen: _Seen) -> Iterator[str]:
    """Write what an object is made of, without names of files, numbers of lines, or the order of sets.

    Args:
        thing: the object.
        seen: objects so far by id, each with its number: a cycle, or a second use, is written as a reference.
    """
    if thing is None or thing is ... or isinstance(thing, bool | int | float | complex | str | bytes):
        shown = hashlib.sha256(thing).digest() if isinstance(thing, bytes) else thing
        yield f"{type(thing).__name__} {shown!r}"
    elif id(thing) in seen:
        yield f"again {seen[id(thing)][0]}"
    else:
        if not isinstance(thing, tuple | frozenset):  # Python merges equal ones at times
            seen[id(thing)] = len(seen), thing  # held, so that no other object gets its id
        parts = list(_parts_of(thing, seen))
        yield f"{type(thing).__name__} of {len(parts)}"
        for part in parts:
            yield from _facts_of(part, seen)


def _parts_of(thing: Any, seen: _Seen) -> Iterable[Any]:
    """Take an object apart into what decides its behaviour; unknown kinds by what pickle would write of them."""
    match thing:
        case ModuleType():
            return [thing.__name__]
        case FunctionType() | type() if _is_importable(thing):
            return [thing.__module__, thing.__qualname__]
        case CodeType():
            names = [thing.co_names, thing.co_varnames, thing.co_freevars, thing.co_cellvars]
            return [thing.co_code, *names, thing.co_flags, thing.co_argcount, thing.co_kwonlyargcount, thing.co_consts]
        case FunctionType():
            used = {name: thing.__globals__[name] for name in _global_names(thing.__code__, thing.__globals__)}
            return [thing.__code__, thing.__defaults__, thing.__kwdefaults__, thing.__closure__, used]
        case type():
            return [thing.__bases__, {key: value for key, value in vars(thing).items() if key not in _NOT_COUNTED}]
        case CellType():
            return [thing.cell_contents]
        case staticmethod() | classmethod():
            return [thing.__func__]
        case property():
            return [thing.fget, thing.fset, thing.fdel]
        case tuple() | list():
            return thing
        case dict():
            return [part for pair in thing.items() for part in pair]
        case set() | frozenset():
            return sorted("".join(_facts_of(each, dict(seen))) for each in thing)
    if hasattr(thing, "detach"):  # a tensor
        thing = thing.detach().cpu().numpy()
    reduced = thing.__reduce_ex__(4)
    rest = [reduced] if isinstance(reduced, str) else [*reduced[1:3], *(list(items or ()) for items in reduced[3:5])]
    return [type(thing), *rest]


def _global_names(code: CodeType, there: Iterable[str]) -> list[str]:
    """Find the globals that a function, and the functions inside it, use: changing one of them changes the function."""
    found = [each.argval for each in dis.get_instructions(code) if each.opname in _GLOBALS]
    inside = [name for each in code.co_consts if isinstance(each, CodeType) for name in _global_names(each, there)]
    return [name for name in dict.fromkeys([*found, *inside]) if name in there]


def _is_importable(thing: Any) -> bool:
    """Say whether other processes can import a class or function by its name; then its name stands for its content."""
    found: Any = sys.modules.get(thing.__module__ or "")
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return thing.__module__ != "__main__" and found is thing
