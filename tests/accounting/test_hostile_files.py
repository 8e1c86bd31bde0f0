"""``fedamp-accounting check`` of files that were made to hang it, to fill the memory, or to write on the terminal."""

import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from fedamp.accounting.__main__ import main

CALL = "make_private(noise_multiplier={}, max_grad_norm={})\n"
CLAIMS = "Claims(rounds={}, clip={}, noise_multiplier={})\n"
DEEP = 100_000
ARROWS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def job(arguments: str, path: str = "opacus.make_private") -> str:
    return f'{{"filters": [{{"path": "{path}", "args": {arguments}}}]}}'


def chain(times: int, operator: str) -> str:
    """Each name is two of the one before."""
    names = "".join(f"a{i} = a{i - 1} {operator} a{i - 1}\n" for i in range(1, times))
    return f"a0 = 9\n{names}" + CALL.format(f"a{times - 1}", 1.0)


NUMBERS = {  # of a noise multiplier, as Python writes it
    "tower": "9**9**9**9",
    "power": "9**(9**9)",
    "shift": "1 << 10**9",
    "hexadecimal": "0x" + "F" * 200_000,
    "4300 digits": "9" * 4_301,
    "5000 digits of a fraction": "1." + "0" * 5_000 + "e400",
    "not a number": "float('nan')",
    "infinite less infinite": "1e999 - 1e999",
    "infinite": "1e999",
    "complex": "1j",
    "root of a negative": "(-1) ** 0.5",
    "divided by nothing": "1 / 0",
    "nothing to a negative power": "0 ** -1",
    "letters": "'a' * 10**10",
    "bytes": "b'a' * 10**10",
    "lists": "[1] * 10**10",
    "a tuple of tuples": "((1,) * 10**5,) * 10**5",
    "escapes": "'\\x1b[31mEVIL\\x1b]0;title\\x07'",
    "a long text": "'" + "a" * 200_000 + "'",
    "a format": "f'{9**9**9}'",
    "a truth": "True",
    "nothing": "None",
    "dots": "...",
    "negative": "-1.0",
    "tiny": "1e-320",
    "huge": "1e308 * 1e308",
    "beyond counting": "2**53 + 1",
    "a set": "{1.0}",
    "a mapping": "{'a': 1.0}",
    "a call": "__import__('os').system('touch /tmp/owned')",
    "a comprehension": "sum(i for i in range(10**12))",
    "a lambda": "(lambda: (yield))()",
    "a later name": "later",
    "itself": "x",
    "minus minus": "- " * 60_000 + "1",
    "a chain of sums": " + ".join(["1"] * 900),
    "a chain too deep": " + ".join(["1"] * 60_000),
    "many powers": "**".join(["1"] * 60_000),
    "brackets": "(" * DEEP,
    "closed brackets": "(" * 300 + "1" + ")" * 300,
    "attributes": "a" + ".b" * 60_000,
    "defaults": "a" + ".default" * 60_000,
    "indices": "a" + "[0]" * 60_000,
    "calls": "f(" * 150 + ")" * 150,
    "calls of calls": "a" + "()" * 60_000,
    "nots": "not " * 60_000 + "1",
    "conditions": "1 if 1 else " * 20_000 + "1",
    "lambdas": "lambda: " * 30_000 + "1",
    "comparisons": "<".join(["1"] * 60_000),
    "ors": " or ".join(["1"] * 40_000),
    "a wide list": "[" + "[]," * 60_000 + "]",
    "reordered": f"1.0 + float('1{ARROWS[4]}.5{ARROWS[2]}')",
    "a word that is a sentinel": "'not a number in the file'",
}
PYTHON = {
    **{f"number: {name}": CALL.format(text, 1.0) for name, text in NUMBERS.items()},
    **{f"mark U+{ord(mark):04X}": f"# {mark}\n" + CALL.format(1.0, 1.0) for mark in ARROWS},
    "names in a circle": "x = y\ny = x\n" + CALL.format("x", 1.0),
    "a name of its own": "x = x + 1\n" + CALL.format("x", 1.0),
    "names doubled": chain(60, "+"),
    "names squared": chain(60, "*"),
    "names to their own power": chain(9, "**"),
    "names in wide sums": "a = 1\n"
    + "".join(f"a{i} = {' + '.join([f'a{i - 1}'] * 20)}\n" for i in range(1, 9))
    + CALL.format("a8", 1.0),
    "a parameter with the name of a constant": "z = 1.0\ndef f(z):\n    " + CALL.format("z", 1.0),
    "a loop over a constant's name": "z = 1.0\nfor z in (1e-9,):\n    " + CALL.format("z", 1.0),
    "an import over a constant": "z = 1.0\nfrom evil import y as z\n" + CALL.format("z", 1.0),
    "a pattern over a constant": "z = 1.0\nmatch evil:\n    case {**z}:\n        " + CALL.format("z", 1.0),
    "starred": "make_private(*a)\n",
    "double starred": "make_private(noise_multiplier=1.0, **a)\n",
    "a file of calls": CALL.format(1.0, 1.0) * 4_000,
    "noise of nothing": "gaussian_privatizer(stddev=1.0)\n",
    "two noises": "clipped_grad(f, l2_clip_norm=1.0)\n" + "gaussian_privatizer(stddev=1.0)\n" * 2,
    "layers of texts": CALL.format(1.0, "['a' * 10**10]"),
    "layers of lists": CALL.format(1.0, "[[1.0] * 10**10]"),
    "layers without end": CALL.format(1.0, "[" + "1.0," * 60_000 + "]"),
    "a batch of texts": "DPKerasConfig(train_steps=1, train_size=9, batch_size=10**9, noise_multiplier=1.0, "
    "delta=1e-5, clipping_norm=1.0, gradient_accumulation_steps='a' * 10**9)\n",
    "clients of none": "DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, 0)\n",
    "clients of a text": "DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, '\\x1b[31m')\n",
    "a local delta of zero": "LocalDpMod(1.0, 1.0, 1.0, 0.0)\n",
    "a local delta of no number": "LocalDpMod(1.0, 1.0, 1.0, float('nan'))\n",
    "a local epsilon of zero": "LocalDpMod(1.0, 1.0, 0.0, 1e-5)\n",
    "an endless plan": "BandMFConfig(strategy=[1.0], iterations=1e999, expected_participations=1, "
    "noise_multiplier=1.0)\n",
    "a plan of nothing": "BandMFConfig(strategy=[], iterations=9, expected_participations=1, noise_multiplier=1.0)\n",
    "a plan that calibrates itself": "BandMFExecutionPlanConfig(iterations=9, epsilon=1.0, delta=1e-5)\n",
    "no calls": "x = 1\n",
    "nothing at all": "",
    "a null byte": "x = 1\n\0" + CALL.format(1.0, 1.0),
    "an escape": "\x1b]0;title\x07" + CALL.format(1.0, 1.0),
    "indented without end": "".join(" " * i + "if 1:\n" for i in range(300)),
    "branches without end": "if 1:\n 1\n" + "elif 1:\n 1\n" * 15_000,
    "strange escapes": "x = '" + "\\d" * 60_000 + "\n",
    "an unclosed text": "x = '''" + "a" * 60_000,
    "claims of another key": "Claims(rounds=1, clip=1.0, noise=1.0, **{'__class__': 1})\n",
    "claims of rounds without end": CLAIMS.format("2**60", 1.0, 1.0),
    "claims of a fraction of rounds": CLAIMS.format(1.5, 1.0, 1.0),
    "claims of a strange relation": CLAIMS.format(1, 1.0, "1.0, relation='\\x1b[31m" + "a" * 60_000 + "'"),
    "claims of a huge clip": CLAIMS.format(1, "1e300", 1.0),
    "a notebook": json.dumps({"cells": [{"source": [CALL.format(1.0, 1.0)]}]}),
    "YAML of aliases": "a: &a [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 99)),
}
JSON = {
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "unclosed": "[" * DEEP,
    "arguments in a list": job("[1, 2]"),
    "arguments in a text": job('"noise"'),
    "arguments of a number": job("1"),
    "a key twice": job('{"noise_multiplier": 9, "noise_multiplier": 1e-9}'),
    "not a number": job('{"noise_multiplier": NaN, "max_grad_norm": 1.0}'),
    "infinite": job('{"noise_multiplier": Infinity, "max_grad_norm": 1.0}'),
    "many digits": job('{"noise_multiplier": ' + "9" * 5_000 + "}"),
    "escapes": job('{"noise_multiplier": "\\u001b[31mEVIL\\u202e"}'),
    "a list of lists": job('{"noise_multiplier": 1.0, "max_grad_norm": [[1.0], "a"]}'),
    "claims of another key": job('{"rounds": 1, "clip": 1.0, "self": 1}', "x.Claims"),
    "a path that is a list": '{"path": [["make_private"]], "args": {}}',
    "a path that is an object": '{"path": {"a": 1}, "name": null}',
    "a number": "1",
    "nothing": "",
    "Python": CALL.format(1.0, 1.0),
    "half a pair": '{"path": "make_private\\ud800"}',
}
TOML = {
    "deep lists": "a = " + "[" * DEEP,
    "deep tables": "a = " + "{a = " * DEEP,
    "deep keys": ".".join(["a"] * 60_000) + " = 1\n",
    "many deep keys": "".join(f"{'.'.join([f'a{i}'] + ['a'] * 490)} = 1\n" for i in range(250)),
    "many tables": "".join(f"[a{i}.b]\n" for i in range(9_000)),
    "a number for a table": "tool = 1\n",
    "a list for a table": "[[tool]]\nflwr = 1\n",
    "a text for a table": "[tool.flwr]\napp = 'a'\n",
    "a key twice": "[tool.flwr.app.config]\nnoise = 1\nnoise = 2\n",
    "a hexadecimal number": "a = 0x" + "F" * 200_000 + "\n",
    "many digits": "a = " + "9" * 5_000 + "\n",
    "a date that is none": "a = 2023-99-99\n",
    "a null byte": "a = '\0'\n",
}


def pipe(file: Path) -> None:
    os.mkfifo(file)


def listening(file: Path) -> None:
    here = os.getcwd()
    os.chdir(file.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(file.name)
    os.chdir(here)


def sparse(file: Path) -> None:
    file.touch()
    os.truncate(file, 100 << 30)


def project(content: str, **others: Callable[[Path], object]) -> Callable[[Path], None]:
    """A folder of its own beside a pyproject.toml."""

    def make(file: Path) -> None:
        file.write_text(content)
        for name, other in others.items():
            other(file.parent / f"{name}.py")

    return make


def many_files(file: Path) -> None:
    for number in range(101):
        file.with_name(f"{file.stem}{number}.py").write_text(CALL.format(1.0, 1.0))


PLACES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a folder": ("x.py", Path.mkdir),
    "a folder of JSON": ("x.json", Path.mkdir),
    "a pipe": ("x.py", pipe),
    "a pipe of JSON": ("x.json", pipe),
    "a pipe of TOML": ("x.toml", pipe),
    "a socket": ("x.py", listening),
    "zeros without end": ("x.py", lambda file: file.symlink_to("/dev/zero")),
    "a terminal": ("x.py", lambda file: file.symlink_to("/dev/tty")),
    "a link to itself": ("x.py", lambda file: file.symlink_to(file)),
    "a link to nothing": ("x.py", lambda file: file.symlink_to("nothing")),
    "a hundred gigabytes": ("x.py", sparse),
    "a hundred gigabytes of JSON": ("x.json", sparse),
    "missing": ("x.py", lambda file: None),
    "UTF-16": ("x.py", lambda file: file.write_text(CALL.format(1.0, 1.0), "utf-16")),
    "UTF-32": ("x.py", lambda file: file.write_text(CALL.format(1.0, 1.0), "utf-32")),
    "UTF-7": ("x.py", lambda file: file.write_text("# coding: utf-7\nx = '+AGE-'\n")),
    "Latin letters": ("x.py", lambda file: file.write_bytes(b"# coding: latin-1\nx = '\xe9'\n")),
    "bytes": ("x.py", lambda file: file.write_bytes(bytes(range(256)) * 99)),
    "a wrong suffix": ("x.json.py", lambda file: file.write_text("null")),
    "no suffix": ("x", lambda file: file.write_bytes(b"\x7fELF" + bytes(99))),
    "a name with escapes": ("\x1b[31m\u202e\r.py", lambda file: file.write_text("(")),
    "a name that is no text": (os.fsdecode(b"\xff\xfe.py"), lambda file: file.write_text("(")),
    "a name of many letters": ("a" * 250 + ".py", lambda file: file.write_text("(")),
    "a name too long": ("a" * 300 + ".py", lambda file: None),
    "a project with a pipe": ("pyproject.toml", project("", app=pipe)),
    "a project with a device": ("pyproject.toml", project("", app=lambda file: file.symlink_to("/dev/zero"))),
    "a project with a broken file": ("pyproject.toml", project("", app=lambda file: file.write_text("("))),
    "a project with deep code": ("pyproject.toml", project("", app=lambda file: file.write_text("(" * DEEP))),
    "a project with gigabytes": ("pyproject.toml", project("", app=sparse)),
    "a project of many files": ("pyproject.toml", project("", app=many_files)),
    "a project of itself": ("pyproject.toml", project("", app=lambda file: file.symlink_to(file.parent))),
}


def hostile(folder: Path) -> dict[str, Path]:
    """The files, each in a folder of its own, by what they are."""
    made = {}
    for suffix, texts in (("py", PYTHON), ("json", JSON), ("toml", TOML)):
        for name, text in texts.items():
            made[f"{suffix}: {name}"] = file = folder / str(len(made)) / f"x.{suffix}"
            file.parent.mkdir()
            file.write_text(text)
    for name, (file_name, make) in PLACES.items():
        made[f"place: {name}"] = file = folder / str(len(made)) / file_name
        file.parent.mkdir()
        make(file)
    return made


def checked_here(files: list[str]) -> None:
    """In a process of its own: print for each file its status, its output, and the memory and time that it took."""
    out, limit = sys.stdout, 1 << 30
    main_memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (main_memory + 2 * limit, main_memory + 2 * limit))
    for file in files:
        sys.stdout, sys.stderr, status = StringIO(), StringIO(), "no exit"
        before, since = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            main(["check", file])
        except SystemExit as ended:
            status = str(ended.code)
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"[:200]
        megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        found = status, sys.stdout.getvalue(), sys.stderr.getvalue(), megabytes, time.process_time() - since
        print(json.dumps(found), file=out, flush=True)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    files = hostile(tmp_path_factory.mktemp("hostile"))
    code = "from tests.accounting.test_hostile_files import checked_here; import sys; checked_here(sys.argv[1:])"
    command = [sys.executable, "-c", code, *map(str, files.values())]
    # The deadline only says that one of them hangs: all together take less than a minute of a processor.
    found = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=500, check=False)
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(answers) == len(files), f"{list(files)[len(answers)]}: {found.stderr[-2000:]!r}"
    return dict(zip(files, answers, strict=True))


NAMES = [f"{kind}: {name}" for kind, texts in (("py", PYTHON), ("json", JSON), ("toml", TOML)) for name in texts]
NAMES += [f"place: {name}" for name in PLACES]


def test_there_are_many_of_them() -> None:
    assert len(NAMES) >= 111


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_file_is_one_line_at_once(answers: dict[str, list], name: str) -> None:
    status, out, err, megabytes, seconds = answers[name]
    assert status in ("1", "2"), f"{status} {out} {err}"
    assert all(letter.isprintable() or letter == "\n" for letter in out + err), repr(out + err)
    if status == "2":
        assert err.count("\n") == (0 if "unknown" in out else 1), err
    assert len(out + err) < 11_000, "a foreign text fills no terminal"
    assert megabytes < 400  # a quarter of a megabyte of code has a tree of at most 200
    assert seconds < 20  # most take milliseconds, and a wide tree some seconds on a slow machine


def test_the_command_itself_waits_for_no_pipe(tmp_path: Path) -> None:
    pipe(tmp_path / "x.py")
    command = [sys.executable, "-m", "fedamp.accounting", "check", str(tmp_path / "x.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")
    assert "not a regular file" in ended.stderr
