"""Name the ledger's keys for an evaluation, so that ``fedamp verify`` computes it again from the released sums."""

from fedamp.accounting.verify import SideSumKeys

EVALUATION = SideSumKeys(
    section="fedamp.extensions.evaluation.section:ClientEvaluation",
    release="fedamp.extensions.evaluation.section:Evaluated",
    in_round="evaluated",
    at_end="final_evaluation",
    words="an evaluation",
)
