"""What the figures of merging have in common: how their curves look, and what is best at each epsilon."""

import numpy as np

from benchmarks.papers.drawing import OURS, Style
from benchmarks.papers.merging_portfolio import Array

PAPER = "Yin, Zaheer, Li 2026"

SELECTION: Style = OURS | {"label": "selection, privacy loss (fedamp)"}
COMBINATION: Style = OURS | {"linestyle": (0, (4, 1.5)), "label": "combination, privacy loss (fedamp)"}
JOINT: Style = OURS | {"linestyle": (0, (4, 1.5)), "drawstyle": "steps-post", "label": "combination, joint (fedamp)"}
SELECTION_RDP: Style = {"color": "0.55", "linestyle": "-", "marker": "v", "label": "selection, Rényi"}
COMBINATION_RDP: Style = {"color": "0.55", "linestyle": (0, (4, 1.5)), "marker": "o", "label": "combination, Rényi"}
STEPS_RDP: Style = COMBINATION_RDP | {"label": "combination by steps, Rényi: no bound"}
STEPS: Style = {
    "color": "0.35",
    "linestyle": (0, (1, 1.2)),
    "marker": "x",
    "label": "combination by steps, privacy loss: no bound",
}
HIDDEN: Style = {"color": "0.3", "linestyle": "-.", "marker": "s", "label": "selection, the draw kept secret: exact"}
INPUTS: Style = {
    "color": "white",
    "markeredgecolor": "black",
    "linestyle": "",
    "marker": "o",
    "markersize": 9,
    "label": "the models",
    "zorder": 6,
}


def frontier(epsilons: Array, utilities: Array) -> tuple[Array, Array]:
    """The points that no other point beats in both, by growing epsilon."""
    order = np.lexsort((-utilities, epsilons))
    best = np.maximum.accumulate(utilities[order])
    kept = np.concatenate([[True], best[1:] > best[:-1]]) & np.isfinite(epsilons[order])
    return epsilons[order][kept], utilities[order][kept]
