"""Work with other tools: our accountant behind their interfaces, and the numbers in their files.

:mod:`~fedamp.extensions.foreign.accountants` has dp-accounting, Opacus and Flower.
:mod:`~fedamp.extensions.foreign.claims` checks the numbers of other people's code, and
:mod:`~fedamp.extensions.foreign.tool_files` reads them from files of six tools, for ``fedamp-accounting check``.
docs/accountant.md shows both. Nothing of a run is changed.

It needs the accountant alone, and a tool of others only where its interface is asked for.
"""

from fedamp.extension import Extension

extension = Extension(
    "foreign",
    accountant_commands={"check": "fedamp.extensions.foreign.commands:check"},
    accounting={"Claims": "fedamp.extensions.foreign.claims:Claims"},
)
