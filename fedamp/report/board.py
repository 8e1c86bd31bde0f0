"""A run in words for people who did not make it: what was protected, against whom, and what that means."""

from fedamp.base.numbers import at_most, power
from fedamp.report.words import KNOWN_SEED, protected
from fedamp.runs.run import Run

Card = tuple[str, str, str]
"""A question, its answer, and ``care`` where it is a caution, else nothing."""


def board(run: Run, risk: str) -> list[Card]:
    """What a board asks about a run, in the order in which it asks.

    Args:
        run: with or without privacy.
        risk: what the guarantee means for a person, in words.
    """
    answered: Card = ("Who answered?", _answered(run), "" if run.reported_share == 1 else "care")
    if not run.is_private:
        nobody = "Nobody. No noise was added: whoever sees the model may learn anything about anybody's records."
        return [("Who is protected?", nobody, "care"), answered]
    ledger = run.ledger
    what = {"client": "all records that a client holds", "sample": "each single record"}[ledger.unit]
    whom = protected(ledger.unit, ledger.group_size)
    each = f"Each of {ledger.units:,} {ledger.unit}s" if ledger.group_size == 1 else f"A{whom[1:]}, of {ledger.units:,}"
    return [
        ("Who is protected?", f"{each}: {what}, whatever they are.", ""),
        (
            "Against whom?",
            "Whoever sees every released model, even one who knows all other records and has any computer. Not against "
            "the server, which is trusted: it sees sums before noise, and who took part.",
            "",
        ),
        ("What does it mean for a person?", risk, ""),
        ("How strong is it?", _strength(run), "" if run.epsilon is not None and run.epsilon <= STRONG else "care"),
        (
            "Could somebody take the noise away?",
            f"Yes: {KNOWN_SEED}."
            if run.has_known_seed
            else "Not without the seed, which is secret: it came from the operating system and is in no released file.",
            "care" if run.has_known_seed else "",
        ),
        answered,
    ]


STRONG = 10.0  # beyond it a likelihood ratio of twenty thousand is allowed


def _strength(run: Run) -> str:
    words = f"ε ≤ {at_most(run.epsilon)} at δ = {power(run.ledger.delta)}. Less is better: 0 tells nothing, about 1 is "
    words += "strong, and beyond 10 the guarantee says little."
    if run.is_amplified:
        words += f" Without the hidden randomness it would be {at_most(run.unamplified_epsilon)}."
    return words


def _answered(run: Run) -> str:
    share = run.reported_share
    if share == 1:
        return f"Everybody who was scheduled, in {len(run.rounds)} rounds."
    return (
        f"{share:.1%} of the scheduled {run.ledger.unit}s, in {len(run.rounds)} rounds. Those who did not are "
        "charged as if they had."
    )
