"""Other tools: our accountant behind their interfaces, their events as our mechanisms, and the numbers in their files.

It needs the accountant alone, and a tool of others only where its interface is asked for.
"""

from fedamp.extension import Extension

extension = Extension("foreign", accountant_commands={"check": "fedamp.extensions.foreign.commands:check"})
