"""The command of the leaderboard; the package says how to use it."""

import sys
from pathlib import Path

from benchmarks.leaderboard import PAGE, add, entries, page


def main() -> None:
    if sys.argv[1:2] == ["add"]:
        print(add(Path(sys.argv[2]), " ".join(sys.argv[3:])))
    PAGE.write_text(page(entries()))
    print(PAGE)


if __name__ == "__main__":
    main()
