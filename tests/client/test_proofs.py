"""What a node's processes remember of the check that units keep apart, and what they check again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedamp.client import proofs, worker
from fedamp.engines import flower
from fedamp.federation.local_training import LocalTraining
from fedamp.models.model import Model
from fedamp.models.networks import initial_parameters
from tests.client.federation import order_of, records, task_of, trained

MODEL = Model(name="mlp", hidden=(8, 6))
ARRAYS = initial_parameters(MODEL, (5,), 3, seed=1)


@pytest.fixture
def checks(monkeypatch, tmp_path):
    """How often the check ran, in a node's process with a cache of its own."""
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path))
    monkeypatch.setattr(flower, "in_supernode", lambda: True)
    ran: list[object] = []
    real = worker._PieceTrainer.stacking_refusal
    monkeypatch.setattr(
        worker._PieceTrainer, "stacking_refusal", lambda self, *given: ran.append(given) or real(self, *given)
    )
    return ran


def play(**changes: object) -> dict:
    """A message, as a new process would handle it."""
    proofs.code.cache_clear()
    task = task_of(model=MODEL, **changes)
    return trained(worker.TrainingNode(task, records()), ARRAYS, order_of(list(range(9)), task))[0]


def test_a_second_process_does_not_check_again_and_trains_alike(checks):
    first = play()
    count = len(checks)
    assert count > 0
    second = play()
    assert len(checks) == count
    assert all((first[name] == second[name]).all() for name in first)


def change(file: Path) -> None:
    file.write_text(file.read_text()[:-1] + ("0" if file.read_text()[-1] != "0" else "1"))


def sealed(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if len(file.name) == 64)


def swap(folder: Path) -> None:
    """What was found for each stack, in place of what was found for the next one."""
    files = sealed(folder)
    texts = [file.read_text() for file in files]
    for file, text in zip(files, texts[1:] + texts[:1], strict=True):
        file.write_text(text)


FORGED = {
    "another seal": lambda folder: [change(file) for file in sealed(folder)],
    "what is no text": lambda folder: [file.write_bytes(bytes(range(128, 192))) for file in sealed(folder)],
    "an empty one": lambda folder: [file.write_text("") for file in sealed(folder)],
    "another key": lambda folder: change(folder / "key"),
    "no key": lambda folder: (folder / "key").unlink(),
    "a folder of others": lambda folder: folder.chmod(0o770),
    "a key of others": lambda folder: (folder / "key").chmod(0o640),
    "a link": lambda folder: folder.rename(folder.parent / "away") and folder.symlink_to(folder.parent / "away"),
}


@pytest.mark.parametrize("how", FORGED)
def test_what_was_changed_or_could_have_been_is_checked_again(checks, tmp_path, how):
    play()
    count = len(checks)
    FORGED[how](tmp_path / "apart")
    play()
    assert len(checks) == 2 * count


def test_what_was_found_for_one_stack_proves_nothing_for_another(checks, tmp_path):
    for rate in (0.1, 0.2):
        play(client=LocalTraining(steps=2, learning_rate=rate))
    count = len(checks)
    swap(tmp_path / "apart")
    for rate in (0.1, 0.2):
        play(client=LocalTraining(steps=2, learning_rate=rate))
    assert len(checks) == 2 * count


def test_another_task_library_processor_or_setting_is_checked_again(checks, monkeypatch):
    play()
    count = len(checks)
    for patch in (
        lambda: monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default"),
        lambda: monkeypatch.setattr(proofs.np, "__version__", "2.9.9"),
        lambda: monkeypatch.setattr(proofs.torch, "get_num_threads", lambda: 64),
        lambda: monkeypatch.setattr(proofs.torch.backends.cpu, "get_cpu_capability", lambda: "of another"),
    ):
        before = len(checks)
        patch()
        play()
        assert len(checks) - before == count
    before = len(checks)
    play(client=LocalTraining(steps=3, learning_rate=0.5))
    assert len(checks) > before


def test_another_line_of_fedamp_is_checked_again(checks, monkeypatch, tmp_path):
    play()
    count = len(checks)
    copy = tmp_path / "fedamp"
    subprocess.run(["cp", "-r", str(Path(proofs.__file__).parents[1]), str(copy)], check=True)
    monkeypatch.setattr(proofs, "__file__", str(copy / "client" / "proofs.py"))
    play()
    assert len(checks) == count  # the same bytes
    with (copy / "client" / "stacks.py").open("a") as file:
        file.write("\n")
    play()
    assert len(checks) == 2 * count


def test_a_stack_that_fails_is_never_remembered(checks, monkeypatch):
    monkeypatch.setattr(
        worker._PieceTrainer, "stacking_refusal", lambda self, *given: checks.append(given) or "it fails"
    )
    play()
    count = len(checks)
    play()
    assert len(checks) == 2 * count


def test_nothing_is_remembered_outside_a_supernode_or_for_somebodys_own_code(checks, monkeypatch, tmp_path):
    assert not proofs.StackProof.is_for(task_of(model=Model(name="transformers:BertModel")), "cpu")
    assert not proofs.StackProof.is_for(task_of(model=MODEL), "cuda")
    monkeypatch.setattr(flower, "in_supernode", lambda: False)
    play()
    assert not (tmp_path / "apart").exists()


@pytest.mark.slow
def test_a_message_needs_neither_the_accountant_nor_numba(tmp_path):
    program = """
import sys
import flwr.supernode.cli
from tests.client.test_proofs import MODEL, ARRAYS, task_of, order_of, records, trained, worker
assert worker.StackProof.is_for(task_of(model=MODEL), "cpu")
before = set(sys.modules)
assert not {"numba", "fedamp.accounting"} & before, "imports"
trained(worker.TrainingNode(task_of(model=MODEL), records()), ARRAYS, order_of(list(range(9)), task_of(model=MODEL)))
assert not {"numba", "fedamp.accounting"} & set(sys.modules), "training"
"""
    environment = os.environ | {"FEDAMP_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
