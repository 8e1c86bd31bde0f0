"""Every shipped scenario loads, and runs (shortened) where its data are at hand."""

import json

import numpy as np
import pytest

from fedamp.errors import DataError, ModelError
from fedamp.federation import reader
from fedamp.federation.check_in import PoissonCheckIn
from fedamp.federation.plan import make_plan
from fedamp.federation.submodels import DisjointSubmodels
from fedamp.models.networks import build
from fedamp.server import launch
from tests.data.test_published import write
from tests.federations import Silent
from tests.models.splitting import split

NAMES = [file.stem for file in reader.shipped_files()]
SOURCES = {name: reader.load(name).data.name for name in NAMES}
OFFLINE = [
    name
    for name in NAMES
    if SOURCES[name] not in ("huggingface", "mnist", "fashion-mnist", "insteval", "descriptions", "sections")
]
PICTURES = [name for name in NAMES if SOURCES[name] in ("mnist", "fashion-mnist")]
TWINS = [name for name in NAMES if SOURCES[name] == "huggingface"]
SHAPES = {"uoft-cs/cifar10": ((32, 32, 3), 10), "flwrlabs/femnist": ((28, 28), 62), "ylecun/mnist": ((28, 28), 10)}

STORIES = {
    *("baseline", "disjoint-3", "disjoint-8", "partial-split", "dropout"),
    *("balanced", "balanced-submodels", "modelmix"),
    *("regression", "multi-label", "characters"),
}


def test_every_story_is_told():
    assert set(OFFLINE) >= STORIES
    assert {name.split("-")[0] for name in TWINS} == {"cifar10", "femnist", "mnist"}
    assert {"fashion-mnist-disjoint-3", "fashion-mnist-dropout", "fashion-mnist-merging"} <= set(PICTURES)


LONG = ("correlated", "partial-split")
LESS = ("client.steps=1", "client.batch_size=1", "federation.evaluate_every=2")


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in LONG)) for each in OFFLINE])
def test_it_runs_shortened(name, tmp_path):
    run_shortened(name, tmp_path, (*LESS, "data.clients=100") if name == "characters" else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ratings", "descriptions", "adapters", "sections", "sections-lora"])
def test_people_s_records_run_where_they_are_at_hand(name, tmp_path):
    if name in ("adapters", "sections-lora"):
        pytest.importorskip("peft")
    try:
        run_shortened(name, tmp_path, () if name == "ratings" else LESS)
    except (DataError, ModelError) as error:
        if isinstance(error, ModelError) and "no such file" not in str(error):
            raise
        pytest.skip(str(error))


def run_shortened(name, tmp_path, changes):
    shorter = ["rounds=2", "privacy.noise_multiplier=1", "privacy.epsilon=null", "engine.kind=serial", *changes]
    if hasattr(reader.load(name).check_in, "k"):
        shorter.append("check_in.k=1")
    if hasattr(reader.load(name).check_in, "gap"):
        shorter += ["check_in.gap=2", "privacy.noise.bands=2"]
    folder = launch.launch(reader.load(name, shorter), Silent(), tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds_completed"] == 2
    assert summary["clients_trained"] > 0
    assert 0 < summary["epsilon"]["upper"] <= summary["unamplified_epsilon"]["upper"]
    if isinstance(reader.load(name).submodels, DisjointSubmodels):
        assert summary["cost"]["parameters_share"] < 0.8


def test_twins_on_pictures_run_on_a_few(subtests, tmp_path, monkeypatch):
    """Noise in the format of MNIST; without whitening, which takes half a minute."""
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    folder = write(tmp_path / "pictures", False, images, np.arange(60, dtype=np.uint8) % 10)
    for name in PICTURES:
        changes = [f"data.path={folder}"]
        data = reader.load(name).data
        if data.clients:
            changes.append("data.clients=40")
        kept = [step.model_dump() for step in data.transform if step.name != "whiten"]
        changes.append(f"data.transform={json.dumps(kept)}")
        if isinstance(reader.load(name).check_in, PoissonCheckIn):
            changes.append("check_in.rate=0.5")
        with subtests.test(name):
            run_shortened(name, tmp_path / name, changes)


def test_a_twin_is_ready_for_its_data(subtests):
    """The data are not here; the model is built and cut for their shape, and the cost has an expression."""
    for name in TWINS:
        with subtests.test(name):
            loaded = reader.load(name)
            shape, classes = SHAPES[loaded.data.dataset]
            plan = make_plan(loaded, units=3000)
            assert plan.charge.with_noise(1.0, 1).span == loaded.rounds
            if loaded.model.name == "resnet101":
                continue  # 44 million parameters; tests/models builds and cuts it
            build(loaded.model, shape, classes)
            if isinstance(loaded.submodels, DisjointSubmodels):
                cut = split(loaded.model, shape, classes, loaded.submodels.count, loaded.submodels.shared)
                assert cut.count == loaded.submodels.count
