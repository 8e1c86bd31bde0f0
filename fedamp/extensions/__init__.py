"""Hold fedamp's own extensions: one folder for each idea that the core does not need.

The core imports none of them. :mod:`fedamp.extension` finds them by the attribute ``extension`` of each folder, which
names what the idea adds: keys of a scenario, commands, hooks around a run, mechanisms, words. A scheme from a package
of somebody else is added in the same way (CONTRIBUTING.md).
"""
