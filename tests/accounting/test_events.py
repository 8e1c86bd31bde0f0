"""Mechanisms through their public interface: brackets, nesting, order, text, refusals, and independence of the rest."""

import math
import re
from graphlib import TopologicalSorter
from pathlib import Path

import dp_accounting as dp
import pytest
from numpy.testing import assert_allclose

from fedamp import accounting
from fedamp.accounting import (
    Allocation,
    Compose,
    Dropout,
    Gaussian,
    GaussianMixture,
    GroupPoissonGaussian,
    Laplace,
    LinearCombination,
    ModelMix,
    NotPrivate,
    Poisson,
    RandomisedResponse,
    RandomSelection,
    Release,
    Repeat,
    Submodels,
    WithoutReplacement,
    from_json,
)
from fedamp.accounting.mechanism import upper_epsilon

DELTA = 1e-5
ORDERS = [1.5, 2, 3, 8, 31.5, 100]


@pytest.mark.parametrize(("noise", "rate", "times"), [(1.0, 0.01, 1000), (2.0, 0.2, 50)])
def test_composed_poisson_gaussian_contains_the_reference(noise, rate, times):
    peer = dp.pld.PLDAccountant(value_discretization_interval=5e-4)
    peer.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), times)
    bounds = Repeat(Poisson(Gaussian(noise), rate), times).epsilon(DELTA)
    # The reference is pessimistic, and with losses 5e-4 apart within 2e-4 of the truth.
    assert bounds.lower <= peer.get_epsilon(DELTA) <= bounds.upper * 1.001
    assert bounds.width <= 1e-3 * bounds.upper
    assert "numerical law" in bounds.method


TRIVIAL = [
    (Poisson(Gaussian(1.0), 1.0), Gaussian(1.0)),
    (Submodels(Gaussian(1.0), 1), Gaussian(1.0)),
    (Dropout(Laplace(1.0), 0.6), Laplace(1.0)),
    (Dropout(Laplace(1.0), 0.5), Submodels(Laplace(1.0), 2)),
    (Allocation(Gaussian(1.0), 5, 5), Repeat(Gaussian(1.0), 5)),
    (Allocation(Gaussian(1.0), 1, 4), Submodels(Gaussian(1.0), 4)),
    (Allocation(Submodels(Gaussian(1.0), 3), 1, 4), Submodels(Gaussian(1.0), 12)),
    (Allocation(Gaussian(1.0), 3, 12).after(1), Poisson(Gaussian(1.0), 0.25)),
    (Submodels(Submodels(Gaussian(1.0), 3), 4), Submodels(Gaussian(1.0), 12)),
    (Poisson(Poisson(Gaussian(1.0), 0.5), 0.2), Poisson(Gaussian(1.0), 0.1)),
    (RandomSelection([Gaussian(1.0), Gaussian(1.0)], [0.5, 0.5]), Gaussian(1.0)),
    (RandomSelection([Gaussian(1.0), NotPrivate()], [1.0, 0.0]), Gaussian(1.0)),
    (Compose([Gaussian(1.0), Gaussian(1.0)]), Gaussian(math.sqrt(0.5))),
    (Repeat(Repeat(Gaussian(3.0), 3), 3), Gaussian(1.0)),
    (ModelMix(1.0, 0.0), Gaussian(1.0)),
    (GroupPoissonGaussian(1.0, 0.1, 1), Poisson(Gaussian(1.0), 0.1)),
    (LinearCombination([Gaussian(1.0), Gaussian(2.0)], [1.0, 0.0]), Gaussian(1.0)),
    (GaussianMixture([1.0, 0.0, 1.0], [0.25, 0.5, 0.25]), Poisson(Gaussian(1.0), 0.5)),
]


@pytest.mark.parametrize(("nested", "plain"), TRIVIAL, ids=[str(nested) for nested, _ in TRIVIAL])
def test_trivial_nesting_changes_nothing(nested, plain):
    # Symmetric mechanisms skip the add direction's table, which is interpolated upwards by up to 1e-4.
    assert_allclose(nested.rdp(ORDERS), plain.rdp(ORDERS), rtol=2e-4)
    one, other = nested.epsilon(DELTA), plain.epsilon(DELTA)
    assert_allclose(one.upper, other.upper, rtol=2e-3)
    assert one.lower <= other.upper


def test_the_order_of_composition_does_not_matter():
    parts = [Gaussian(2.0), Poisson(Gaussian(1.0), 0.1), Submodels(Laplace(1.0), 3)]
    one, other = Compose(parts), Compose(parts[::-1])
    assert_allclose(one.rdp(ORDERS), other.rdp(ORDERS), rtol=1e-12)
    assert_allclose(one.epsilon(DELTA).upper, other.epsilon(DELTA).upper, rtol=1e-3)


@pytest.mark.slow
def test_a_finer_answer_is_asked_for_by_its_precision():
    run = Allocation(Gaussian(1.0), 10, 100)
    bounds, finer = run.epsilon(DELTA), run.epsilon(DELTA, precision=2e-3)
    assert finer.width <= 2e-3 * finer.upper
    assert bounds.lower <= finer.upper
    assert finer.lower <= bounds.upper


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "Magic"}, "kind must be one of .*Allocation.*, got 'Magic'"),
        ({"noise_multiplier": 1.0}, 'must be an object with a "kind"'),
        ({"kind": ["Gaussian"]}, "kind must be one of"),
        (
            {"kind": "Gaussian", "noise": 1.0},
            r"Gaussian must have exactly the keys \['noise_multiplier', 'relation'\], got \['noise'\]",
        ),
        ({"kind": "Gaussian", "noise_multiplier": -1.0}, "noise_multiplier must be between"),
        ({"kind": "Claims"}, "kind must be one of"),  # a name of the accountant that is no mechanism
        ({"kind": "JOINT_RELEASE"}, "kind must be one of"),
        ({"kind": "Poisson", "mechanism": {"kind": "_Derived"}, "rate": 0.1}, "kind must be one of"),
        ({"kind": "Poisson", "mechanism": 3, "rate": 0.1}, "mechanism must be a mechanism"),
    ],
)
def test_malformed_json_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        from_json(value)


def test_a_kind_of_another_module_takes_no_name_that_ledgers_hold():
    """Else a package with a class Gaussian would decide what all ledgers with Gaussian noise cost."""
    with pytest.raises(
        ValueError, match=r"kind Gaussian is that of fedamp.accounting.releases; expected: another name"
    ):
        type("Gaussian", (Release,), {"__module__": "mylab.noise"})
    assert from_json({"kind": "Gaussian", "noise_multiplier": 1.0}) == Gaussian(1.0)


BAD_ARGUMENTS = [
    (lambda: Gaussian(0), "noise_multiplier must be between 1e-50 and 1e50, got 0"),
    (lambda: Gaussian(-1.0), "noise_multiplier must be between 1e-50 and 1e50, got -1.0"),
    (lambda: Gaussian(math.nan), "noise_multiplier must be a number, got nan"),
    (lambda: Gaussian(math.inf), "noise_multiplier must be between 1e-50 and 1e50, got inf"),
    (lambda: Gaussian(True), "noise_multiplier must be a number, got True"),
    (lambda: Gaussian("1"), "noise_multiplier must be a number, got '1'"),
    (lambda: Laplace(0.0), "scale must be between 1e-50 and 1e50"),
    (lambda: RandomisedResponse(0.3), r"probability must be in \[0.5, 1\), got 0.3"),
    (lambda: Poisson(Gaussian(1.0), 1.5), r"rate must be in \[0, 1\], got 1.5"),
    (lambda: Poisson(1.0, 0.5), "mechanism must be a mechanism"),
    (lambda: Submodels(Gaussian(1.0), 0), "count must be >= 1, got 0"),
    (lambda: Submodels(Gaussian(1.0), 2.0), "count must be a whole number, got 2.0"),
    (lambda: Submodels(Gaussian(1.0), True), "count must be a whole number, got True"),
    (lambda: Dropout(Gaussian(1.0), 0.0), r"keep must be in \(0, 1\]"),
    (lambda: Allocation(Gaussian(1.0), 11, 10), "k must be >= 0 and <= rounds, got 11"),
    (lambda: Allocation(Gaussian(1.0), 1, 0), "rounds must be >= 1, got 0"),
    (lambda: Compose([]), "mechanisms must be one or more mechanisms"),
    (lambda: Repeat(Gaussian(1.0), -1), "times must be >= 0, got -1"),
    (lambda: RandomSelection([Gaussian(1.0)] * 2, [0.5, 0.4]), "weights must sum to 1, got 0.9"),
    (lambda: RandomSelection([Gaussian(1.0)] * 2, [1.0]), "weights must have 2 entries"),
    (lambda: ModelMix(1.0, -1.0), "width must be >= 0"),
    (lambda: ModelMix(1.0, 1.0, 0), "linf_coordinates must be >= 1"),
    (lambda: GroupPoissonGaussian(1.0, 0.1, 0), "size must be >= 1"),
    (lambda: WithoutReplacement(Gaussian(1.0), 5, 4), "batch must be >= 1 and <= population, got 5"),
    (lambda: LinearCombination([Gaussian(1.0)], [1.0], "hope"), "assumption must be"),
    (lambda: Gaussian(1.0).epsilon(0.0), r"delta must be in \(0, 1\), got 0.0"),
    (lambda: Gaussian(1.0).epsilon(math.nan), "delta must be a number, got nan"),
    (lambda: Gaussian(1.0).delta(-0.1), "epsilon must be >= 0, got -0.1"),
    (lambda: Gaussian(1.0).rdp([0.5]), r"orders must be > 1 and finite, got \[0.5\]"),
    (lambda: Gaussian(1.0).rdp([math.nan]), "orders must be > 1"),
    (lambda: Gaussian(1.0).rdp([5000.0]), "orders must be <= 4096"),
    (lambda: Gaussian(1.0).epsilon(1e-5, points=3), "points must be >= 50"),
]


def test_a_mechanism_of_an_extension_is_imported_when_json_names_it(monkeypatch):
    written = ModelMix(2.0, 1.0).to_json()
    monkeypatch.delitem(ModelMix.kinds, "ModelMix")  # as in a process that has not asked for it
    assert from_json(written) == ModelMix(2.0, 1.0)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"kind must be one of Allocation, .*, ModelMix, .*, got 'Modelmix'"):
        from_json(written | {"kind": "Modelmix"})


def test_bad_arguments_are_named_in_one_line(subtests):
    for build, message in BAD_ARGUMENTS:
        with subtests.test(message):
            with pytest.raises(ValueError, match=message) as caught:
                build()
            assert "\n" not in str(caught.value)


def test_modules_import_one_another_in_one_direction():
    """Imports inside functions count, too."""
    folder, imports = Path(accounting.__file__).parent, {}
    pattern = re.compile(r"^ *from fedamp\.accounting(?:\.(\w+))? import (.+)$", re.MULTILINE)
    for file in folder.glob("*.py"):
        found = pattern.findall(file.read_text("utf-8"))
        imports[file.stem] = {name for module, names in found for name in ([module] if module else names.split(", "))}
    order = TopologicalSorter({name: found & imports.keys() for name, found in imports.items()}).static_order()
    known = list(order)  # raises CycleError where there is a circle
    assert known.index("law") < known.index("mechanism") < known.index("releases") < known.index("hidden")


@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [
        (Submodels(Gaussian(0.5), 10**6), 1e-5),
        pytest.param(Repeat(Poisson(Gaussian(0.5), 1e-4), 10**5), 1e-10, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_default_accuracy_where_the_default_grid_is_too_coarse(mechanism, delta):
    coarse, fine = mechanism.epsilon(delta, points=1200), mechanism.epsilon(delta)
    assert fine.width <= 1e-3 * fine.upper < coarse.width * fine.upper / coarse.upper
    assert coarse.lower <= fine.lower
    assert fine.upper <= coarse.upper


@pytest.mark.parametrize(
    "mechanism",
    [
        Allocation(Compose([Gaussian(2.0), Submodels(Gaussian(1.0), 3)]), 2, 11),
        Repeat(Poisson(Gaussian(1.0), 0.1), 100),
        RandomSelection([Gaussian(1.0), Laplace(0.5)], [0.3, 0.7]),
        Repeat(ModelMix(1.0, 2.0), 4),
        RandomSelection([Gaussian(1.0), NotPrivate()], [1 - 1e-6, 1e-6]),
    ],
    ids=str,
)
def test_upper_ends_alone_are_those_of_both(mechanism):
    assert upper_epsilon(mechanism, DELTA) == pytest.approx(mechanism.epsilon(DELTA, points=1200).upper, rel=1e-12)
