"""Small tensors on a busy machine: threads would only wait for one another."""

import sys

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Writes modules where a scenario's own folder would be."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)
