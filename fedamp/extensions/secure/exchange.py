"""Offer a node with an agreement to the core, for the seam ``exchanges``."""

from collections.abc import Iterable
from pathlib import Path

from flwr.app import Context

from fedamp.accounting.verify import Check
from fedamp.client.exchange import NodeExchange, TrainUnits
from fedamp.engines.wire import RoundOrder
from fedamp.errors import DeploymentError
from fedamp.extensions.secure.participant import Participant, answer


class SecureExchange(NodeExchange):
    """Answers the exchanges of secure aggregation on a node, and examines its files."""

    def answer(
        self, order: RoundOrder, context: Context, hosted: set[int], whose: Iterable[bytes], train: TrainUnits
    ) -> bytes:
        """Answer one exchange of a round; see :func:`fedamp.extensions.secure.participant.answer`."""
        return answer(order, context, hosted, whose, train)

    def examine(self, *files: Path) -> list[Check]:
        """Check a node's agreement, key and folder: with whom, under which terms, and what it remembers.

        Args:
            files: the agreement, the key, and the folder of the state.
        """
        try:
            found = Participant.read(*files)
        except DeploymentError as error:
            return [Check("node", "fail", str(error))]
        terms, others = found.agreement.terms, sorted(set(found.agreement.peers) - {found.name})
        drawn = (
            "drawn by the nodes" if terms.check_in else f"at most {terms.most_check_ins} a unit, drawn by the server"
        )
        return [
            Check.of_failure("node", f"{found.name}, with {', '.join(others)}, in run {found.agreement.run}"),
            Check.of_failure(
                "terms", f"{terms.rounds} rounds, noise multipliers {list(terms.noise_multipliers)}, {drawn}"
            ),
            Check.of_failure(
                "nodes", f"{terms.nodes}: {terms.dropped} may drop out of a round, {terms.colluding} may collude"
            ),
            Check.of_failure("task", found.agreement.task),
            Check.of_failure("memory", f"of this agreement; round {found.memory.signed} was the last"),
        ]


EXCHANGE = SecureExchange()
