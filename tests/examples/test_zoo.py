"""The zoo of baselines: each is a valid scenario at the work that the file says, and a run of it is charged."""

import pytest
import yaml

import fedamp
from fedamp.extensions.tune.study import read_study
from tests.documentation import ROOT

FILE, SECOND = (ROOT / "examples" / "zoo" / name for name in ("zoo.yaml", "zoo-patients.yaml"))
VARIANTS = yaml.safe_load(FILE.read_text())["variants"]


def test_both_tasks_have_the_same_methods():
    assert list(yaml.safe_load(SECOND.read_text())["variants"]) == list(VARIANTS)


@pytest.mark.parametrize("file", [FILE, SECOND], ids=lambda file: file.stem)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_person_is_in_four_of_forty_rounds(name, file):
    source = read_study(file)
    asked = fedamp.load(source.scenario, **source.study.changes_of({"variant": name, "privacy.epsilon": 2}))
    cohort = asked.check_in.expected_cohort(asked.rounds, asked.data.clients)
    assert cohort * asked.rounds / asked.data.clients == pytest.approx(4, abs=0.2)


@pytest.mark.slow
def test_the_zoo_is_played_from_its_file(tmp_path):
    quick = {"rounds": 4, "check_in.k": 1, "privacy.epsilon": 8, "privacy.precision": 0.1}
    variants = {name: VARIANTS[name] for name in ("DP-FedProx", "DP-FedAdam", "fixed clipping")}
    study = {"scenario": str(FILE.parent / "people.yaml"), "variants": variants, "seeds": 1}
    played = fedamp.study(study, out=tmp_path / "out", jobs=1, **quick)
    assert [row["variant"] for row in played.means()] == list(variants)
    assert all(7 < row["epsilon_upper"] <= 8 for row in played.means())
