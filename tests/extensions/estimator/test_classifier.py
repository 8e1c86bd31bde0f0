"""The classifier meets scikit-learn's contract, and protects owners."""

import math

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedamp
from fedamp.errors import InputError

QUICK = {"check_in": {"scheme": "all"}, "federation": {"evaluate_every": 0}, "privacy.precision": 0.1}


def people(count: int = 60, each: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(count * each, 3))
    return x, np.where(x[:, 0] + x[:, 1] > 0, "yes", "no"), np.arange(count * each) // each


def test_owners_are_protected_and_labels_come_back(few_tries, tmp_path):
    x, y, owners = people()
    fitted = fedamp.FedampClassifier(epsilon=20, rounds=4, out=tmp_path / "run", settings=QUICK).fit(x, y, owners)
    assert fitted.run_.plan.units == 60
    assert (fitted.run_.ledger.unit, round(fitted.epsilon_, 1)) == ("client", 20.0)
    assert set(fitted.predict(x)) <= {"no", "yes"}
    assert fitted.predict_proba(x).sum(1) == pytest.approx(np.ones(len(x)))
    assert (fitted.predict(x) == np.array(["no", "yes"])[fitted.predict_proba(x).argmax(1)]).all()
    assert fitted.run_.ledger.has_known_seed is False


def test_what_is_wrong_is_refused():
    x, y, owners = people(10)
    with pytest.raises(ValueError, match=r"owners of shape .*expected: one for each record"):
        fedamp.FedampClassifier().fit(x, y, owners=owners[1:])
    with pytest.raises(ValueError, match="label yes; expected: one of the classes"):
        fedamp.FedampClassifier(classes=["maybe", "no"]).fit(x, y)
    with pytest.raises(InputError, match="rounds"):
        fedamp.FedampClassifier(rounds=0).fit(x, y)


@pytest.mark.slow
@parametrize_with_checks([fedamp.FedampClassifier(epsilon=math.inf, rounds=20, settings=QUICK)])
def test_scikit_learn_finds_its_contract_kept(estimator, check, few_tries):
    check(estimator)
