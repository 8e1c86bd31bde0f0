"""The keys of a ledger about an evaluation on people's held-out records."""

from fedamp.accounting.verify import SideSumKeys

EVALUATION = SideSumKeys(
    section="fedamp.extensions.evaluation.section:ClientEvaluation",
    release="fedamp.extensions.evaluation.section:Evaluated",
    in_round="evaluated",
    at_end="final_evaluation",
    words="an evaluation",
)
