"""Files of other tools, as people have them: wrong numbers are found, and documented examples pass."""

import json
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import optimize
from scipy.special import log_ndtr

from fedamp.accounting.__main__ import main
from fedamp.extensions.foreign.tool_files import TOOLS, check_file

Capture = pytest.CaptureFixture[str]

LOCAL = "from flwr.clientapp.mod import LocalDpMod\nmod = LocalDpMod({})\n"
FIXED = """
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
dp = DifferentialPrivacyServerSideFixedClipping(
    FedAvg(), noise_multiplier=1.0, clipping_norm=0.5, num_sampled_clients={})
"""
REPORTS = '\nmetrics = MetricRecord({{"num-examples": {}}})\n'
PROJECT = """
[tool.flwr.app.config]
num-server-rounds = 3
dp = {clip = 1.0, sensitivity = 1.0, epsilon = 0.5}
"""
OPACUS = """
from opacus import PrivacyEngine
NOISE, MAX = 1.1, 1.0
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=NOISE, max_grad_norm={}{})
"""
CALIBRATED = """
engine.make_private_with_epsilon(module=m, optimizer=o, data_loader=d, epochs=3, target_epsilon=5.0, target_delta=1e-5,
    max_grad_norm=1.2{})
"""
PFL = """
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
accountant = PLDPrivacyAccountant(num_compositions=1500, sampling_probability=0.001, mechanism="gaussian", {})
"""
JAX = """
from jax_privacy import clipped_grad, noise_addition
clip, noise_multiplier, expected = 1.0, 1.5, 128
gradient = clipped_grad(loss, l2_clip_norm=clip, normalize_by={})
privatizer = noise_addition.gaussian_privatizer(stddev={})
"""
KERAS = """
config = DPKerasConfig(epsilon={}, delta=1e-5, clipping_norm=1.0, batch_size=128, gradient_accumulation_steps=1,
    train_steps=100, train_size=60_000, poisson_sampling_in_fit={}, noise_multiplier={})
"""
BANDS = """
config = jax_privacy.BandMFConfig.default({}iterations=1000, expected_participations=100{})
gradient = config.make().clipped_grad(loss, batch_argnums=(1, 2))
"""
OPAKE = """
from opake.dpsgd import clipping, noise
gradient, state = clipping.clipped_grad(loss, clipping_norm=1.0, batch_argnums=(1, 2), normalize_by={})
add, noise_state = noise.gaussian_noise(noise_multiplier=1.1, key=key(42))
"""
PLAN = "plan = BandMFExecutionPlanConfig.default(iterations=1000, delta=1e-5, sampling_prob=0.1, {})\n"
JOB = {"format_version": 2, "task_result_filters": [{"tasks": ["train"], "filters": []}]}
OPTIMIZER = "o = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size={})\n"


def job(name: str, **arguments: float) -> str:
    """A job of NVFlare whose clients filter their updates."""
    filters = [{"path": f"nvflare.app_common.filters.{name}", "args": arguments}]
    return json.dumps(JOB | {"task_result_filters": [{"tasks": ["train"], "filters": filters}]})


WRONG = {
    "Flower's local noise for another sensitivity": (LOCAL.format("1.0, 1e-4, 10.0, 1e-5"), "sensitivity"),
    "Flower's local noise of a formula for small epsilons": (LOCAL.format("1.0, 1.0, 20.0, 1e-5"), "epsilon"),
    "Flower without noise": (FIXED.format("20").replace("1.0", "0.0"), "epsilon"),
    "weights by examples": (FIXED.format("20") + REPORTS.format("len(loader.dataset)"), "weights"),
    "NVFlare's percentiles": (job("percentile_privacy.PercentilePrivacy"), "epsilon"),
    "NVFlare's sparse vectors": (job("svt_privacy.SVTPrivacy", fraction=0.1, epsilon=0.1, noise_var=0.1), "epsilon"),
    "NVFlare in Python": ("job.to(SVTPrivacy(), 'site-1')\n", "epsilon"),
    "a batch that is not drawn": (CALIBRATED.format(", poisson_sampling=False"), "rate"),
    "a private batch in Opacus": (OPTIMIZER.format("len(batch)"), "divided_by"),
    "a private batch in JAX": (JAX.format("batch.shape[0]", "noise_multiplier * clip"), "divided_by"),
    "a private batch in opake": (OPAKE.format("len(batch)"), "divided_by"),
    "the mean with the noise of the sum": (JAX.format("expected", "noise_multiplier * clip"), "noise"),
    "the sum with the noise of the mean": (JAX.format("1.0", "noise_multiplier * clip / expected"), "noise"),
    "pfl's claim is too low": (PFL.format("epsilon=0.1, delta=1e-6, noise_parameter=0.6"), "epsilon"),
    "Keras' claim is too low": (KERAS.format(0.01, True, 0.5), "epsilon"),
    "ours, contradicting": ("Claims(rounds=10, clip=1.0, noise=0.1, noise_multiplier=1.0)", "noise"),
}
RIGHT = {
    "Flower's local noise": LOCAL.format("clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5"),
    "Flower's local noise, by names": f"CLIP = 3.0\n{LOCAL.format('CLIP, CLIP, 0.5, 1e-5')}",
    "Flower's fixed clip": FIXED.format("20"),
    "Flower's fixed clip, of equal clients": FIXED.format("20") + REPORTS.format("1"),
    "Flower's fixed clip, with its accountant": FIXED.format("20, accountant=a") + REPORTS.format("len(data)"),
    "Flower's fixed clip, in clients": FIXED.format("20").replace("ServerSide", "ClientSide"),
    "Flower's adaptive clip": "DifferentialPrivacyServerSideAdaptiveClipping(s, 1.0, num_sampled_clients=5)",
    "Opacus": OPACUS.format("MAX", ""),
    "Opacus, of layers": OPACUS.format("[1.0, 1.0]", ', clipping="per_layer"'),
    "Opacus, of ghosts": OPACUS.format("1.0", ', grad_sample_mode="ghost"'),
    "Opacus without sampling": OPACUS.format("1.0", ", poisson_sampling=False"),
    "Opacus for an epsilon": CALIBRATED.format(""),
    "Opacus' optimiser": OPTIMIZER.format("64"),
    "pfl": PFL.format("epsilon=2.0, delta=1e-6") + "GaussianMechanism.from_privacy_accountant(accountant, 0.4)\n",
    "pfl, of its noise": PFL.format("epsilon=2.0, delta=1e-6, noise_parameter=0.7"),
    "pfl's mechanism": "central = CentrallyAppliedPrivacyMechanism(GaussianMechanism(0.4, relative_noise_stddev=1.0))",
    "jax_privacy's mean": JAX.format("expected", "noise_multiplier * clip / expected"),
    "jax_privacy's sum": JAX.format("1.0", "noise_multiplier * clip"),
    "jax_privacy for an epsilon": PLAN.format("num_bands=1, epsilon=1.0"),
    "jax_privacy, of its noise": PLAN.format("num_bands=1, epsilon=None, noise_multiplier=2.0"),
    "jax_privacy with bands": PLAN.format("num_bands=4, epsilon=1.0"),
    "jax_privacy's plan, of its noise": BANDS.format("num_bands=1, ", ", noise_multiplier=2.0"),
    "jax_privacy's plan with bands, of its noise": BANDS.format("num_bands=4, ", ", noise_multiplier=2.0"),
    "jax_privacy's plan for an epsilon": BANDS.format("4, ", "") + "config = config.calibrate(epsilon=1.0, delta=1e-5)",
    "opake": OPAKE.format("64"),
    "Keras for an epsilon": KERAS.format(1.1, True, None),
    "Keras, of its noise": KERAS.format(8.0, True, 1.0),
    "ours": "Claims(100, rate=0.1, clip=1.0, noise=0.016, divided_by=50, noise_multiplier=0.8, sensitivity=0.02)",
}


def written(folder: Path, text: str) -> Path:
    file = folder / ("job.json" if text.startswith("{") else "code.py")
    file.write_text(text)
    return file


@pytest.mark.parametrize("case", WRONG)
def test_wrong_numbers_are_found(case: str, tmp_path: Path, capsys: Capture) -> None:
    text, subject = WRONG[case]
    file = written(tmp_path, text)
    assert subject in {check.name.split(": ")[1] for check in check_file(file, {}) if check.verdict == "fail"}
    with pytest.raises(SystemExit) as ended:
        main(["check", str(file)])
    assert ended.value.code == 1
    assert "fail" in capsys.readouterr().out


@pytest.mark.parametrize("case", RIGHT)
def test_documented_examples_pass(case: str, tmp_path: Path) -> None:
    found = check_file(written(tmp_path, RIGHT[case]), {})
    assert found
    assert not [check for check in found if check.verdict == "fail"], found


NOT_COMPUTED = {
    "Opacus for an epsilon": RIGHT["Opacus for an epsilon"],
    "pfl for an epsilon": RIGHT["pfl"],
    "jax_privacy for an epsilon": RIGHT["jax_privacy for an epsilon"],
    "jax_privacy's plan for an epsilon": RIGHT["jax_privacy's plan for an epsilon"],
    "jax_privacy's truncated plan": BANDS.format(
        "1, ", ", noise_multiplier=2.0, num_examples=9, truncated_batch_size=4"
    ),
    "clipping alone": "gradient = clipped_grad(loss, l2_clip_norm=1.0)\n",
    "noise alone": "privatizer = gaussian_privatizer(stddev=1.0)\n",
    "two noises": JAX.format("1.0", "noise_multiplier * clip") + "another = gaussian_privatizer(stddev=1e-9)\n",
    "arguments elsewhere": "make_private(noise_multiplier=1.0, **arguments)\n",
    "a name that is a parameter, too": OPACUS.format("MAX", "") + "def main(NOISE):\n    pass\n",
    "one of two calls": OPACUS.format("MAX", "") + "make_private(noise_multiplier=args.noise, max_grad_norm=1.0)\n",
}


@pytest.mark.parametrize("case", NOT_COMPUTED)
def test_what_is_not_computed_is_neither_right_nor_wrong(case: str, tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", str(written(tmp_path, NOT_COMPUTED[case]))])
    assert ended.value.code == 2
    shown = capsys.readouterr().out
    assert "unknown " in shown
    assert "fail" not in shown


@pytest.mark.few(1)
@pytest.mark.parametrize(("bands", "rate", "times"), [(1, 0.1, 1000), (4, 0.4, 250), (3, 0.3, 334)])
def test_a_plan_of_jax_privacy_costs_what_dp_accounting_says(
    bands: int, rate: float, times: int, tmp_path: Path, capsys: Capture
) -> None:
    """The event is that of jax_privacy's ``amplified_bandmf_event``: its rounds over its bands, rounded up."""
    file = written(tmp_path, BANDS.format(f"num_bands={bands}, ", ", noise_multiplier=2.0"))
    with pytest.raises(SystemExit) as ended:
        main(["check", str(file)])
    assert ended.value.code == 0
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(2.0)), times)
    expected = PLDAccountant().compose(event).get_epsilon(1e-5)
    found = float(capsys.readouterr().out.split("epsilon: ")[1].split()[0])
    assert found == pytest.approx(expected, rel=2e-3)  # four digits are printed, and theirs rounds up, too


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Of one Gaussian release with this noise multiplier (Balle, Wang 2018, theorem 8), by logarithms."""

    def above(epsilon: float) -> float:
        a, b = (sign / (2 * noise) - epsilon * noise for sign in (1, -1))
        gone = np.log1p(-np.exp(epsilon + log_ndtr(b) - log_ndtr(a)))
        return float(log_ndtr(a) + gone - np.log(delta))

    return float(optimize.brentq(above, 1e-9, 4 / noise**2 + 100))


def test_an_epsilon_of_flowers_local_noise(tmp_path: Path) -> None:
    """Clip 1 with noise for a sensitivity of a ten-thousandth: epsilon 2e8 a round, where 10 is claimed."""
    found = check_file(written(tmp_path, LOCAL.format("1.0, 1e-4, 10.0, 1e-5")), {})
    said = next(check.found for check in found if check.name.endswith("epsilon"))
    epsilon = float(said.split("it is ")[1].split()[0])
    noise = 1e-4 * np.sqrt(2 * np.log(1.25e5)) / 10
    assert epsilon == pytest.approx(gaussian_epsilon(noise, 1e-5), rel=1e-3)  # four digits are printed
    assert 2e8 < epsilon < 2.5e8


def test_a_project_of_flower_is_read_with_its_config(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "app").mkdir()
    keys = ", ".join(f'context.run_config["dp.{key}"]' for key in ("clip", "sensitivity", "epsilon"))
    (tmp_path / "app" / "client_app.py").write_text(LOCAL.format(f"{keys}, 1e-5"))
    found = check_file(tmp_path / "pyproject.toml", {})
    assert [check.verdict for check in found] == ["pass"] * len(found)
    assert "not in the file" not in "".join(check.found for check in found), "three rounds are in the configuration"
    (tmp_path / "pyproject.toml").write_text(PROJECT.replace("sensitivity = 1.0", "sensitivity = 0.1"))
    assert "fail" in [check.verdict for check in check_file(tmp_path / "pyproject.toml", {})]


def test_what_a_file_lacks_is_asked_for_and_taken_from_options(tmp_path: Path) -> None:
    file = written(tmp_path, FIXED.format("20").replace("noise_multiplier=1.0", "noise_multiplier=args.noise"))
    assert any("--noise-multiplier" in check.found for check in check_file(file, {}))
    found = check_file(file, {"noise_multiplier": 1.0, "rounds": 5})
    expected = gaussian_epsilon(1 / np.sqrt(5), 1e-5)
    assert float(found[-1].found.split()[0]) == pytest.approx(expected, rel=1e-3)
    remove = check_file(written(tmp_path, OPACUS.format("1.0", "")), {"relation": "add/remove"})
    assert [check.name for check in remove if check.verdict == "fail"] == ["make_private: divided_by"]


@pytest.mark.parametrize("text", ["x = 1\n", "def (", '{"a": ', "{}", "[project]\n", "\xff"])
def test_a_file_without_a_known_call_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / ("f.json" if text[0] == "{" else "f.toml" if text[0] == "[" else "f.py")
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"f\.(json|toml|py): (cannot be read|no call that is known; expected one of)"):
        check_file(file, {})


def test_no_file_is_executed(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'executed')!r}, 'w')\n" + LOCAL.format("1.0, 1.0, __import__('os').getpid(), 1e-5")
    check_file(written(tmp_path, code), {})
    assert not (tmp_path / "executed").exists()
    assert {each.name for each in TOOLS.values()} == {
        "Flower",
        "NVFlare",
        "Opacus",
        "opake",
        "pfl",
        "jax_privacy",
        "fedamp",
    }
