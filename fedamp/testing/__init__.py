"""Contracts that ship with fedamp: pytest suites for schemes, optimizers, losses and mechanisms of your own package.

A contract is a class. A test class of yours extends it and names the tested object; pytest then runs all tests of it::

    from fedamp.testing import CheckInContract
    from mylab.blocks import Blocks

    class TestBlocks(CheckInContract):
        scheme = Blocks(k=2)

The oracle of a contract is a simulation of the scheme's draws. It shares no code with the charge, and it takes any law:
no form of the charged expression is expected. A check-in or submodel scheme from another package is charged with
amplification only after it has met its contract on this machine. Another version of fedamp, or of the scheme, has to
meet it again.

=====================  ==============================================================================================
``CheckInContract``    who takes part when: the draw, the charge, the audit's likelihood ratio are one law
``SubmodelContract``   which part a unit trains: the rest is silent, and the charge covers an attack on it
``OptimizerContract``  a server's step: it sees noisy sums alone, coordinate by coordinate
``LossContract``       a loss: records count by themselves, and metrics follow from sums
``MechanismContract``  a mechanism: its brackets hold a real one, compose, and survive a ledger
=====================  ==============================================================================================

:func:`play_flower` runs any Flower app in one process. :mod:`fedamp.testing.privacy` is the attacker of the first
two. A contract needs pytest (``pip install 'fedamp[testing]'``). CONTRIBUTING.md and ``examples/blocks`` show a whole
package with its contracts.
"""

from fedamp.testing.check_in import CheckInContract
from fedamp.testing.flower import play_flower
from fedamp.testing.mechanisms import MechanismContract
from fedamp.testing.parts import LossContract, OptimizerContract
from fedamp.testing.submodels import SubmodelContract

__all__ = [
    "CheckInContract",
    "LossContract",
    "MechanismContract",
    "OptimizerContract",
    "SubmodelContract",
    "play_flower",
]
