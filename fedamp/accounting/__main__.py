"""``fedamp-accounting BUNDLE``: verify a released bundle without what trains."""

import argparse
import sys
from pathlib import Path

from fedamp.accounting.bundle import verify_bundle
from fedamp.accounting.ledgers import worst


def main() -> None:
    """A line for each check; exit status 1 if one fails, 2 if there is no bundle."""
    parser = argparse.ArgumentParser(prog="fedamp-accounting", description="Verify a released bundle of fedamp.")
    parser.add_argument("bundle", type=Path, help="folder or zip that fedamp release wrote")
    parser.add_argument("--key", help="public key of the server, 64 hexadecimal digits, as it was told elsewhere")
    asked = parser.parse_args()
    try:
        checks = verify_bundle(asked.bundle, asked.key)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for check in checks:
        print(f"{check.verdict:8}{check.name}: {check.found}")
    sys.exit(worst(checks) == "fail")


if __name__ == "__main__":
    main()
