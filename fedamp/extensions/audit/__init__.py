"""Attack the real server and client code, and bound from below how much a release leaks (docs/audit.md).

The command ``fedamp audit`` has two ways. A scenario is played many times with and without a canary
(:mod:`~fedamp.extensions.audit.attack`). A run with the key ``privacy.canaries`` is audited once, from the models that
it released (:mod:`~fedamp.extensions.audit.canaries`; Steinke, Nasr, Jagielski 2023). Both give guesses of coins, which
:mod:`~fedamp.extensions.audit.bound` turns into a lower bound on epsilon.

Canaries need a simulation in which the server adds the noise, whole models, and one fixed clip
(:mod:`~fedamp.extensions.audit.section`). They break no fact that other keys need, and change no person's cost. An
audit can refute a claim; it proves none.
"""

from fedamp.extension import Extension

extension = Extension(
    name="audit",
    commands={"audit": "fedamp.extensions.audit.commands:audit"},
    help_groups={"audit": "Account"},
    sections={"privacy.canaries": "fedamp.extensions.audit.section:CANARIES"},
    around_run={"audit": "fedamp.extensions.audit.kept_models:kept"},
)
