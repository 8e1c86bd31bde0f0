"""What others may have written is opened by one function: nothing in its place is waited for, or fills the memory."""

import ast
import fcntl
import json
import os
import pickle
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, suppress
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from fedamp.base import given
from fedamp.base.files import temporary_folder
from fedamp.base.reading import open_regular, read_regular, read_typed
from tests.documentation import ROOT

HUGE = 1 << 40  # bytes of a file without content


def _data(name: str, **keys: object) -> Callable[[Path], object]:
    """Opens the data that a file is part of, and counts what the server must count."""

    def read(file: Path) -> object:
        from fedamp.data.sections import Data

        section = TypeAdapter(Data).validate_python({"name": name, "path": str(file.parent), "classes": 2} | keys)
        return section.count_records(Path())

    return read


def _tensors(file: Path) -> object:
    from fedamp.models.pretrained import read_tensors

    return read_tensors(file)


def _saved(file: Path) -> object:
    from fedamp.data.sections import Data

    section = TypeAdapter(Data).validate_python({"name": "huggingface", "dataset": str(file.parent), "classes": 2})
    return section.count_records(Path())


def _run(command: str) -> Callable[[Path], object]:
    """A command on the file, or on its folder, that must end with one line."""

    def read(file: Path) -> object:
        from fedamp.__main__ import main

        named = {"FILE": str(file), "FOLDER": str(file.parent)}
        sys.argv = ["fedamp", *(named.get(word, word) for word in command.split())]
        with chdir(file.parent):
            try:
                main()
            except SystemExit as end:
                raise OSError(f"exit status {end.code}") from None

    return read


def _policy(file: Path) -> object:
    from fedamp.client.policy import Policy

    return Policy.read(file)


def _site(file: Path) -> object:
    from fedamp.extensions.deployment.doctor import examine_site

    with chdir(file.parent):
        raise OSError(next(each.found for each in examine_site("site0") if each.name == "authority"))


def _membership(name: str) -> Callable[[Path], object]:
    def read(file: Path) -> object:
        from fedamp.extensions.deployment import membership

        return getattr(membership, name)(file)

    return read


def _about(file: Path) -> object:
    from fedamp.extensions.pages.board import read_about

    return read_about(file)


def _release_key(file: Path) -> object:
    from fedamp.extensions.pages.release import signing_key

    return signing_key(file)


def _participant(file: Path) -> object:
    from fedamp.extensions.secure.participant import Participant

    return Participant.read(file, file, file.parent)


NATURAL = {"partition": {"scheme": "natural"}}
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "scenario": ("scenario.yaml", _run("privacy FILE")),
    "policy": ("policy.yaml", _policy),
    "about": ("about.yaml", _about),
    "request": ("site0.request", _membership("public_key")),
    "public key": ("site0.pub", _membership("public_key")),
    "authority of a node": ("ca.crt", _site),
    "release key": ("release.key", _release_key),
    "agreement": ("agreement.json", _participant),
    "people": ("people.csv", _run("population new new.db --people FILE --epsilon 1 --delta 1e-6")),
    "population": ("people.db", _run("population show FILE")),
    "verify": ("run.zip", _run("verify FILE")),
    "verify a ledger": ("ledger.json", _run("verify FILE")),
    "npz": ("train.npz", _data("npz")),
    "npy": ("train_x.npy", _data("npz")),
    "csv": ("train.csv", _data("csv", features=["x"], label="y", **NATURAL)),
    "parquet": ("train.parquet", _data("parquet", features=["x"], label="y", **NATURAL)),
    "text": ("train.json", _data("text", length=4, **NATURAL)),
    "idx": ("train-labels-idx1-ubyte", _data("idx")),
    "idx.gz": ("train-labels-idx1-ubyte.gz", _data("idx")),
    "federation": ("federation.json", _data("npz", **NATURAL)),
    "arrow": ("data.arrow", _saved),
    "safetensors": ("start.safetensors", _tensors),
    "state_dict": ("start.pt", _tensors),
    "index of shards": ("model.safetensors.index.json", _tensors),
}


UNEXPECTED = "read", "Memory", "Recursion", "Attribute", "Name", "Type", "Import", "Module", "Validation"


def _socket(file: Path) -> None:
    with chdir(file.parent):  # the whole path may be too long
        socket.socket(socket.AF_UNIX).bind(file.name)


KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a pipe": lambda file: (os.mkfifo(file.with_name("pipe")), file.symlink_to("pipe")),
    "a socket": _socket,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a file without end": lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), HUGE),
}


def read_all(folder: Path) -> None:
    """In a process of its own: each kind in place of each file; says what it reads, and then how that ended."""
    os.umask(0o077)
    os.environ["FEDAMP_HOME"] = str(folder / "home")
    resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))  # a mistake must not take the machine's memory
    for kind, make in KINDS.items():
        for name, (file, read) in READERS.items():
            place = folder / kind / name
            place.mkdir(parents=True)
            np.savez(place / ("train.npz" if name == "federation" else "unread.npz"), x=[[0.5]], y=[0], client=[0])
            if name.startswith("idx"):
                (place / "train-images-idx3-ubyte").write_bytes(struct.pack(">HBBIIIB", 0, 8, 3, 1, 1, 1, 0))
            for beside in {"npy": ["train_y.npy"], "arrow": ["state.json"]}.get(name, []):
                (place / beside).write_text("{}")
            make(place / file)
            print(f"{kind} as {name}", end="\t", flush=True)
            try:
                with chdir(place):
                    answer: object = read(place / file)
                said = f"read: {answer}"
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            print(json.dumps(said), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, sep="\t", flush=True)


def test_nothing_in_place_of_a_file_is_waited_for_or_fills_the_memory(tmp_path):
    """The deadline only says what hangs: the last line is of the reader that does."""
    command = [sys.executable, "-c", f"from tests.test_opened_files import *; read_all(Path({str(tmp_path)!r}))"]
    with (tmp_path / "said").open("w+") as said, (tmp_path / "complaints").open("w+") as complaints:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=ROOT, stdout=said, stderr=complaints, stdin=subprocess.DEVNULL, timeout=900)
        lines = [line.split("\t") for line in (tmp_path / "said").read_text().splitlines()]
    assert len(lines) == len(KINDS) * len(READERS), f"hangs: {lines[-1:]}"
    assert [line for line in lines if json.loads(line[1]).startswith(UNEXPECTED)] == []
    assert [line for line in lines if json.loads(line[1]).endswith("exit status 1")] == []  # that is a traceback
    assert max(int(line[2]) for line in lines) < 3000  # MB: a file that is read whole has at most 537


def test_what_is_read_belongs_to_others_or_is_a_link_where_that_may_be(tmp_path):
    """A colleague's file, and a link to a folder or a file, are read; where what it says is trusted, neither is."""
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.write_text("told")
    link.symlink_to(mine)
    (tmp_path / "folder").symlink_to(tmp_path)
    assert {read_typed(file) for file in (mine, link, tmp_path / "folder" / "link")} == {"told"}
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(link, links=False)
    assert read_regular(tmp_path / "folder" / "mine", links=False, owned=True) == b"told"
    with pytest.raises(OSError, match="larger than 3 B"):
        read_regular(mine, most=3)
    assert read_regular(mine, most=4) == b"told"
    if os.geteuid() == 0:
        os.chown(mine, 65534, 65534)
        assert read_typed(link) == "told"
        with pytest.raises(PermissionError, match="it belongs to another user"):
            read_regular(mine, owned=True)


def test_what_is_put_in_a_files_place_after_the_first_look_is_not_waited_for(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    seen = os.stat(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    monkeypatch.setattr(os, "stat", lambda *_, **__: seen)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(str(tmp_path / "pipe"))
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open_regular(str(tmp_path / "link"), links=False)


def test_no_data_are_lost_behind_links_to_files_and_folders(tmp_path):
    (tmp_path / "archive").mkdir()
    np.savez(tmp_path / "archive" / "of 2024.npz", x=np.zeros((3, 2)), y=[0, 1, 0], client=[0, 1, 2])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.npz").symlink_to("../archive/of 2024.npz")
    (tmp_path / "linked").symlink_to("data")
    assert _data("npz", partition={"scheme": "natural", "column": "client"})(tmp_path / "linked" / "train.npz") == 3


def test_a_temporary_folder_waits_for_no_pipe_and_removes_what_is_left(tmp_path):
    """The place is open to all users. Remains of killed processes are removed; what is a link or a pipe stays."""
    left, piped, linked = (tmp_path / f"fedamp-test-{name}" for name in ("left", "piped", "linked"))
    for folder in (left, piped, linked):
        folder.mkdir()
    (left / ".fedamp").touch()
    os.mkfifo(piped / ".fedamp")
    (linked / ".fedamp").symlink_to(left / "other")
    (left / "other").touch()
    with temporary_folder("fedamp-test-", str(tmp_path)) as made:  # a pipe would be waited for until the test is ended
        assert {each.name for each in tmp_path.iterdir()} == {piped.name, linked.name, Path(made).name}


def test_what_clears_a_place_of_old_files_finds_a_temporary_folder_locked(tmp_path):
    """As systemd-tmpfiles asks: else a program in it could become another user's."""

    def clear(folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)

    with temporary_folder("fedamp-test-", str(tmp_path)) as made, pytest.raises(BlockingIOError):
        clear(made)
    assert list(tmp_path.iterdir()) == []
    clear(str(tmp_path))


def test_a_given_object_of_another_user_is_not_unpickled(tmp_path, monkeypatch):
    name = "thing-" + "0" * 32
    (tmp_path / name).write_bytes(pickle.dumps(1))
    monkeypatch.setenv("FEDAMP_GIVEN", str(tmp_path))
    assert given.find(f"given:{name}") == 1
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with suppress(PermissionError):  # files of root are trusted
        given.find(f"given:{name}")
        assert (tmp_path / name).stat().st_uid == 0


# What opens a path by its name, or by the name of a module beside it.
OPENERS = {
    *("open", "fdopen", "read_text", "read_bytes", "fromfile", "memmap", "open_memmap", "copyfile", "copy2"),
    *("copytree", "touch", "FileIO", "FileHandler", "load_file", "safe_open", "ZipFile", "ParquetFile", "read_schema"),
    *("read_table", "memory_map", "from_file", "from_pretrained", "load_from_disk", "load_dataset", "loadtxt"),
    *("genfromtxt", "load_verify_locations", "create_default_context"),
    *("np.load", "torch.load", "pickle.load", "json.load", "tomllib.load", "shutil.copy"),
}
CHECKED = {"open_regular", "regular", "regular_inside"}
# Files that no other user writes, or that are written and not read, by module: each call as it stands there.
ALLOWED = {
    "accounting/verify.py": {
        "zipfile.ZipFile(file, 'w')": "writes into a stream",
        "self._archive.open(name)": "a member of an archive that open_regular has opened",
        "archive.open(about, 'w')": "writes a member",
    },
    "api.py": {"open(folder)": "is fedamp.open"},
    "base/devices.py": {
        "Path('/proc/meminfo').read_text()": "of the system",
        "_OWN_GROUP.read_text()": "of the system",
        "(_GROUPS / group / f'memory.{name}').read_text()": "of the system",
        "(_GROUPS / group / 'memory.stat').read_text()": "of the system",
    },
    "base/files.py": {
        "open(as_its_folder(str(beside), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), 'wb')": "makes a new file",
        "os.open(path, flags, mode & os.stat(os.path.dirname(path) or '.').st_mode)": "its callers are in this list",
        "file.open('r+b')": "is_file() before; what is read is overwritten",
        "os.open(path, os.O_RDONLY)": "flushes what this process has written or renamed",
        "open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 384), 'rb')": "a lock; O_RDWR never waits",
        "os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 384)": "the same",
        "os.open(beside, os.O_RDONLY | os.O_CREAT, 384)": "makes a file in a folder that this process has just made",
        "os.open(made.name, os.O_RDONLY | os.O_DIRECTORY)": "a folder that this process has just made",
    },
    "base/given.py": {
        "open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 384), 'wb')": "makes a new file",
        "os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 384)": "makes a new file",
    },
    "base/reading.py": {
        "open(file, 'rb', opener=lambda path, asked: os.open(path, asked | flags))": "the one function",
        "os.open(path, asked | flags)": "the one function",
        "open(file, 'rb')": "a descriptor of this process, as a shell gives it",
    },
    "cli/terminal.py": {
        "os.open(os.devnull, os.O_WRONLY)": "of the system",
        "open(os.devnull, 'w')": "of the system",
    },
    "extensions/personal/layers.py": {
        "os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 384)": "writes, and never waits",
    },
    "client/proofs.py": {
        "file.read_bytes()": "the installed package itself",
        "Path('/proc/cpuinfo').read_text()": "of the system",
    },
    "data/builtin/__init__.py": {
        "Path(__file__).with_name(name).read_text(encoding='utf-8')": "the installed package itself",
        "_LINES.read_text(encoding='utf-8')": "the installed package itself",
    },
    "data/table.py": {
        "zipfile.ZipFile(archive)": "a stream of open_regular",
        "members.open(name if name in members.namelist() else f'{name}.npy')": "a member of that archive",
    },
    "data/places.py": {
        "unfinished.touch(mode=384)": "makes a file in the folder of the cache, which is its owner's",
    },
    "data/features.py": {
        "np.lib.format.open_memmap(file, 'w+', np.float32, self.shape)": "writes into the cache",
    },
    "engines/ray.py": {"self._output.open('ab')": "writes the log of a run folder, which holds no pipe (refuse_link)"},
    "engines/flower.py": {
        "open(self.baseFilename, 'a', encoding='utf-8', opener=as_its_folder)": "as engines/ray.py",
    },
    "report/style.py": {"open(file, 'wb', opener=as_its_folder)": "writes a picture"},
    "federation/contracts.py": {"each.read_bytes()": "an installed package"},
    "federation/kept_answers.py": {"file.read_bytes()": "the installed package itself"},
    "extensions/population/store.py": {
        "os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 384)": "makes a new file",
        "MACHINE_ID.read_bytes()": "of the system",
    },
    "extensions/population/papers.py": {
        "(Path(__file__).parent / 'templates' / f'{name}.{language}.md.j2').read_text('utf-8')": "installed",
    },
    "extensions/pages/release.py": {
        "packed.open('wb')": "makes a file in a folder that this process has just made",
    },
    "runs/verification.py": {"(Path(folder) / name).open('wb')": "makes a file in a temporary folder"},
    "runs/folder.py": {
        "open(self.rounds, 'ab', opener=as_its_folder)": "writes, after refuse_link",
        "open(folder.log, 'ab', opener=as_its_folder)": "writes, after refuse_link",
    },
    "extensions/tune/sweep.py": {"os.open(os.devnull, os.O_WRONLY)": "of the system"},
}


def opened_otherwise(text: str) -> Iterator[str]:
    """The calls that open a file of which neither ``open_regular`` nor ``regular`` has seen the path."""
    tree = ast.parse(text)
    withs = [item for each in ast.walk(tree) if isinstance(each, ast.With) for item in each.items]
    bound: list[tuple[ast.AST | None, ast.AST]] = [(item.optional_vars, item.context_expr) for item in withs]
    bound += [(each.targets[0], each.value) for each in ast.walk(tree) if isinstance(each, ast.Assign)]
    streams: set[str] = set()

    def is_checked(node: ast.AST) -> bool:
        match node:
            case ast.Name():
                return node.id in streams
            case ast.IfExp():
                return is_checked(node.body)
            case ast.BoolOp():
                return is_checked(node.values[-1])
            case ast.Call():
                return ast.unparse(node.func) in CHECKED or any(map(is_checked, node.args))
        return False

    streams |= {name.id for name, value in bound if isinstance(name, ast.Name) and is_checked(value)}
    methods = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "open"}
    last = {name.rpartition(".")[2] for name in OPENERS}
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and getattr(each.func, "attr", getattr(each.func, "id", "")) in last:
            name = ast.unparse(each.func)
            of_data = name.endswith(".open") and "folder: Path) -> Tables" in text and methods  # StoredData.open
            path = [*each.args, *(keyword.value for keyword in each.keywords if keyword.arg == "cafile")][:1]
            if {name, name.rpartition(".")[2]} & OPENERS and not (of_data or any(map(is_checked, path))):
                yield ast.unparse(each)


@pytest.mark.parametrize(
    "call",
    ["open(path)", "path.read_text()", "np.load(path)", "load_file(str(path))", "with path.open() as a: np.load(a)"],
)
def test_the_search_for_what_opens_files_finds_them(call):
    assert list(opened_otherwise(call))
    assert not list(opened_otherwise("with open_regular(path) as file: np.load(file)\nload_file(str(regular(path)))"))


def test_every_file_is_opened_by_the_one_function_or_has_a_reason():
    root = ROOT / "fedamp"
    found = {str(file.relative_to(root)): set(opened_otherwise(file.read_text())) for file in root.rglob("*.py")}
    expected = {name: set(calls) for name, calls in ALLOWED.items()}
    assert {name: calls for name, calls in found.items() if calls} == expected
