"""The planted faults fit the code of today; whether the suite finds them is a matter of half an hour."""

import ast
import shutil
from collections import Counter

import pytest

from tests.planted_faults import FAULTS, PROJECT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name[:60])
def test_a_fault_is_one_edit_that_python_still_reads(fault, tmp_path):
    target = tmp_path / "fedamp" / fault.file
    target.parent.mkdir(parents=True)
    shutil.copy(PROJECT / "fedamp" / fault.file, target)
    fault.apply(tmp_path)
    assert ast.dump(ast.parse(target.read_text())) != ast.dump(ast.parse((PROJECT / "fedamp" / fault.file).read_text()))


def test_faults_are_in_all_rooms_and_name_their_tests():
    assert len(FAULTS) >= 43
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    rooms = {"accounting", "client", "data", "extensions", "federation", "models", "runs"}
    assert {fault.file.split("/")[0] for fault in FAULTS} >= rooms | {"strategies", "noise.py"}
    for fault in FAULTS:
        assert fault.tests
        assert all((PROJECT / "tests" / name).exists() for name in fault.tests), fault.name


def test_a_fault_that_no_longer_fits_is_told(tmp_path):
    (tmp_path / "fedamp").mkdir()
    (tmp_path / "fedamp/x.py").write_text("a = 1\n")
    with pytest.raises(ValueError, match="has 0 places like 'b = 1'; expected: one"):
        Fault("sign: b", "x.py", "b = 1", "b = -1", ()).apply(tmp_path)
