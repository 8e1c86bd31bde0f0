"""``fedamp.sweep``, ``fedamp.study`` and ``fedamp.tune``: the commands, with Python objects as arguments and results.

They read scenarios as :func:`fedamp.load` does, call :mod:`fedamp.extensions.tune.sweep` and
:mod:`fedamp.extensions.tune.tune`, and wrap the results for display. docs/studies.md says which choices cost privacy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedamp.api import Source, from_python, given_folder, load
from fedamp.errors import needs_extras

if TYPE_CHECKING:
    from fedamp.extensions.tune.results import SweepResults
    from fedamp.extensions.tune.study import StudyResults
    from fedamp.extensions.tune.sweep import Watcher
    from fedamp.extensions.tune.tune import Tuned


@from_python()
def sweep(
    scenario: Source,
    grid: Mapping[str, Any],
    out: str | Path | None = None,
    jobs: int | None = None,
    watcher: "Watcher | None" = None,
    **settings: Any,
) -> "SweepResults":
    """Run a scenario with every combination of some values. Finished runs are kept, interrupted ones are resumed.

    Each run's ledger charges that run alone. People who are in all of them pay the joint cost, which the result prints;
    choosing by private records costs more (:func:`tune`).

    Args:
        scenario: as :func:`fedamp.load` takes it.
        grid: values by key, as ``{"privacy.epsilon": [1, 2, 4], "seed": range(1, 6)}``; ``seed`` repeats a run.
        out: folder; default: ``sweeps/NAME``.
        jobs: number of runs at once, each in a process of its own; default: the number of cores.
        watcher: follows every round and run.
        settings: those of :func:`fedamp.load`, for all runs.

    Returns:
        The results, one row for each run; printed, they are a table. They have ``frame()``, ``csv()`` and ``plot()``.

    Raises:
        InputError: nothing was run; one line names the fault.
        Interrupted: Ctrl-C; the same call resumes the sweep.

    Example:
        >>> import fedamp
        >>> small = fedamp.load("digits", rounds=1, check_in={"k": 1}, engine={"kind": "serial"})
        >>> found = fedamp.sweep(small, {"privacy.epsilon": [2, 8]}, out="sweeps/small", jobs=1)
        >>> [round(row["epsilon_upper"], 2) for row in found.rows()]
        [2.0, 8.0]
    """
    with needs_extras():
        from fedamp.extensions.tune.results import SweepResults
    from fedamp.extensions.tune.progress import in_cell
    from fedamp.extensions.tune.sweep import sweep

    base = load(scenario, **settings) if settings else scenario
    with in_cell(watcher) as shown:
        return SweepResults.of(sweep(lambda values: load(base, **values), grid, given_folder(out), jobs, shown))


@from_python()
def study(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    jobs: int | None = None,
    watcher: "Watcher | None" = None,
    **settings: Any,
) -> "StudyResults":
    """Run named variants of a scenario with every combination of some values; write a table and a figure for a paper.

    Finished runs are kept, interrupted ones are resumed. A study can get further variants, values and seeds.

    Args:
        source: the file of a study, or its content: ``scenario``, ``variants``, ``grid``, ``seeds``, ``metric``.
        out: folder; default: ``studies/NAME``. It gets ``table.csv``, ``.tex``, ``.md``, ``figure.pdf``, ``.svg``,
            ``.png``, ``study.json``, and a folder for each run.
        jobs, watcher: as in :func:`sweep`.
        settings: those of :func:`fedamp.load`, for all runs.

    Returns:
        The results; printed, they are the table. ``frame()`` has a row for each run, ``means()`` one for each point.

    Raises:
        InputError: nothing was run; one line names the fault.
        Interrupted: Ctrl-C; the same call resumes the study.

    Example:
        >>> import fedamp
        >>> asked = {
        ...     "scenario": "digits",
        ...     "variants": {"Poisson": {"check_in": {"scheme": "poisson", "rate": 0.1}}, "all": {}},
        ...     "grid": {"privacy.epsilon": [2, 8]},
        ...     "seeds": 1,
        ... }
        >>> small = {"rounds": 1, "check_in": {"scheme": "all"}, "engine": {"kind": "serial"}}
        >>> found = fedamp.study(asked, out="studies/small", jobs=1, **small)
        >>> [row["variant"] for row in found.means()]
        ['Poisson', 'Poisson', 'all', 'all']
    """
    with needs_extras():
        from fedamp.extensions.tune.study import play_study, read_study
    from fedamp.extensions.tune.progress import in_cell

    read = read_study(source)
    with in_cell(watcher) as shown:
        return play_study(
            read, lambda each: load(read.scenario, **settings | dict(each)), given_folder(out), jobs, shown
        )


@from_python()
def tune(
    scenario: Source,
    grid: Mapping[str, Any],
    out: str | Path | None = None,
    share: float = 0.2,
    jobs: int | None = None,
    watcher: "Watcher | None" = None,
    trials: int | None = None,
    halving: int | None = None,
    **settings: Any,
) -> "Tuned":
    """Tune hyperparameters privately: ``privacy.epsilon`` pays for all trials, and for the run that follows.

    Each trial trains on all people with more noise, and is judged by its charged ``evaluation``.

    Args:
        scenario: as :func:`fedamp.load` takes it, with ``evaluation``, ``privacy.epsilon`` and noise multiplier
            ``auto``.
        grid: values by key, as in :func:`sweep`; of keys that change no cost.
        out: folder; default: ``tuned/NAME``. Finished trials are kept, interrupted ones are resumed.
        share: part of the budget for all trials, in (0, 1).
        jobs, watcher, settings: as in :func:`sweep`.
        trials: random search: number of the grid's combinations to try, drawn from the scenario's public seed; all
            others cost nothing. Default: every combination.
        halving: successive halving: one trial in so many, at least 2, is played again in a further stage, with less
            noise. All stages have equal parts of the trials' budget. Default: one stage.

    Returns:
        The answer: ``scenario``, with the chosen settings and the noise that is left for it, and ``record``, the
        content of ``tune.json``: the settings, score and noise of each trial, and the epsilon of everything together.

    Raises:
        InputError: nothing was run; one line names the fault.
        FedampError: trials are unfinished; the same call resumes them.
        Interrupted: Ctrl-C; the same call resumes the trials.

    Example:
        >>> import fedamp
        >>> small = {
        ...     "name": "small",
        ...     "data": {"name": "synthetic", "clients": 60},
        ...     "model": {"name": "mlp", "hidden": [8]},
        ...     "rounds": 1,
        ...     "privacy": {"clip": 0.5, "epsilon": 8.0, "noise_multiplier": "auto"},
        ...     "evaluation": {"on": "clients", "share": 0.25, "metrics": ["score"], "noise_multiplier": 8.0},
        ...     "federation": {"evaluate_every": 0},
        ...     "engine": {"kind": "serial"},
        ... }
        >>> answer = fedamp.tune(small, {"server.learning_rate": [1.0, 2.0]}, out="tuned/small", jobs=1)
        >>> round(answer.record.trial_noise, 2), round(answer.record.noise, 2)
        (1.91, 0.68)
    """
    from fedamp.extensions.tune.tune import tune

    base = load(scenario, **settings)
    return tune(lambda values: load(base, **values), grid, given_folder(out), share, jobs, watcher, trials, halving)
