"""A run is resumed with the owners that it began with."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import fedamp
from fedamp.errors import RunFolderError
from tests.federations import small


def test_a_run_is_not_resumed_with_records_of_other_owners(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(40, 3)).astype(np.float32), draw.integers(0, 2, 40)
    owners = np.repeat(np.arange(10), 4)

    def write(owners: np.ndarray) -> None:
        (tmp_path / "data").mkdir(exist_ok=True)
        np.savez(tmp_path / "data" / "train.npz", x=x, y=y, client=owners)

    write(owners)
    data = f"data={{name: npz, path: {tmp_path / 'data'}, classes: 2, partition: {{scheme: natural, column: client}}}}"
    asked = small(data, "known_seed=false", "rounds=4", "check_in.k=2", "federation.checkpoint_every=1")
    fedamp.run(asked, out=tmp_path / "run", callbacks=[lambda record: False])
    shutil.copytree(tmp_path / "run", tmp_path / "same")
    swapped = owners.copy()
    swapped[owners == 0], swapped[owners == 1] = 1, 0
    write(swapped)
    with pytest.raises(RunFolderError, match="other owners"):
        fedamp.run(asked, out=tmp_path / "run", resume=True)
    write(owners)
    assert len(fedamp.run(asked, out=tmp_path / "same", resume=True).rounds) == 4
