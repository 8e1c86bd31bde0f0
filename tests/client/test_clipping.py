"""The clip bound on adversarial updates, and sums that come out the same in any order."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedamp.client import clipping
from fedamp.client.clipping import clip_and_sum, quantum

SHAPES = {"hidden.weight": (2, 3), "hidden.bias": (2,), "output.weight": (3,), "gate": ()}
PARTS = {"whole": [tuple(SHAPES)], "split": [("output.weight",), ("hidden.weight", "hidden.bias", "gate")]}
NUMBERS = sum(math.prod(shape) for shape in SHAPES.values())
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the array operations of GPUs are tried on a CPU, too

any_float = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
tame_float = st.floats(-1e3, 1e3, width=32)
any_clip = st.floats(1e-6, 1e6, allow_nan=False)
one_update = arrays(np.float32, NUMBERS, elements=any_float)
cohorts = arrays(np.float32, st.tuples(st.integers(1, 6), st.just(NUMBERS)), elements=any_float | tame_float)


def unpack(flat: np.ndarray) -> dict[str, torch.Tensor]:
    updates, first = {}, 0
    for name, shape in SHAPES.items():
        last = first + math.prod(shape)
        updates[name] = torch.from_numpy(flat[:, first:last].reshape(len(flat), *shape).copy()).to(DEVICE)
        first = last
    return updates


def clip(
    flat: np.ndarray,
    parts: str = "whole",
    clips: list[float] | None = None,
    linf: int = 0,
    normalised: bool = False,
    **options: bool,
):
    result = clip_and_sum(unpack(flat), PARTS[parts], clips or [0.5] * len(PARTS[parts]), linf, normalised, **options)
    return replace(result, sums={name: total.cpu() for name, total in result.sums.items()})


def exact_norm(tensors: list[np.ndarray]) -> mpmath.mpf:
    with mpmath.workdps(60):
        return mpmath.sqrt(mpmath.fsum(mpmath.mpf(float(x)) ** 2 for tensor in tensors for x in tensor.ravel()))


@pytest.mark.parametrize("options", [{}, {"normalised": True}, {"by_layer": True}], ids=str)
@pytest.mark.parametrize("parts", PARTS)
@settings(deadline=None, max_examples=50)
@given(update=one_update, clips=st.tuples(any_clip, any_clip))
def test_no_unit_adds_more_than_the_clip(
    parts: str, options: dict[str, bool], update: np.ndarray, clips: tuple[float, float]
) -> None:
    chosen = list(clips[: len(PARTS[parts])])
    result = clip(update[None], parts, chosen, **options)
    for names, bound in zip(PARTS[parts], chosen, strict=True):
        added = [result.sums[name].numpy() for name in names]
        assert all(np.isfinite(each).all() for each in added)
        assert exact_norm(added) <= mpmath.mpf(bound)
        assert np.linalg.norm(np.concatenate([each.ravel() for each in added])) <= bound


@pytest.mark.parametrize("parts", PARTS)
@settings(deadline=None, max_examples=60)
@given(cohort=cohorts, clips=st.tuples(any_clip, any_clip), data=st.data())
def test_leaving_a_unit_out_changes_the_sum_by_at_most_the_clip(
    parts: str, cohort: np.ndarray, clips: tuple[float, float], data: st.DataObject
) -> None:
    chosen = list(clips[: len(PARTS[parts])])
    left_out = data.draw(st.integers(0, len(cohort) - 1))
    with_all = clip(cohort, parts, chosen).sums
    without = clip(np.delete(cohort, left_out, axis=0), parts, chosen).sums
    for names, bound in zip(PARTS[parts], chosen, strict=True):
        # Exact: all sums are whole multiples of the quantum, far below 2**53 of them.
        assert exact_norm([(with_all[name] - without[name]).numpy() for name in names]) <= mpmath.mpf(bound)


@settings(deadline=None, max_examples=60)
@given(cohort=cohorts, clip_norm=any_clip, data=st.data())
def test_sums_are_the_same_bits_in_any_order_and_any_batches(
    cohort: np.ndarray, clip_norm: float, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(cohort)))))
    cut = data.draw(st.integers(0, len(cohort)))
    together = clip(cohort, "whole", [clip_norm]).sums
    pieces = [clip(cohort[piece], "whole", [clip_norm]).sums for piece in (order[:cut], order[cut:])]
    for name, total in together.items():
        assert torch.equal(total, pieces[0][name] + pieces[1][name])


@settings(deadline=None, max_examples=60)
@given(update=arrays(np.float32, NUMBERS, elements=tame_float), clip_norm=any_clip)
def test_a_clipped_update_points_where_it_did(update: np.ndarray, clip_norm: float) -> None:
    sums = clip(update[None], "whole", [clip_norm]).sums
    clipped = np.concatenate([sums[name].numpy().ravel() for name in SHAPES])
    norm = np.linalg.norm(update.astype(np.float64))
    expected = update * min(1.0, clip_norm / norm if norm else 1.0)
    # The margin takes 1e-6 of it, float32 products 2e-7, truncation one quantum a coordinate.
    assert np.abs(clipped - expected).max() <= 1.3e-6 * np.abs(expected).max() + quantum(clip_norm)
    assert (np.abs(clipped) <= np.abs(update) * (1 + 1e-9)).all(), "truncation is towards zero"
    assert ((clipped / quantum(clip_norm)) % 1 == 0).all()


@settings(deadline=None, max_examples=30)
@given(cohort=cohorts, clip_norm=any_clip, linf=st.sampled_from([0, 1, 5]))
def test_what_is_not_compiled_clips_alike(cohort: np.ndarray, clip_norm: float, linf: int) -> None:
    """As a GPU does it."""
    clips = [clip_norm, 2 * clip_norm]
    compiled = clip(cohort, "split", clips, linf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipping, "_COMPILED", ())
        plain, first = clip(cohort, "split", clips, linf), clip(cohort[:1], "split", clips, linf)
    assert torch.equal(plain.failed, compiled.failed)
    assert torch.equal(plain.clipped, compiled.clipped)
    for names, bound in zip(PARTS["split"], clips, strict=True):
        assert exact_norm([first.sums[name].numpy() for name in names]) <= mpmath.mpf(bound)
        for name in names:
            # Norms add up in another order: scales and products may differ by 2e-7, and what is truncated by one.
            room = len(cohort) * (2e-7 * bound + quantum(bound))
            torch.testing.assert_close(plain.sums[name], compiled.sums[name], rtol=0, atol=room)


def test_normalised_updates_are_as_long_as_the_clip_but_for_a_constant() -> None:
    """u c / (||u|| + 0.01), whatever the length of u (Bu et al. 2023, AUTO-S)."""
    direction = np.random.default_rng(0).normal(size=NUMBERS)
    direction /= np.linalg.norm(direction)
    for length, expected in ((100.0, 0.5), (0.99, 0.495), (0.01, 0.25), (1e-6, 0.5e-4), (0.0, 0.0)):
        result = clip((length * direction)[None].astype(np.float32), normalised=True)
        added = np.concatenate([each.numpy().ravel() for each in result.sums.values()])
        # The margin of 1e-6, float32 lengths, and quanta of half the clip over 2**30 at 11 coordinates.
        np.testing.assert_allclose(added, expected * direction, rtol=2e-4, atol=2e-9)
        assert not result.failed.any()


@pytest.mark.parametrize("parts", PARTS)
def test_each_layer_is_clipped_to_its_share_of_the_norm(parts: str) -> None:
    """clip / sqrt(m) for m layers of a part (McMahan et al. 2018); a layer within its share stays as it is."""
    update = unpack(np.random.default_rng(0).normal(size=(1, NUMBERS)).astype(np.float32))
    update["output.weight"] *= 1e-3
    added = clip_and_sum(update, PARTS[parts], [0.5] * len(PARTS[parts]), by_layer=True)
    for part in PARTS[parts]:
        layers = {name.rpartition(".")[0] for name in part}
        for layer in layers:
            names = [name for name in part if name.rpartition(".")[0] == layer]
            length = math.sqrt(sum(float(update[name].double().square().sum()) for name in names))
            factor = min(1.0, 0.5 / math.sqrt(len(layers)) / length)
            for name in names:  # the margin of 1e-6, float32 products, and quanta
                expected = (factor * update[name][0].double()).cpu()
                torch.testing.assert_close(added.sums[name].cpu(), expected, rtol=2e-6, atol=2e-9)
    assert added.clipped.any()


def test_a_unit_that_is_not_finite_adds_nothing_anywhere() -> None:
    flat = np.full((4, NUMBERS), 0.01, dtype=np.float32)
    flat[1, 0], flat[2, -1] = np.nan, -np.inf
    result = clip(flat, "split")
    assert result.failed.tolist() == [False, True, True, False]
    assert not result.clipped.any()
    for name, total in clip(flat[[0, 3]], "split").sums.items():
        assert torch.equal(result.sums[name], total)


@pytest.mark.parametrize("device", ["compiled", "others"])
@settings(deadline=None, max_examples=50)
@given(cohort=cohorts, clip_norm=any_clip, normalised=st.booleans(), data=st.data())
def test_units_that_do_not_count_add_nothing(
    device: str, cohort: np.ndarray, clip_norm: float, normalised: bool, data: st.DataObject
) -> None:
    counted = np.array(data.draw(st.lists(st.booleans(), min_size=len(cohort), max_size=len(cohort))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clipping, "_COMPILED", clipping._COMPILED if device == "compiled" else ())
        result = clip_and_sum(unpack(cohort), PARTS["whole"], [clip_norm], 0, normalised, counted)
        expected = clip(cohort[counted], clips=[clip_norm], normalised=normalised)
    for name, total in expected.sums.items():
        torch.testing.assert_close(result.sums[name].cpu(), total, rtol=0, atol=0)


def test_counts_per_part() -> None:
    flat = np.zeros((3, NUMBERS), dtype=np.float32)
    flat[0, :8] = 5.0  # hidden only
    flat[1, 8:11] = 5.0  # output only
    result = clip(flat, "split", [1.0, 2.0])
    assert result.clipped.tolist() == [[False, True, False], [True, False, False]]


@settings(deadline=None, max_examples=60)
@given(update=one_update, clip_norm=any_clip, coordinates=st.integers(1, 100))
def test_linf_truncation_bounds_every_coordinate(update: np.ndarray, clip_norm: float, coordinates: int) -> None:
    plain = clip(update[None], "whole", [clip_norm]).sums
    truncated = clip(update[None], "whole", [clip_norm], coordinates).sums
    bound = clip_norm / math.sqrt(coordinates)
    for name in SHAPES:
        assert float(truncated[name].abs().max()) <= bound
        within = plain[name].abs() <= bound * (1 - 1e-6)
        assert torch.equal(truncated[name][within], plain[name][within])


def test_transposed_and_long_updates_add_up_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    stack = torch.randn(3, 300, 400, generator=generator)
    transposed = stack.mT.contiguous().mT
    plain = clip_and_sum({"w": stack.clone()}, [["w"]], [1.5])
    other = clip_and_sum({"w": transposed}, [["w"]], [1.5])
    assert torch.equal(plain.sums["w"], other.sums["w"])
    each = stack.double() * (1.5 / stack.double().flatten(1).norm(dim=1))[:, None, None]
    # The margin takes 1e-6 of each update; the rest is truncation to 2**-30.
    torch.testing.assert_close(plain.sums["w"], each.sum(0), rtol=2e-6, atol=1e-8)


def test_nobody_to_add_up() -> None:
    result = clip(np.zeros((0, NUMBERS), dtype=np.float32))
    assert all(not total.any() and total.shape == SHAPES[name] for name, total in result.sums.items())


NORMS = [1e-6, 0.3, 0.5, 1.0, 3.7, 2.0**20]


def test_the_quantum_is_a_power_of_two(subtests: pytest.Subtests) -> None:
    for norm in NORMS:
        with subtests.test(norm):
            assert quantum(norm) == 2.0 ** (math.floor(math.log2(norm)) - 30)


def test_refusals() -> None:
    updates = unpack(np.zeros((1, NUMBERS), dtype=np.float32))
    with pytest.raises(ValueError, match="parts must hold every parameter once"):
        clip_and_sum(updates, [("hidden.bias",)], [1.0])
    with pytest.raises(ValueError, match="have a clip each"):
        clip_and_sum(updates, PARTS["whole"], [1.0, 2.0])
    for bad in (0.0, -1.0, math.nan, math.inf, 1e-40):
        with pytest.raises(ValueError, match="clip must be in"):
            clip_and_sum(updates, PARTS["whole"], [bad])
