"""``fedamp.sweep`` and ``fedamp.tune``: the commands, with values in and objects out."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedamp.api import Source, from_python, given_folder, load
from fedamp.errors import needs_extras

if TYPE_CHECKING:
    from fedamp.extensions.tune.results import SweepResults
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

    Args:
        grid: values by key, as ``{"privacy.epsilon": [1, 2, 4], "seed": range(1, 6)}``; ``seed`` repeats a run.
        out: folder; default: ``sweeps/NAME``.
        jobs: number of runs at once, each in a process of its own; default: the number of cores.
        watcher: follows every round and run.
        settings: those of :func:`load`, for all runs.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        Interrupted: Ctrl-C; the same call resumes the sweep.
    """
    with needs_extras():
        from fedamp.extensions.tune.results import SweepResults
    from fedamp.extensions.tune.sweep import sweep

    base = load(scenario, **settings) if settings else scenario
    return SweepResults.of(sweep(lambda values: load(base, **values), grid, given_folder(out), jobs, watcher))


@from_python()
def tune(
    scenario: Source,
    grid: Mapping[str, Any],
    out: str | Path | None = None,
    share: float = 0.2,
    jobs: int | None = None,
    watcher: "Watcher | None" = None,
    **settings: Any,
) -> "Tuned":
    """Choose among settings with charge: ``privacy.epsilon`` pays for all trials, and for the run that follows.

    Each trial trains on all people with more noise, and is judged by its charged ``evaluation``. The answer has
    ``scenario``, with the chosen settings and the noise that is left for it, and ``record``, as in ``tune.json``.

    Args:
        grid: values by key, as of :func:`sweep`; of keys that change no cost.
        out: folder; default: ``tuned/NAME``. Finished trials are kept, interrupted ones are resumed.
        share: of the budget, for all trials.
        jobs, watcher, settings: as of :func:`sweep`.

    Raises:
        InputError: nothing was run; one line that says what is wrong.
        FedampError: trials have not come to their end; the same call resumes them.
        Interrupted: Ctrl-C; the same call resumes the trials.
    """
    from fedamp.extensions.tune.tune import tune

    base = load(scenario, **settings)
    return tune(lambda values: load(base, **values), grid, given_folder(out), share, jobs, watcher)
