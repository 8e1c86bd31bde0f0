"""The test vectors that other accountants may use: the answers of fedamp, and of one that shares no code with it."""

import json

import pytest

from fedamp.accounting import from_json
from fedamp.accounting.verify import altered_ledger, ledger_checks, mechanism_check, rounds_check, worst_verdict
from tests.accounting import second_accountant
from tests.accounting.make_vectors import FOLDER, FORMAT

FILES = "closed_forms.json", "enumerated.json"


def read(name):
    content = json.loads((FOLDER / name).read_text())
    assert content["format"] == FORMAT
    return content


@pytest.mark.parametrize("name", FILES)
def test_every_answer_is_about_the_truth(name, subtests):
    for vector in read(name)["vectors"]:
        with subtests.test(vector=vector):
            event = from_json(vector["mechanism"])
            found = event.epsilon(vector["delta"]) if "delta" in vector else event.delta(vector["epsilon"])
            assert found.lower <= vector["upper"]
            assert found.upper >= vector["lower"]
            assert found.width <= 0.01 * found.upper


def test_there_are_two_hundred_of_them():
    assert sum(len(read(name)["vectors"]) for name in FILES) >= 200


@pytest.mark.slow
def test_a_verifier_of_numpy_alone_agrees(capsys):
    assert second_accountant.main([str(FOLDER / name) for name in FILES]) == 0, capsys.readouterr().out


def test_hostile_ledgers_are_found_by_both_verifiers(subtests, tmp_path):
    told = {"chain": "written down", "epsilon": "costs at least", "rounds": "missing, or was not planned"}
    for case in read("ledgers.json")["ledgers"]:
        ledger, finding = case["ledger"], case["finding"]
        with subtests.test(finding=finding):
            (tmp_path / "ledger.json").write_text(json.dumps(ledger))
            second = list(second_accountant.complaints(ledger))
            assert second_accountant.main([str(tmp_path / "ledger.json")]) == bool(finding)
            ours = {
                "chain": bool(list(altered_ledger(ledger))),
                "rounds": rounds_check(ledger).verdict == "fail",
                "epsilon": worst_verdict([mechanism_check(ledger), *ledger_checks(ledger)]) == "fail",
            }
            if finding is None:
                assert not second
                assert not any(ours.values())
            else:
                assert any(told[finding] in text for text in second)
                assert ours[finding]
