"""A disk that is full, a folder that is read-only, a link in a file's place: one line, exit 2, and nothing is lost."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedamp.errors import UnwritableError
from fedamp.runs.verification import verify_ledger
from fedamp.server.launch import launch
from tests.federations import Silent, small, write_small
from tests.server.plays import model_of, rounds_of

PAGE = 4096  # bytes that tmpfs gives to a file at once
ROUNDS = 8


def assert_whole(folder: Path, reference: Path | None = None) -> None:
    """Every round was released once; with a known seed the model is that of an undisturbed run."""
    assert [line["round"] for line in rounds_of(folder)] == list(range(1, ROUNDS + 1))
    assert json.loads((folder / "summary.json").read_text())["stopped_because"] == "finished"
    assert [check.name for check in verify_ledger(folder) if check.verdict == "fail"] == []
    if reference:
        assert model_of(folder) == model_of(reference)


def refused(answer, folder: Path) -> None:
    assert answer.status == 2, answer
    lines = [line for line in answer.err.splitlines() if not line.startswith("caution: ")]  # of the log and the plots
    assert len(lines) == 1, answer.err
    assert lines[0].startswith(f"error: {folder}")
    assert "Traceback" not in answer.err


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return launch(small(), Silent(), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def disk(tmp_path):
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"nobody may mount here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path, free: int) -> None:
    """Leave so many free pages."""
    with (disk / "ballast").open("wb") as stream:
        stream.write(bytes((shutil.disk_usage(disk).free // PAGE - free) * PAGE))
    assert shutil.disk_usage(disk).free == free * PAGE


def file_of(answer) -> str:
    """The name of the file that could not be written."""
    return Path(answer.err.split("error: ")[1].split(": ")[0]).name


def assert_resumes(fedamp, answer, scenario: Path, folder: Path, whole: Path | None) -> str:
    """After a refusal; returns the name of the file that could not be written."""
    refused(answer, folder)
    begun = (folder / "ledger.json").exists()
    assert begun == ("resume with: fedamp run" in answer.err)
    if not begun:  # nothing is left of it, so that it can be called in the same way again
        assert not folder.exists()
    elif (folder / "rounds.jsonl").read_bytes():
        assert "epsilon" in answer.out  # the closing table
    again = fedamp("run", scenario, "--out", folder, *(["--resume"] if begun else []))
    assert again.status == 0, again
    assert_whole(folder, whole)
    return file_of(answer)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["known", "secret"])
def test_a_disk_that_fills_up_anywhere_costs_nothing(fedamp, disk, tmp_path, whole, seed):
    """From no free page upwards, until the run finds room."""
    scenario, folder = write_small(tmp_path, f"known_seed={str(seed == 'known').lower()}"), disk / "run"
    reached = set()
    for free in range(0, 40, 3):
        fill(disk, free)
        answer = fedamp("run", scenario, "--out", folder)
        (disk / "ballast").unlink()
        if answer.status == 0:
            assert "epsilon" in answer.out
            break
        reached.add(assert_resumes(fedamp, answer, scenario, folder, whole if seed == "known" else None))
        shutil.rmtree(folder)
    assert_whole(folder, whole if seed == "known" else None)
    assert {"scenario.yaml", "ledger.json"} < reached  # and checkpoints


def test_files_that_may_not_grow_cost_nothing(fedamp, tmp_path, whole):
    """A limit for the size of a file, as a quota has it: each file of a run reaches it once."""
    scenario, folder, reached = write_small(tmp_path), tmp_path / "run", set()
    for limit in (300, 1500, 4000, 9000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            answer = fedamp("run", scenario, "--out", folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if answer.status:
            reached.add(assert_resumes(fedamp, answer, scenario, folder, whole))
        shutil.rmtree(folder)
    assert {"scenario.yaml", "ledger.json", "round-00000003.safetensors"} <= reached


class At(Silent):
    """Does something to the run folder after round 4."""

    def __init__(self, folder: Path, act) -> None:
        super().__init__()
        self.folder, self.act = folder, act

    def round_done(self, record) -> None:
        super().round_done(record)
        if record.round == 4:
            self.act(self.folder)


def read_only(folder: Path) -> None:
    """For this process: root may write into every folder, another user may not."""
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


@pytest.fixture
def place():
    """A folder that every user can get to, which tmp_path is not."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def link(name: str):
    def act(folder: Path) -> None:
        elsewhere = folder.parent / "elsewhere"
        (folder / name).rename(elsewhere)
        (folder / name).symlink_to(elsewhere)

    return act


@pytest.mark.parametrize(
    ("act", "said"),
    {
        "read-only": (read_only, "cannot be written (Permission denied)"),
        "rounds are a link": (link("rounds.jsonl"), "rounds.jsonl: a link"),
        "checkpoints are a link": (link("checkpoint"), "checkpoint: a link"),
    }.values(),
)
def test_a_folder_that_changes_while_a_run_is_played_costs_nothing(place, whole, act, said):
    folder, user, observer = place / "run", os.geteuid(), At(place / "run", act)
    try:
        with pytest.raises(UnwritableError) as error:
            launch(small(), observer, folder)
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
    assert said in str(error.value)
    assert "resume with: fedamp run" in str(error.value)
    elsewhere = place / "elsewhere"
    if elsewhere.exists():
        lines = elsewhere.read_bytes() if elsewhere.is_file() else sorted(elsewhere.iterdir())
        assert len(lines.splitlines() if isinstance(lines, bytes) else lines) in (1, 4)  # nothing came after the link
        [found] = [path for path in folder.iterdir() if path.is_symlink()]
        found.unlink()
        elsewhere.rename(found)
    launch(small(), Silent(), folder, resume=True)
    assert_whole(folder, whole)


def test_a_full_disk_behind_standard_output_is_one_line(tmp_path):
    """The disk of a shell's redirection."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fedamp", "scenarios", "schema"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: standard output: No space left on device\n")
