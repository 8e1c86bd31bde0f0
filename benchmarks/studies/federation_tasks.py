"""The tasks of ``benchmarks.studies.federations``: data and federation of each, and the schemes to compare on it."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies import encoder
from benchmarks.studies.adapters import BASE, NEAR, TARGETS, near
from benchmarks.training import at_hand, fashion_mnist
from fedamp.base.files import cache_folder
from fedamp.data.texts import CHARACTERS
from fedamp.federation import reader

Sections = dict[str, Any]

DELTA = 1e-5
CLIENTS, RECORDS, HELD_OUT = 6000, 10, 6000
FEATURES = [{"name": "scattering", "scales": 3, "angles": 2}, {"name": "group_norm", "groups": 19}]


@dataclass(frozen=True)
class Scheme:
    """A row of a table: its words, and what it says otherwise than the task's federation."""

    words: str
    sections: Sections
    private: bool = True
    amplified: bool = True
    mixed: bool = False
    charged_as: str | None = None  # the scheme whose noise it has, so that what differs is not credited


@dataclass(frozen=True)
class Task:
    """What is learned, by whom, and how.

    Attributes:
        clients: how many there are, each protected.
        federation: the scenario without data, rates and budget.
        data: its data section, on held-out training or validation records (True), or on the test set.
        schemes: by name.
        epsilons: budgets; the extreme ones are measured first.
        personal: whether parameters stay with their client: each client is tested with its own.
        validation: whether rates are chosen on a share of the loader's test records, which the test then leaves out.
        shape, classes: of made-up records that cost a device the same; no shape: the data are loaded to tell that.
        score: what is measured: at most 1, more is better.
    """

    words: str
    clients: int
    federation: Sections
    data: Callable[[bool], Sections]
    schemes: Mapping[str, Scheme]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    personal: bool = False
    validation: bool = False
    score: str = "test accuracy"
    shape: tuple[int, ...] | None = None
    classes: int = 10


# --- Fashion-MNIST over 6,000 clients ---------------------------------------------------------------------------------

CHECK_INS, SERVER = 3, {"momentum": 0.5, "averaging": 0.9}
FEDERATION: Sections = {
    "name": "federations",
    "known_seed": True,
    "model": {"name": "mlp", "hidden": [32]},
    "rounds": 60,
    "check_in": {"scheme": "balanced", "k": CHECK_INS},
    "client": {"steps": 2, "learning_rate": 0.1},
    "server": SERVER,
    "engine": {"kind": "serial"},
}
STILL = {**SERVER, "momentum": 0.0}  # ModelMix refuses momentum
POISSON = {"check_in": {"scheme": "poisson", "rate": CHECK_INS / FEDERATION["rounds"]}}
HALF = {"scheme": "disjoint", "count": 2, "unowned": "partitioned"}
SPLIT = {"scheme": "disjoint", "shared_noise_multiplier": "balanced"}
BANDED: Sections = {"privacy": {"noise": {"scheme": "banded"}}}

SCHEMES = {
    "none": Scheme("k of T, without noise", {}, private=False),
    "unamplified": Scheme("k of T, charged without amplification", {}, amplified=False),
    "poisson": Scheme("Poisson sampling (DP-FedAvg)", POISSON),
    "everybody": Scheme("everybody in each round", {"check_in": {"scheme": "all"}}),
    "stratified": Scheme("k of T, one a block", {"check_in": {"scheme": "stratified", "k": CHECK_INS}}),
    "balanced": Scheme("k of T", {}),
    "split-2": Scheme("k of T, 2 submodels", {"submodels": HALF}),
    "split-2-bare": Scheme("k of T, 2 submodels, not credited", {"submodels": HALF}, charged_as="balanced"),
    "split-2-work": Scheme(
        "2k of T, 2 submodels: the work of k of T",
        {"submodels": HALF, "check_in": {"scheme": "balanced", "k": 2 * CHECK_INS}},
    ),
    "narrow": Scheme("k of T, a model of half the width", {"model": {"name": "mlp", "hidden": [16]}}),
    "banded": Scheme("k of T, spaced, correlated noise", {"check_in": {"scheme": "spaced", "k": CHECK_INS}, **BANDED}),
    "secure": Scheme("k of T, noise of secure aggregation", {"aggregation": {"scheme": "secure"}}),
    "split-4": Scheme(
        "k of T, 4 submodels", {"submodels": {"scheme": "disjoint", "count": 4, "unowned": "partitioned"}}
    ),
    "partial-2": Scheme("k of T, 2 submodels and a shared part", {"submodels": {**SPLIT, "count": 2}}),
    "partial-4": Scheme("k of T, 4 submodels and a shared part", {"submodels": {**SPLIT, "count": 4}}),
    "dropout": Scheme(
        "k of T, dropout of half", {"submodels": {"scheme": "dropout", "keep": 0.5, "unowned": "partitioned"}}
    ),
    "poisson-still": Scheme("Poisson sampling, no momentum", {**POISSON, "server": STILL}),
    "modelmix": Scheme("Poisson sampling, no momentum, ModelMix", {**POISSON, "server": STILL}, mixed=True),
}
BUDGETS = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
SHAPE = (19, 3, 3)  # of the features


def features(partition: Sections) -> Callable[[bool], Sections]:
    """The data section of Fashion-MNIST's features."""

    def section(tuning: bool) -> Sections:
        clients = CLIENTS - HELD_OUT // RECORDS if tuning else CLIENTS
        files = {"name": "npz", "path": str(folders()[tuning]), "test_is_public": True}
        return {**files, "clients": clients, "partition": partition}

    return section


@cache
def folders() -> dict[bool, Path]:
    """The features as npz files, made once: to tune on (True), with training images held out, and to test on."""
    home = cache_folder() / "federations"
    result = {True: home / "tuning", False: home / "test"}
    if not (home / "done").exists():
        train, test = fashion_mnist(FEATURES)
        for tuning, folder in result.items():
            folder.mkdir(parents=True, exist_ok=True)
            kept = slice(HELD_OUT if tuning else 0, None)
            held_out = [each[:HELD_OUT] for each in train] if tuning else test
            for name, (inputs, labels) in (("train", [each[kept] for each in train]), ("test", held_out)):
                np.savez(folder / f"{name}.npz", x=inputs, y=labels)
        (home / "done").touch()
    return result


def frontier() -> dict[str, Scheme]:
    """Whole models and submodels of many widths and numbers of check-ins: points of accuracy over bytes and work."""
    found = {}
    for check_ins in (1, 3, 6, 12):
        for width in (4, 8, 16, 32, 64, 128):
            for count in (1, 2, 4):
                sections: Sections = {
                    "model": {"name": "mlp", "hidden": [width]},
                    "check_in": {"scheme": "balanced", "k": check_ins},
                }
                if count > 1:
                    sections["submodels"] = {**HALF, "count": count}
                words = f"{check_ins} of T, width {width}" + (f", {count} submodels" if count > 1 else "")
                found[f"k{check_ins}-width{width}-split{count}"] = Scheme(words, sections)
    return found


# --- others -----------------------------------------------------------------------------------------------------------


def among(rounds: int, check_ins: int, split: Sections, narrow: Sections, names: tuple[str, ...]) -> dict[str, Scheme]:
    """The schemes with these names for k of so many rounds; ``narrow`` is a model of half the width."""
    poisson = {"check_in": {"scheme": "poisson", "rate": check_ins / rounds}}
    spaced = {"check_in": {"scheme": "spaced", "k": check_ins}}
    twice = {"check_in": {"scheme": "balanced", "k": 2 * check_ins}}
    changed = {
        "poisson": poisson,
        "poisson-still": {**poisson, "server": STILL},
        "modelmix": {**poisson, "server": STILL},
        "banded": {**spaced, **BANDED},
        "split-2": {"submodels": split},
        "split-2-bare": {"submodels": split},
        "split-2-work": {"submodels": split, **twice},
        "narrow": narrow,
    }
    as_there = {name: SCHEMES[name] for name in names}
    return {name: replace(each, sections=changed.get(name, each.sections)) for name, each in as_there.items()}


def _texts(tuning: bool) -> Sections:
    return {"name": "descriptions", "length": 32}


SECTIONS: Sections = reader.load("sections").data.model_dump(mode="json")


def _sections(tuning: bool) -> Sections:
    return SECTIONS | ({"path": str(_some_people())} if tuning else {})


@cache
def _some_people() -> Path:
    """The people of ``sections`` without every fifth, who are tested on: made once, to tune on."""
    home = cache_folder() / "federations" / "sections"
    source = at_hand("sections")
    if not (home / "tokenizer.json").exists():
        home.mkdir(parents=True, exist_ok=True)
        lines = (source / "train.json").read_text().splitlines(keepends=True)
        people = {
            name: number for number, name in enumerate(dict.fromkeys(json.loads(line)["author"] for line in lines))
        }
        for name, is_test in (("train", False), ("test", True)):
            kept = [line for line in lines if (people[json.loads(line)["author"]] % 5 == 4) == is_test]
            (home / f"{name}.json").write_text("".join(kept))
        shutil.copyfile(source / "tokenizer.json", home / "tokenizer.json")
    return home


def _federation(rounds: int, check_ins: int, **sections: Any) -> Sections:
    return {**FEDERATION, "rounds": rounds, "check_in": {"scheme": "balanced", "k": check_ins}, **sections}


_TOKENS = {"loss": "token-cross-entropy", "steps": 2, "batch_size": 8}
_WHOLE = ("none", "unamplified", "everybody", "poisson", "balanced", "banded", "secure")
_STILL = ("poisson-still", "modelmix")
_PARTS = ("none", "unamplified", "poisson", "balanced", "split-2", "split-2-bare", "split-2-work", "narrow")


def _lora(rank: int, base: Path = BASE, **options: str) -> Sections:
    # With the scale of random factors, frozen public ones had 39 % instead of 45 %.
    scale = 0.5 if options else 2
    return {
        "name": "transformers:GPT2LMHeadModel",
        "vocabulary": CHARACTERS,
        "initial": str(base),
        "options": {
            "lora": {"r": rank, "lora_alpha": scale * rank, "target_modules": TARGETS, "fan_in_fan_out": True},
            **options,
        },
    }


FROZEN, MIDDLE = {"model": _lora(4, NEAR, factors="frozen")}, {"model": _lora(10, NEAR, factors="middle")}
FACTORS = {
    "none": Scheme("both factors, without noise", {}, private=False),
    "none-frozen": Scheme("A frozen, without noise", FROZEN, private=False),
    "none-middle": Scheme("a matrix between, without noise", MIDDLE, private=False),
    "balanced": Scheme("both factors", {}),
    "narrow": Scheme("both factors, of rank 1", {"model": _lora(1, NEAR)}),
    "frozen": Scheme("A frozen", FROZEN),
    "middle": Scheme("a matrix between", MIDDLE),
}


def _texts_of_others(tuning: bool) -> Sections:
    near()
    return _texts(tuning)


def _on_encoder(rank: int = 0, alpha: float = 1, **options: str) -> Sections:
    lora = {"lora": encoder.adapters(rank, alpha)} if rank else {}
    return {"model": {"name": "benchmarks.studies.encoder:Above", "options": {**lora, **options}}}


ON_ENCODER = {
    "none-head": Scheme("head alone, without noise", _on_encoder(), private=False),
    "none": Scheme("head, both factors, without noise", {}, private=False),
    "head": Scheme("head alone", _on_encoder()),
    "balanced": Scheme("head, both factors", {}),
    "frozen": Scheme("head, A frozen", _on_encoder(4, 0.25, factors="frozen")),
    "middle": Scheme("head, a matrix between", _on_encoder(16, 1, factors="middle")),
}


def _vectors(tuning: bool) -> Sections:
    partition = {"scheme": "natural", "column": "client"}
    return {
        "name": "npz",
        "path": str(encoder.vectors()),
        "test_is_public": True,
        "partition": partition,
        "classes": 20,
    }


TASKS = {
    "iid": Task(
        "Fashion-MNIST, 6,000 clients", CLIENTS, FEDERATION, features({"scheme": "iid"}), SCHEMES, BUDGETS, shape=SHAPE
    ),
    "dirichlet": Task(
        "Fashion-MNIST, 6,000 clients, labels by Dirichlet(0.3)",
        CLIENTS,
        FEDERATION,
        features({"scheme": "dirichlet", "alpha": 0.3}),
        SCHEMES,
        BUDGETS,
        shape=SHAPE,
    ),
    "students": Task(
        "ratings of lectures by 2,972 students (InstEval)",
        2972,
        _federation(
            40,
            4,
            model={
                "name": "ratings_model:Ratings",
                "vocabulary": 1128,
                "local": ["student"],
                "folder": str(BASE.parent),
            },
            client={"loss": "mean-squared-error", "steps": 5, "learning_rate": 0.5},
        ),
        lambda tuning: {"name": "insteval"},
        among(40, 4, {}, {}, (*_WHOLE, *_STILL)),
        (0.3, 1.0, 2.0),
        personal=True,
        score="variance explained",
    ),
    "sections": Task(
        "sections of packages by 1,468 people and teams, features of a public encoder",
        1468,
        _federation(40, 4, model={"name": "logistic"}, client={"steps": 5, "learning_rate": 4.0}),
        _sections,
        among(40, 4, {}, {}, (*_WHOLE, *_STILL)),
        (0.5, 1.0, 2.0, 4.0, 8.0),
        shape=(384,),
        classes=20,
    ),
    "authors": Task(
        "next characters of 1,906 people and teams, an LSTM",
        1906,
        _federation(
            24,
            2,
            model={"name": "lstm", "vocabulary": 96, "embedding": 16, "hidden": [32]},
            client={**_TOKENS, "learning_rate": 1.0},
        ),
        _texts,
        among(24, 2, {}, {}, ("none", "unamplified", "poisson", "balanced", "banded")),
        (2.0, 8.0),
        validation=True,
    ),
    "convolutional": Task(
        "Fashion-MNIST, 6,000 clients, a convolutional network on the images",
        CLIENTS,
        _federation(20, 1, model={"name": "cnn", "channels": [16, 32]}),
        lambda tuning: {"name": "fashion-mnist", "clients": CLIENTS},
        among(20, 1, HALF, {"model": {"name": "cnn", "channels": [8, 16]}}, (*_PARTS, "dropout", "secure")),
        (1.0,),
        validation=True,
        shape=(1, 28, 28),
    ),
    "adapters": Task(
        "next characters of 1,906 people and teams, LoRA on a small GPT-2",
        1906,
        _federation(24, 2, model=_lora(4), client={**_TOKENS, "learning_rate": 0.5}),
        _texts,
        among(24, 2, HALF, {"model": _lora(2)}, (*(name for name in _PARTS if name != "poisson"), "dropout")),
        (2.0,),
        (1, 2, 3),
        validation=True,
    ),
    "factors": Task(
        "next characters of 1,906 people and teams, LoRA on a small GPT-2 that has read other texts of this kind",
        1906,
        _federation(12, 1, model=_lora(4, NEAR), client={**_TOKENS, "learning_rate": 0.5}),
        _texts_of_others,
        FACTORS,
        (2.0,),
        (1, 2, 3),
        validation=True,
    ),
    "encoder": Task(
        "sections of packages by 1,468 people and teams, LoRA on the last layer of a public encoder",
        1468,
        _federation(40, 4, **_on_encoder(4, 0.25), client={"steps": 1, "batch_size": 4, "learning_rate": 4.0}),
        _vectors,
        ON_ENCODER,
        (2.0, 8.0),
        (1, 2, 3),
        validation=True,
        shape=(encoder.LENGTH + 1, encoder.NUMBERS),
        classes=20,
    ),
    "frontier": Task(
        "Fashion-MNIST, 6,000 clients, over bytes and work",
        CLIENTS,
        FEDERATION,
        features({"scheme": "iid"}),
        frontier(),
        (1.0,),
        shape=SHAPE,
    ),
}
