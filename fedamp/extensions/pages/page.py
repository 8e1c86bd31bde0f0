"""Write a page about a run, a merged model or a comparison, as one HTML file to share.

It holds what was released and what is public, and no number computed from private data without noise. The texts are
templates (:mod:`fedamp.extensions.pages.templates`); tables and pictures are those of :mod:`fedamp.report`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment
from matplotlib.figure import Figure

from fedamp.accounting.verify import ledger_keys
from fedamp.base.files import write_atomically
from fedamp.base.reading import read_regular
from fedamp.errors import InputError, RunFolderError
from fedamp.extensions.pages.public_scenario import public_scenario
from fedamp.extensions.pages.templates import environment
from fedamp.federation.cost import risk
from fedamp.federation.losses import brings_code, records_of
from fedamp.federation.scenario import Scenario
from fedamp.report import style, words
from fedamp.report.comparison import Comparison
from fedamp.report.pictures import run_pictures
from fedamp.report.tables import spread
from fedamp.runs.folder import finished_runs
from fedamp.runs.run import ReleasedModel, Run, read_models
from fedamp.runs.verification import complaint

CAPTIONS = {
    "rounds": "Quality on the public test set, if there is one, and the privacy cost so far, round by round.",
    "accuracy-epsilon": "Quality against privacy cost: as charged, and for the same models without amplification.",
}


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the page of one run or merged model, or the comparison of several; an older page is replaced.

    Args:
        folders: of runs, merged models and series of runs.
        out: the HTML file.

    Returns:
        The file.

    Raises:
        RunFolderError: a folder is missing, damaged or given twice, ``fedamp verify`` fails, or ``out`` cannot be
            written.
    """
    models = read_models(finished_runs(folders))
    compared = Comparison(models)
    checks = {model.folder: model.verify() for model in models if isinstance(model, Run)}
    for folder, found in checks.items():
        if wrong := complaint(found):
            raise RunFolderError(f"{folder}: {wrong}")
    alone, answer = len(models) == 1, compared.to_json()
    # How many checked in, and how many failed, are numbers of the server's owner.
    shown = {folder: [check for check in found if check.name != "reported"] for folder, found in checks.items()}
    values = {"models": models, "alone": alone, "checks": shown, "cautions": answer["cautions"]}
    values |= {
        "cells": compared.cells(answer),
        "comparison_figures": [] if alone else _inline_pictures(compared.pictures()),
    }
    content = _page_environment(models).get_template("page.html.j2").render(values)
    if out.is_symlink() or (out.exists() and not out.is_file()):
        raise RunFolderError(f"{out}: a link, or no file; expected: the name of an HTML file")
    write_atomically(out, content.encode(), durable=False)
    return out


def certificate(run: Run, guess: str, about: Any = None) -> str:
    """Return a page with what was released, and its guarantee: it may leave the server.

    Args:
        run: that was released.
        guess: what :func:`guessing_alone` says of it.
        about: answers of the organisation (:class:`fedamp.extensions.pages.board.AboutRelease`); None: not given.
    """
    pictures, person = _inline_pictures(run_pictures(run)), person_word(run.scenario)
    values = {"model": run, "pictures": pictures, "about": about, "person": person, "guess": guess}
    return _page_environment([run]).get_template("certificate.html.j2").render(values)


def person_word(scenario: Scenario) -> str:
    """Return what a scenario calls the subject of its guarantee: the column that divides records, or its unit.

    Example:
        >>> import fedamp
        >>> person_word(fedamp.load("digits"))
        'client'
    """
    unit, partition = scenario.privacy.unit, getattr(scenario.data, "partition", None)
    column = str(getattr(partition, "column", "")).lower().replace("_", " ").removesuffix(" id")
    return column if unit == "client" and re.fullmatch("[a-z]+( [a-z]+){0,2}", column) else unit


def released_numbers(run: Run) -> dict[str, str]:
    """Write what a run has released beside its model: a side sum, and what keys of extensions in its ledger tell."""
    found = words.released(run.ledger.side_release)
    for name, key in ledger_keys().items():
        if getattr(run.ledger, name) is not None:
            found |= key.released_numbers(run.folder)
    return found


def guessing_alone(run: Run) -> str:
    """Write how often a guess of the class is right without the model; empty: there are no classes, or it is unknown.

    With public test records the guess is their most frequent class, else any class. It reads the records.
    """
    dataset = None
    with suppress(InputError):  # the records are not on this machine
        dataset = None if brings_code(run.scenario) else records_of(run.scenario)  # a page runs no code of others
    if dataset is None or not dataset.form.labels.are_classes:
        return ""
    labels = np.asarray(dataset.test()[1]) if run.score else np.zeros(0, np.int64)
    counts = np.bincount(labels[labels >= 0].ravel().astype(np.int64))
    share = counts.max() / counts.sum() if counts.sum() else 1 / dataset.num_classes
    return f"guessing alone: {share:.1%}"


def _page_environment(models: Iterable[ReleasedModel]) -> Environment:
    """Make the environment of the templates, with those of the models' extensions."""
    made = environment(*{model.templates for model in models if model.templates})
    made.tests["run"] = lambda model: isinstance(model, Run)
    made.globals |= {"spread": spread, "sha256": sha256, "read": read_regular, "interpretation": interpretation}
    made.globals["released_numbers"] = released_numbers
    made.globals["public"] = lambda run: yaml.safe_dump(
        public_scenario(run.scenario, run.plan), sort_keys=False, allow_unicode=True
    )
    made.globals["figures_of"] = lambda run: _inline_pictures(run_pictures(run))
    return made


def _inline_pictures(pictures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """Return the address and the caption of each picture."""
    return [(style.inline(picture), CAPTIONS[name]) for name, picture in pictures.items()]


def interpretation(model: ReleasedModel) -> str:
    """Write the guarantee of the released models in one sentence."""
    stated, mechanism = model.stated, model.stated.mechanism
    if isinstance(model, Run) and model.ledger.epsilon_follows:
        releases = len(model.ledger.releases)
        mechanism = model.ledger.cost_after(model.plan.last_round if model.was_stopped_early else releases)
    return str(risk(mechanism, stated.unit, stated.group_size)["in_words"])
