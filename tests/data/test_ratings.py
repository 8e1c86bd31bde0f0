"""InstEval as R's package lme4 has it, from Debian; where it is not on this machine, only what is refused."""

from pathlib import Path

import numpy as np
import pytest

from fedamp.data.form import Form
from fedamp.data.ratings import InstEvalData
from fedamp.errors import DataError
from fedamp.federation.losses import form_of
from fedamp.federation.training import Client
from fedamp.models.section import Model


def ratings() -> Form:
    return form_of(Client(loss="mean-squared-error"), Model(name="a:b", vocabulary=1128))


def test_insteval_itself():
    """Figures of the manual of lme4: 73,421 ratings, 2,972 students, 1,128 lecturers; mean 3.2 and deviation 1.3."""
    try:
        dataset = InstEvalData(name="insteval").load(0, Path("/"), ratings())
    except DataError as error:
        pytest.skip(str(error))
    everybody = np.arange(dataset.num_clients)
    inputs, labels = dataset.test()
    training = dataset.gather(everybody)
    real = np.arange(training.inputs.shape[1]) < training.sizes[:, None]
    all_ratings = np.concatenate([training.labels[real].ravel(), labels.ravel()])
    lecturers = np.concatenate([training.inputs[real].ravel(), inputs.ravel()])
    assert (dataset.num_clients, len(all_ratings), len(np.unique(lecturers))) == (2972, 73_421, 1128)
    assert lecturers.max() == 1127
    assert all_ratings.mean() == pytest.approx(3.206, abs=1e-3)
    assert all_ratings.std() == pytest.approx(1.33, abs=0.01)
    held_out = np.bincount(dataset.test_clients, minlength=2972)
    assert (held_out == (training.sizes + held_out) // 5).all()


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("fedamp.data.ratings.PACKAGE", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no Rdata.rdx and Rdata.rdb; expected: make data, or data.path"):
        InstEvalData(name="insteval", path="there").load(0, tmp_path, ratings())
    for name in ("Rdata.rdx", "Rdata.rdb"):
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(DataError, match="not the data of lme4"):
        InstEvalData(name="insteval", path=str(tmp_path)).load(0, tmp_path, ratings())
