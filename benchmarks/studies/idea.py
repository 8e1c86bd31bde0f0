"""The picture and the table of docs/idea.md: `python -m benchmarks.studies.idea`."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.record import ROOT, put_in
from fedamp.accounting import Allocation, Gaussian, Mechanism, Poisson, Repeat, Submodels
from fedamp.base.numbers import at_most
from fedamp.federation.check_in import BalancedCheckIn
from fedamp.report.style import LOOKS

PAGE, PICTURE = ROOT / "docs" / "idea.md", ROOT / "docs" / "images" / "idea.png"
ROUNDS, CHECK_INS, SUBMODELS, DELTA = 100, 10, 3, 1e-5
NOISE, GREY, TEXT = Gaussian(1.0), "#9a9a9a", 12
ROWS: dict[str, Mechanism] = {
    f"nothing: {CHECK_INS} known rounds": Repeat(NOISE, CHECK_INS),
    "who takes part, by Poisson sampling with rate 0.1": Repeat(Poisson(NOISE, CHECK_INS / ROUNDS), ROUNDS),
    f"in which {CHECK_INS} of the {ROUNDS} rounds a client takes part": Allocation(NOISE, CHECK_INS, ROUNDS),
    f"and which of {SUBMODELS} submodels it trains": Allocation(Submodels(NOISE, SUBMODELS), CHECK_INS, ROUNDS),
}


def table() -> str:
    """The rows of the page, with today's accountant."""
    lines = [f"| {words} | {at_most(run.epsilon(DELTA).upper, 2)} |" for words, run in ROWS.items()]
    return "\n".join(["| what the attacker does not know | epsilon at most |", "| --- | --- |", *lines])


def draw(clients: int = 8, rounds: int = 24, check_ins: int = 4) -> None:
    """Check-ins as squares, coloured by submodel; and the epsilons of the table as bars."""
    canvas = Figure(figsize=(5.2, 5.4), layout="constrained")  # read at the width of a phone
    grid, bars = canvas.subplots(2, 1, height_ratios=(1.1, 1))
    submodels = np.random.default_rng(3)
    cohorts = BalancedCheckIn(scheme="balanced", k=check_ins).cohorts(rounds, clients, seed=5)
    for round_, cohort in enumerate(cohorts, 1):
        for client in range(clients):
            colour = LOOKS[submodels.integers(SUBMODELS)].color if client in cohort else "#eeeeee"
            grid.add_patch(Rectangle((round_ - 0.4, client + 0.6), 0.8, 0.8, color=colour))
    grid.set(xlim=(0.3, rounds + 0.7), ylim=(0.3, clients + 0.7), xlabel="round", ylabel="client")
    grid.set_title(f"{check_ins} hidden check-ins, hidden submodels", fontsize=TEXT, fontweight="bold")
    names = ["known rounds", "Poisson sampling", "k of T hidden\nrounds", "and hidden\nsubmodels"]
    spent = [run.epsilon(DELTA).upper for run in ROWS.values()]
    bars.barh(names, spent, color=[GREY, GREY, LOOKS[0].color, LOOKS[0].color])
    for place, upper in enumerate(spent):
        bars.annotate(at_most(upper, 2), (upper, place), (4, 0), textcoords="offset points", va="center", fontsize=TEXT)
    bars.set(xlim=(0, 1.15 * max(spent)), xlabel=f"epsilon at noise multiplier 1, delta {DELTA:g}")
    bars.set_title("the same noise, a smaller epsilon", fontsize=TEXT, fontweight="bold")
    bars.invert_yaxis()
    for axes in (grid, bars):
        axes.tick_params(labelsize=TEXT)
        axes.xaxis.label.set_size(TEXT)
        axes.yaxis.label.set_size(TEXT)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(PICTURE, dpi=160)


def main() -> None:
    draw()
    put_in(PAGE, "idea", table())


if __name__ == "__main__":
    main()
