"""Scan the files of an image for what does not belong, and tell its size: python packaging/images/scan.py ROOT

The exit status is 1 if something was found. ROOT is a folder with the image's files; nothing of it is run.
"""

import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

KEY = re.compile(rb"^-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----$", re.MULTILINE)
NAMES = {
    "a cache": re.compile(r"(^|/)(\.cache|pip-cache)/|^var/cache/apt/.*\.(deb|bin)$|^var/lib/apt/lists/.*_Packages"),
    "a checkout": re.compile(r"(^|/)\.(git|hg|svn)/|(^|/)\.env$"),
    "fedamp's tests": re.compile(r"(dist|site)-packages/tests/|(^|/)fedamp/.*/test_\w+\.py$"),
    "an installer of Python": re.compile(r"(dist|site)-packages/pip/__init__\.py$|bin/pip[\d.]*$"),
    "a compiler": re.compile(r"^usr/(local/)?bin/(gcc|cc|clang|make|ld)$"),
    "a program that becomes another user": re.compile(r"^usr/(local/)?bin/sudo$"),
    "a remote shell": re.compile(r"bin/(sshd|telnetd)$"),
    "left over from the build": re.compile(r"^tmp/."),
}
"""What no image of a node or a server needs, by its path below the root."""

LONGEST_KEY = 100_000  # bytes of a file that may be a key


def findings(root: Path) -> Iterator[tuple[str, str]]:
    """Yield what does not belong and where, for each file of the image; links are not followed."""
    for file in _files(root):
        place, mode = str(file.relative_to(root)), file.lstat().st_mode
        yield from ((what, place) for what, name in NAMES.items() if name.search(place))
        if stat.S_ISREG(mode):
            if mode & (stat.S_ISUID | stat.S_ISGID):
                yield "setuid or setgid", place
            if mode & stat.S_IWOTH:
                yield "writable by all", place
            if file.lstat().st_size < LONGEST_KEY and KEY.search(file.read_bytes()):
                yield "a private key", place
    for line in (root / "etc" / "shadow").read_text().splitlines() if (root / "etc" / "shadow").exists() else ():
        if re.match(r"[^:]+:(?![*!x])", line):  # an empty password, too
            yield "a password", f"etc/shadow: {line.partition(':')[0]}"


def sizes(root: Path) -> Counter[str]:
    """Count bytes by package of Python, and for all other files by the first two parts of their path."""
    found: Counter[str] = Counter()
    for file in _files(root):
        place = str(file.relative_to(root))
        package = re.search(r"(?:dist|site)-packages/([^/]+)", place)
        name = f"{package[1].removesuffix('.libs')}" if package else "/".join(place.split("/")[:2])
        found[name] += file.lstat().st_size
    return found


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))


def main(root: Path) -> int:
    """Print the sizes and the findings; return the exit status."""
    counted, found = sizes(root), list(findings(root))
    print(f"{sum(counted.values()) / 1e6:.0f} MB, of which")
    for name, size in counted.most_common(8):
        print(f"  {size / 1e6:5.0f} MB {name}")
    for what, place in found:
        print(f"{what}: {place}")
    print(f"{len(found)} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
