"""Define the key ``questions`` of a ledger: what a run has asked, and that its answers follow from its release."""

from pathlib import Path
from typing import Any

from fedamp.accounting.verify import Check, Json, LedgerKey

MOST_SHOWN = 500  # numbers of a run's page


class QuestionsKey(LedgerKey):
    """Checks of what a ledger says about questions."""

    record = "fedamp.extensions.statistics.record:QuestionsRecord"
    shared = "questions"
    other = "with other questions"

    def check_value(self, told: Json) -> Check:
        """Say what was asked: a bundle holds the noisy vector, and no answers."""
        return Check("questions", "pass", f"{told['asked']} with {told['cells']} cells, in one release")

    def check_run(self, told: Json, run: Path, scenario: Any) -> Check:
        """Compute the answers of a run again from the released vector, and compare them with its file of answers."""
        from fedamp.errors import FedampError
        from fedamp.extensions.statistics.answers import FILE, ReleasedAnswers, questions_record, released_answers

        if scenario is None:
            return self.check_value(told)
        if questions_record(scenario.questions).content() != told:
            return Check("questions", "fail", "the ledger has others than the scenario")
        if not (run / FILE).exists():
            return self.check_value(told)
        try:
            kept, again = ReleasedAnswers.read(run / FILE), released_answers(run)
        except FedampError as error:
            return Check("questions", "fail", str(error))
        wrong = None if kept.agrees_with(again) else f"{FILE} does not follow from the released vector"
        return Check.of_failure("questions", f"{told['asked']} answers follow from the released vector", fail=wrong)

    def released_numbers(self, run: Path) -> dict[str, str]:
        """Return the answers with their intervals; of very many the first ones."""
        from fedamp.extensions.statistics.answers import released_answers

        released = released_answers(run)
        each = [(f"{one.name}: {number.name}", number.in_words) for one in released.answers for number in one.numbers]
        found = dict(each[:MOST_SHOWN])
        if len(each) > MOST_SHOWN:
            found["further numbers"] = f"{len(each) - MOST_SHOWN:,} in the released vector"
        return found | {"intervals": f"{released.covers} The probability is {released.level:g}."}

    def is_asked(self, scenario: Any) -> bool:
        """Say whether a scenario asks questions."""
        return scenario.questions is not None


QUESTIONS = QuestionsKey()
