"""Public transforms of inputs: scattering against a slow one in pixels, norms against torch's, and the cache."""

import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage, signal

from fedamp.data import transforms
from fedamp.data.sections import NpzData
from fedamp.data.transforms import Scattering, Whiten
from fedamp.errors import DataError

HERE = Path("/")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAMP_CACHE", str(tmp_path / "cache"))
    images = np.random.default_rng(1).random((20, 2, 9, 12)).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=images, y=np.arange(20) % 2)
    return tmp_path


def transformed(folder, *steps):
    config = NpzData(name="npz", path=str(folder), transform=steps, test_fraction=0.5, classes=2)
    return config.load(0, HERE).by_record().gather(np.arange(10)).inputs[:, 0]


def morlet(scale, theta, slant):
    """The wavelet of kymatio's manual, on a grid so large that it vanishes at the edges."""
    y, x = np.mgrid[-40:41, -40:41]
    along, across = y * np.cos(theta) + x * np.sin(theta), -y * np.sin(theta) + x * np.cos(theta)
    width = 0.8 * 2**scale
    envelope = np.exp(-(along**2 + slant**2 * across**2) / (2 * width**2))
    wave = envelope * np.exp(1j * 0.75 * np.pi / 2**scale * along)
    return (wave - envelope * wave.sum() / envelope.sum()) * slant / (2 * np.pi * width**2)


THREADS = """
import os, time
import numpy as np
import scipy.fft
from fedamp.data.transforms import Scattering

scipy.fft.fft2(np.ones((4, 4)))  # linear algebra, which SciPy loads with it, has threads of its own
step, images = Scattering(name="scattering", scales=1, angles=1), np.random.default_rng(1).random((200, 1, 16, 16))
before = os.listdir("/proc/self/task")
together = step.apply(images.astype(np.float32))
until = time.monotonic() + 30
while len(os.listdir("/proc/self/task")) > len(before) and time.monotonic() < until:
    time.sleep(0.01)  # a thread of Python has been waited for a moment before it ends
print(len(os.listdir("/proc/self/task")) - len(before))
alone = np.concatenate([step.apply(image[None]) for image in images.astype(np.float32)])
print(np.allclose(together, alone, rtol=1e-4, atol=1e-6))  # float32 sums of some hundred terms
"""


def test_scattering_leaves_no_thread_behind_that_hangs_a_fork():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


def test_scattering_is_what_its_definition_says_in_pixels():
    """Convolutions in pixels, without Fourier transforms; smooth images, as sampling a modulus aliases a little."""
    image = ndimage.gaussian_filter(np.random.default_rng(2).random((16, 16)), 1.5).astype(np.float32)
    scales, angles = 2, 4
    padded = np.pad(image, 4, mode="reflect")
    tiled = np.pad(padded, 56, mode="wrap")  # filters wrap around the padded image

    def convolved(values, kernel):
        return signal.convolve(np.pad(values[56:-56, 56:-56], 56, mode="wrap"), kernel, mode="same")

    def averaged(values):
        y, x = np.mgrid[-40:41, -40:41]
        low = np.exp(-(x**2 + y**2) / (2 * 1.6**2)) / (2 * np.pi * 1.6**2)
        return convolved(values, low).real[60:-60:4, 60:-60:4][:4, :4]

    thetas = [(angles - angles // 2 - 1 - each) * np.pi / angles for each in range(angles)]
    paths, second = [averaged(tiled)], []
    for scale in range(scales):
        for theta in thetas:
            modulus = np.abs(convolved(tiled, morlet(scale, theta, 4 / angles)))
            paths.append(averaged(modulus))
            if scale == 0:
                second += [averaged(np.abs(convolved(modulus, morlet(1, other, 4 / angles)))) for other in thetas]
    expected = np.stack(paths + second)
    step = Scattering(name="scattering", scales=scales, angles=angles)
    found = step.apply(image[None, None])[0]
    assert found.shape == expected.shape == step.output_shape((1, 16, 16))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    assert np.corrcoef(found[-16:].ravel(), expected[-16:].ravel())[0, 1] > 0.99


def test_a_constant_image_has_an_average_and_nothing_else():
    features = Scattering(name="scattering").apply(np.full((1, 1, 28, 28), 0.7, dtype=np.float32))[0]
    assert features.shape == (81, 7, 7)
    assert np.allclose(features[0], 0.7, atol=1e-3)
    assert np.abs(features[1:]).max() < 1e-3


def test_group_norm_is_torchs_and_standardise_divides(folder):
    images = transformed(folder)
    expected = torch.nn.functional.group_norm(torch.from_numpy(images), 2).numpy()
    assert np.allclose(transformed(folder, {"name": "group_norm", "groups": 2}), expected, atol=1e-5)
    standard = {"name": "standardise", "mean": 0.5, "deviation": 0.1}
    assert np.allclose(transformed(folder, standard), (images - 0.5) / 0.1, atol=1e-5)
    each = transformed(folder, standard | {"mean": [0.5, 2], "deviation": [0.1, 4.0]})
    assert np.allclose(each[:, 0], (images[:, 0] - 0.5) / 0.1, atol=1e-5)
    assert np.allclose(each[:, 1], (images[:, 1] - 2) / 4, atol=1e-5)


def test_standardise_takes_a_number_for_each_column(tmp_path):
    columns = np.random.default_rng(2).normal([40, 1000], [10, 300], (50, 2)).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=columns, y=np.arange(50) % 2)
    steps = [{"name": "standardise", "mean": [40.0, 1000.0], "deviation": [10.0, 300.0]}]
    config = NpzData(name="npz", path=str(tmp_path), transform=steps, classes=2)
    found = config.load(0, HERE).by_record().gather(np.arange(50)).inputs[:, 0]
    assert np.allclose(found, (columns - [40, 1000]) / [10, 300], atol=1e-5)
    for key in ("mean", "deviation"):
        wrong = [steps[0] | {key: [1.0, 2.0, 3.0]}]
        with pytest.raises(DataError, match=rf"data\.transform\.0: 3 numbers in {key}, for 2 columns"):
            NpzData(name="npz", path=str(tmp_path), transform=wrong, classes=2).load(0, HERE)


def test_features_are_kept_for_their_owner_alone_and_belong_to_these_records(folder):
    steps = {"name": "scattering", "scales": 1, "angles": 2}, {"name": "group_norm", "groups": 6}
    first = transformed(folder, *steps)
    assert first.shape == (10, 6, 4, 6)
    kept = sorted((folder / "cache" / "features").glob("*.npy"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in [kept[0].parent, *kept]] == [0o700] + [0o600] * len(kept)
    times = [path.stat().st_mtime_ns for path in kept]
    assert np.array_equal(transformed(folder, *steps), first)
    assert [path.stat().st_mtime_ns for path in kept] == times
    arrays = dict(np.load(folder / "train.npz"))
    np.savez(folder / "train.npz", x=1 - arrays["x"], y=arrays["y"])
    assert not np.allclose(transformed(folder, *steps), first)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"name": "group_norm", "groups": 5}], r"transform\.0: 5 groups do not divide 2 channels.*\[2, 9, 12\]"),
        ([{"name": "scattering", "scales": 4}], "images of at least 16 x 16"),
        ([{"name": "whiten"}], r"transform\.0: 1000 components of 216 features; expected: at most 216"),
        ([{"name": "scattering"}, {"name": "scattering", "scales": 3}], r"transform\.1: .*\[162, 2, 3\]"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_computed(folder, steps, message):
    with pytest.raises(DataError, match=message):
        transformed(folder, *steps)


@pytest.mark.parametrize("images", [500, 100])  # more of them than the 216 features, and fewer
def test_whitened_shapes_have_uncorrelated_components(monkeypatch, images):
    """Damping far below the smallest variance: the shapes themselves come out with the identity as covariance."""
    monkeypatch.setattr(transforms, "IMAGES", images)
    step = {"name": "whiten", "components": 6, "damping": 1e-9}
    learned = Whiten(**step).prepared(lambda images: images, (2, 9, 12))
    components = learned(transforms.shapes(images, (2, 9, 12)))
    assert np.allclose(np.cov(components.T, bias=True), np.eye(6), atol=1e-3)
    assert np.abs(components.mean(0)).max() < 1e-3


STEPS = {
    "standardise": {"mean": 0.5, "deviation": 0.1},
    "scattering": {},
    "group_norm": {"groups": 2},
    "whiten": {"components": 6},
}


def test_every_transform_has_an_example():
    assert set(STEPS) == {step.model_fields["name"].annotation.__args__[0] for step in transforms.TRANSFORMS}


@pytest.mark.parametrize("name", STEPS)
def test_a_result_depends_on_its_record_alone(folder, name):
    arrays = dict(np.load(folder / "train.npz"))
    before = transformed(folder, {"name": name, **STEPS[name]})
    changed = arrays["x"].copy()
    changed[1::2] = 0
    np.savez(folder / "train.npz", x=changed, y=arrays["y"])
    after = transformed(folder, {"name": name, **STEPS[name]})
    assert before.shape == after.shape
    kept = [np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    assert 0 < sum(kept) < 10


def test_shapes_are_always_the_same_and_fill_some_of_the_image():
    images = transforms.shapes(50, (1, 28, 28))
    assert np.array_equal(images, transforms.shapes(50, (1, 28, 28)))
    assert images.min() == 0
    assert images.max() <= 1
    assert 0.05 < (images > 0).mean() < 0.5
    assert len(np.unique(images.reshape(50, -1), axis=0)) == 50


def test_a_machine_with_a_part_of_the_federation_whitens_nothing(folder):
    (folder / "federation.json").write_text('{"clients": 20, "hosted": [0, 1], "classes": 2}')
    whiten = [{"name": "whiten", "components": 3}]
    config = NpzData(name="npz", path=str(folder), partition={"scheme": "natural"}, transform=whiten)
    with pytest.raises(DataError, match="another machine may find other components"):
        config.load(0, HERE)


@pytest.mark.parametrize("steps", [[{"name": "whiten", "components": 6}], [{"name": "scattering", "scales": 1}]])
def test_a_records_features_do_not_depend_on_how_many_others_there_are(folder, monkeypatch, steps):
    """Features are computed in blocks. A matrix product of one row is rounded in another way than that of three."""
    monkeypatch.setattr(transforms, "IMAGES", 300)
    images, found = np.random.default_rng(3).random((transforms.BLOCK + 3, 2, 9, 12)).astype(np.float32), []
    for records in (transforms.BLOCK + 1, transforms.BLOCK + 2, len(images)):
        np.savez(folder / "train.npz", x=images[:records], y=np.arange(records) % 2)
        config = NpzData(name="npz", path=str(folder), transform=steps, classes=2)
        found.append(config.load(0, HERE).by_record().gather(np.array([transforms.BLOCK])).inputs)
    for each in found[1:]:
        np.testing.assert_array_equal(found[0], each)
