"""Random combinations of sections: each is charged between two bounds by hand, or is refused in one line.

The bounds share no code with the accountant. They are closed forms of the normal law: below, what an attack on one
round, on the sum of all rounds, or on what is released once, finds; above, the composition without any amplification.
"""

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

import fedamp
from fedamp.errors import FederationError, InputError
from fedamp.runs.verification import verify_ledger

CLIENTS, EACH, CLASSES = 12, 4, 2
WITHIN = 1.03  # of epsilon: what brackets of precision 0.05 and the part of delta for the sampler may take
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body, self.head = nn.Linear(input_shape[0], 3), nn.Linear(3, num_classes)

    def forward(self, inputs):
        return self.head(self.body(inputs.flatten(1)).tanh())
"""
LORA = {"r": 1, "target_modules": ["c_attn"], "fan_in_fan_out": True}
GPT = {"n_embd": 4, "n_layer": 1, "n_head": 1, "n_positions": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of numbers and of tokens, and a module of a model."""
    top, draw = tmp_path_factory.mktemp("combinations"), np.random.default_rng(0)
    x, owner = draw.normal(size=(CLIENTS * EACH, 4)).astype(np.float32), np.repeat(np.arange(CLIENTS), EACH)
    tokens = draw.integers(0, 9, (CLIENTS * EACH, 5))
    of = np.array(["a", "b"])[owner % 2]
    for name, inputs, labels in (("people", x, (x.sum(1) > 0).astype(np.int64)), ("texts", tokens, tokens)):
        (top / name).mkdir()
        np.savez(top / name / "train.npz", x=inputs, y=labels, client=owner, sex=of)
    (top / "theirs.py").write_text(NET)
    return top


# --- drawing ----------------------------------------------------------------------------------------------------------


def combination(number: int, attempt: int, folder: Path) -> dict[str, Any]:
    """A scenario whose every section is drawn; many cannot be combined."""
    draw = random.Random(f"combination {number}.{attempt}")

    def happens(chance: float) -> bool:
        return draw.random() < chance

    def some(**values: Any) -> dict[str, Any]:
        """Some of the keys, each with one of its values."""
        return {key: draw.choice(among) for key, among in values.items() if happens(0.35)}

    rounds = draw.choice([1, 2, 3, 4, 6])
    raw: dict[str, Any] = {"name": f"combination-{number}", "rounds": rounds, "seed": number}
    raw |= {"engine": {"kind": "serial"}} | some(known_seed=[True, False])
    unit = "sample" if happens(0.15) else "client"
    data = draw.choice(
        ["synthetic", "natural", "natural", "iid", "texts"] if unit == "client" else ["synthetic", "iid"]
    )
    if data == "synthetic":
        raw["data"] = {"name": "synthetic", "clients": CLIENTS, "records_per_client": EACH, "features": 4}
        raw["data"] |= {"classes": CLASSES, "test_records": 10}
    else:
        raw["data"] = {"name": "npz", "path": str(folder / ("texts" if data == "texts" else "people"))}
        raw["data"] |= {"classes": 9 if data == "texts" else CLASSES} | some(test_fraction=[0.2])
        raw["data"] |= {"test_is_public": True} if "test_fraction" in raw["data"] else {}
        natural = {"partition": {"scheme": "natural"}}
        raw["data"] |= natural if data in ("natural", "texts") else {} if unit == "sample" else {"clients": CLIENTS}
        if data != "texts" and happens(0.35):
            means = {"name": "standardise", "mean": "private", "range": [-2, 2]}
            raw["data"]["transform"] = [means | {"noise_multiplier": draw.choice([2.0, 20.0])}]
    if data == "texts":
        raw["model"] = draw.choice(
            [
                {"name": "lstm", "vocabulary": 9, "hidden": [3]},
                {"name": "transformers:GPT2LMHeadModel", "vocabulary": 9, "options": GPT | {"lora": LORA}},
            ]
        )
    else:
        own = {"name": "theirs:Net", "folder": str(folder)}
        raw["model"] = draw.choice(
            [
                *[{"name": "logistic"}, {"name": "mlp", "hidden": [4]}, {"name": "mlp", "hidden": [3, 3]}] * 2,
                own,
                own | {"trainable": ["head"]},
                {"name": "mlp", "hidden": [4], "local": ["output"]},
            ]
        )
    raw["check_in"] = _check_in(draw, rounds, some)
    if happens(0.4) and raw["model"]["name"] == "mlp":  # of others, whether they can be cut shows when they are built
        split = some(unowned=["partitioned", "frozen"]) or some(
            shared_clip=[0.3, 2.0], shared_noise_multiplier=["same", "balanced", 1.5]
        )
        disjoint = {"scheme": "disjoint", "count": draw.choice([2, 3])} | some(
            partition=["fixed", "fresh"], assignment=["random", "rolling", "static"], whole=[0.25, "0-2"]
        )
        raw["submodels"] = split | draw.choice([disjoint, {"scheme": "dropout", "keep": draw.choice([0.3, 0.5, 0.8])}])
    raw["client"] = some(
        batch_size=["full", 2],
        optimizer=["sgd", "adam"],
        learning_rate=[0.1, [[1, 0.2], [2, 0.1]]],
        weight_decay=[0.0, 0.01],
        proximal=[0.1],
        max_records=[2],
    )
    raw["client"] |= {"momentum": 0.5} if happens(0.2) and "optimizer" not in raw["client"] else {}
    raw["client"] |= draw.choice([{}, {"steps": 1}, {"steps": 2}, {"epochs": 1}][: 2 if unit == "sample" else 4])
    raw["client"] |= {"loss": "token-cross-entropy"} if data == "texts" else {}
    raw["server"] = some(optimizer=["sgd", "adam"], learning_rate=[0.5], momentum=[0.0, 0.5], averaging=[0.5])
    if happens(0.15):
        raw["mixing"] = {"width": draw.choice([0.1, [[1, 0.1], [2, 0.2]]])} | some(linf_coordinates=[2])
    adaptive = {"initial": 0.3} | some(noise_multiplier=[1.0, 10.0])
    noise: dict[str, Any] = {"noise_multiplier": draw.choice([0.7, 1.0, 3.0])}
    noise = draw.choice([noise, noise, noise | {"epsilon": 3.0}, {"epsilon": 4.0}, {"epsilon": 0.8}])
    noise = {"noise_multiplier": 0} if happens(0.05) else noise
    raw["privacy"] = noise | {"unit": unit, "precision": 0.05, "clip": draw.choice([0.5, 0.5, "auto", adaptive])}
    raw["privacy"] |= some(amplification=[False, False, True], group_size=[1, 2, 3], delta=[1e-5, 1e-3])
    if happens(0.3 if raw["check_in"]["scheme"] in ("classes", "spaced") else 0.05):
        banded = {"scheme": "banded"} | some(bands=[1, 2, 3, "auto"])
        raw["privacy"]["noise"] = draw.choice([banded, banded, {"scheme": "buffered"}])
    raw["privacy"] |= {"noise_cohort": draw.choice([24, 60])} if happens(0.06) else {}
    raw["privacy"] |= {"canaries": 3} if happens(0.06) else {}
    if happens(0.15):
        raw["check_in"] |= some(drawn_by=["node"])
        raw["aggregation"] = {"scheme": "secure"} | some(dropped=[0.0, 0.3], colluding=[0.0, 0.2], nodes=[3, CLIENTS])
    if happens(0.3):
        raw["evaluation"] = {"on": "clients"} | some(
            share=[0.5], every=["end", 1, 2], metrics=[["score"], ["loss"], ["score", "loss"], ["calibration"]]
        )
        raw["evaluation"] |= draw.choice([{"noise_multiplier": 8.0}, {"noise_multiplier": 2.0}, {"epsilon": 1.0}])
        groups = [{"by": {"first": "0-5"}}, {"by": "sex", "groups": ["a"]}]
        raw["evaluation"] |= draw.choice([{}, {}, groups[0], groups[1] if data in ("natural", "texts") else {}])
    raw["federation"] = some(evaluate_every=[0, 1, "auto"], checkpoint_every=[2])
    raw["federation"] |= {"validation_share": 0.3} if happens(0.1) and "test_fraction" in raw["data"] else {}
    if happens(0.12):
        hosts = draw.choice(["trusted", {"a": "0-5", "b": "6-11"}, {"a": "0-3", "b": "4-7", "c": "8-11"}])
        raw["federation"] |= {"hosts": hosts} | some(dummies=[True, False])
    raw |= {"faults": {"failing": 0.3}} if happens(0.1) else {}
    return raw


def _check_in(draw: random.Random, rounds: int, some: Any) -> dict[str, Any]:
    k, rate = draw.randint(1, max(1, rounds // 2)), draw.choice([0.2, 0.5, 1.0])
    gap = draw.choice([1, 2, 3, "auto"][: min(rounds, 4)])
    found = draw.choice(
        [
            {"scheme": "all"},
            {"scheme": "poisson", "rate": rate},
            {"scheme": "batches", "size": draw.choice([1, 4, CLIENTS])},
            {"scheme": "truncated-poisson", "rate": rate, "size": draw.choice([1, 4, CLIENTS])},
            {"scheme": "capped-poisson", "rate": rate, "at_most": k},
            {"scheme": "balanced", "k": k},
            {"scheme": "stratified", "k": k},
            {"scheme": "classes", "k": k, "classes": gap},
            {"scheme": "spaced", "k": k, "gap": gap},
        ]
    )
    return found | ({"drawn_by": "node"} if draw.random() < 0.02 else {})


# --- bounds by hand ---------------------------------------------------------------------------------------------------


def inverse(delta_of: Any, delta: float) -> float:
    """The smallest epsilon >= 0 with a delta of at most this, to 1e-9."""
    return 0.0 if delta_of(0.0) <= delta else float(brentq(lambda epsilon: delta_of(epsilon) - delta, 0.0, 600.0))


def gaussian(mu: float, delta: float) -> float:
    """Epsilon of N(mu, 1) against N(0, 1) (Balle, Wang 2018, theorem 8)."""
    if mu <= 0:
        return 0.0

    def delta_of(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))

    return inverse(delta_of, delta)


def sampled(mu: float, chance: float, delta: float) -> float:
    """Epsilon of (1 - q) N(0, 1) + q N(mu, 1) against N(0, 1), in this direction alone."""
    if mu <= 0 or chance <= 0:
        return 0.0
    if chance >= 1:
        return gaussian(mu, delta)

    def delta_of(epsilon: float) -> float:
        place = (np.logaddexp(epsilon, math.log(chance) - 60) if epsilon > 30 else epsilon) - math.log(chance)
        if epsilon <= 30:
            place = math.log((math.expm1(epsilon) + chance) / chance)
        where = (place + mu**2 / 2) / mu
        out = norm.sf(where) * (1 - chance) - math.exp(epsilon + norm.logsf(where))
        return float(out + chance * norm.sf(where - mu))

    return inverse(delta_of, delta)


def root(*inverses: float) -> float:
    """The mu of Gaussian releases together; a noise multiplier of infinity is none."""
    return math.sqrt(sum(each**-2 for each in inverses))


def bounds(raw: dict[str, Any], answer: dict[str, Any]) -> tuple[float, float]:
    """Epsilon is at least, and at most, this; ``answer`` gives the noise that was calibrated, and nothing else."""
    rounds, privacy, noise = raw["rounds"], raw["privacy"], answer["noise_multiplier"]
    delta, check_in, asked = privacy.get("delta", 1e-5), raw["check_in"], raw.get("evaluation")
    if noise == 0:
        return math.inf, math.inf
    units = CLIENTS * EACH if privacy["unit"] == "sample" else CLIENTS
    k, chance = check_in.get("k", rounds), check_in.get("rate", 1.0)
    match check_in["scheme"]:
        case "poisson":
            most = rounds
        case "batches":
            most, chance = rounds, check_in["size"] / units
        case "truncated-poisson":
            drawn = np.arange(units + 1)
            most, chance = rounds, float(np.minimum(drawn, check_in["size"]) @ binom.pmf(drawn, units, chance)) / units
        case "capped-poisson":
            most = min(rounds, check_in["at_most"])
            heads = np.arange(rounds + 1)
            chance = float(np.minimum(heads, most) @ binom.pmf(heads, rounds, chance)) / rounds
        case _:
            most, chance = k, k / rounds
    is_certain = check_in["scheme"] not in ("poisson", "batches", "truncated-poisson", "capped-poisson")
    clip, evaluated = privacy["clip"], answer["evaluation"] and answer["evaluation"]["noise_multiplier"]
    beside = [2 * clip.get("noise_multiplier", 10.0)] if isinstance(clip, dict) else []
    once = [step["noise_multiplier"] for step in raw["data"].get("transform", ())]
    if evaluated and asked:
        (once if asked.get("every", "end") == "end" else beside).append(evaluated)
    shared, hidden, split = _parts(raw, noise, units)
    is_correlated = "noise" in privacy
    # Below: one round, of which one number is looked at; the sum of all rounds; and what is released once.
    known = root(*shared, *beside)
    lower = [gaussian(root(each), delta) for each in once]
    if "mixing" not in raw and not is_correlated:
        lower += [sampled(known, chance, delta), sampled(root(split), chance * hidden, delta)]
        lower += [gaussian(k * known / math.sqrt(rounds), delta)] if is_certain else []
        together = root(*shared, *beside, split) if hidden == 1 else known
        lower += [sampled(together, chance, delta)]
        lower += [gaussian(k * together / math.sqrt(rounds), delta)] if is_certain else []
    elif is_correlated and is_certain:  # coefficients of at most 1: so is the noise of a row, over the root of rounds
        lower += [gaussian(1 / (rounds * noise), delta)]
    # Above: all rounds in which a unit can be, in the open; in batches its update may be replaced by the opposite one.
    mu = math.sqrt(most * root(*shared, *beside, split) ** 2 + root(*once) ** 2)
    upper = gaussian(mu * (2 if check_in["scheme"] == "batches" else 1), delta)
    loose = privacy.get("group_size", 1) > 1 or privacy.get("noise", {}).get("scheme") == "buffered"
    return max(lower, default=0.0), math.inf if loose else upper


def _parts(raw: dict[str, Any], noise: float, units: int) -> tuple[list[float], float, float]:
    """Noise multipliers of what a unit that takes part moves for sure; the chance, and the noise, of the rest."""
    asked = raw.get("submodels", {"scheme": "none"})
    if asked["scheme"] == "none":
        return [], 1.0, noise
    count, keep = asked.get("count", 1), asked.get("keep", 0.5)
    if asked["scheme"] == "dropout":
        hidden, share, copies = keep, keep, math.floor(1 / keep)
    else:
        whole = {"0-2": 3 / units, 0.25: math.ceil(units / 4) / units}.get(asked.get("whole"), 0.0)
        is_hidden = asked.get("assignment", "random") == "random" and not whole
        hidden, copies = (1 / count, count) if is_hidden else (1.0, 1)
        share = whole + (1 - whole) / count
    if asked.get("unowned", "shared") != "shared":
        return [], hidden, noise
    theirs = asked.get("shared_noise_multiplier", "same")
    named = {"same": noise, "balanced": noise * (copies / share**2) ** 0.25}
    return [named.get(theirs, theirs)], hidden, noise


# --- playing ----------------------------------------------------------------------------------------------------------


def one_line(error: BaseException) -> str:
    words = str(error)
    assert len(words.splitlines()) == 1, words
    return words


def judged(raw: dict[str, Any], out: Path) -> str:
    """Price a combination and run it; returns ``charged``, or why it is refused."""
    try:
        scenario = fedamp.load(raw)
    except InputError as error:
        return f"load: {one_line(error)}"
    try:
        answer: dict[str, Any] = fedamp.privacy(scenario)
        priced = ""
    except InputError as error:
        priced = one_line(error)
    failed = ""
    try:
        run = fedamp.run(scenario, out=out, anyway=True)
        ran = ""
    except InputError as error:
        ran = one_line(error)
    except FederationError as error:
        failed = one_line(error)
    if failed:  # by the faults that were asked for
        assert "reported" in failed
        assert "faults" in raw
        return f"failed: {failed}"
    assert bool(priced) == bool(ran), f"privacy: {priced or 'priced'}; run: {ran or 'ran'}"
    if priced:
        return f"both: {priced}"
    lower, upper = bounds(raw, answer)
    charged, budget = answer["epsilon"]["upper"], raw["privacy"].get("epsilon")
    if math.isinf(lower):
        assert charged is run.epsilon is None
        return "not private"
    assert lower <= charged <= upper * WITHIN + 1e-6, f"{lower} <= {charged} <= {upper}"
    assert run.epsilon <= charged * (1 + 1e-9), f"the run's {run.epsilon} is above {charged}"
    for other in ("epsilon_nodes", "epsilon_server", "unamplified_epsilon"):
        if answer[other] is not None and answer[other]["upper"] is not None:
            assert answer[other]["upper"] >= answer["epsilon"]["lower"], other
    if budget is not None:
        assert run.epsilon <= budget
        if raw["privacy"].get("noise_multiplier", "auto") == "auto":
            assert charged <= budget
    if run.summary.rounds_completed == raw["rounds"]:
        assert lower <= run.epsilon, f"the run's {run.epsilon} is below {lower}"
    failed = [check for check in verify_ledger(run.folder) if check.verdict == "fail"]
    assert not failed, failed
    return "charged"


QUICK = [*range(6, 12), 18, 19]  # a second each at most, and no model of a library
SLOW = [number for number in range(200) if number not in QUICK]
ATTEMPTS = 6  # until the sections can be combined


@pytest.mark.parametrize("numbers", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_a_combination_of_sections_is_charged_right_or_refused(numbers, folder, tmp_path, subtests, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found: Counter[str] = Counter()
    for number in numbers:
        for attempt in range(ATTEMPTS):
            with subtests.test(json.dumps(raw := combination(number, attempt, folder))):
                result = judged(raw, tmp_path / f"{number}.{attempt}").partition(":")[0]
            found[result] += 1
            if result != "load":
                break
    assert found["charged"] > len(numbers) / 3
