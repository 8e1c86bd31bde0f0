"""The commands, as ``python -m fedamp``."""

from fedamp.cli import main

if __name__ == "__main__":  # the processes of a sweep import this module too
    try:
        main()
    finally:
        # A Ctrl-C that came while code in a string was run, as dataclasses and numba do, is remembered until the next
        # such code; a module run with -m would end by the signal whatever its exit status.
        exec("")
