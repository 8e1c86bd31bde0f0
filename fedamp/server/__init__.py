"""Run a federation: prepare it, play its rounds, write each release down, and tell observers.

Begin to read at :func:`fedamp.server.loop.rounds`: its five steps are a private round. The command line and notebooks
start at :mod:`fedamp.server.launch`, ``flwr run`` at :mod:`fedamp.server.app`, custom Flower apps at
:mod:`fedamp.server.custom_app`.
"""
