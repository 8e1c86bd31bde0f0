"""How large an installation with each extra is, from the packages that are installed beside this checkout.

python -m benchmarks.studies.install_sizes

An extra's packages are those that its requirements need, and theirs. Their sizes are the bytes of the files that their
metadata list, without compiled ones: so one environment (``make install``) measures all extras.
"""

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.record import ROOT, made, put_in, store, table

PAGE, RESULTS = ROOT / "docs" / "install.md", Path(__file__).with_suffix(".json")
MAIN = {
    "": "[the accountant](accountant.md), and `fedamp verify` of [a released bundle](releasing.md)",
    "signatures": "the same, and a check of the bundle's signature",
    "train": "all other commands of `fedamp`, on one processor or [in a deployment](deployment.md)",
    "data": "`train`, and [your data](data.md) in csv, JSON, parquet, images, or from Hugging Face",
    "report": "`train`, and pictures, `fedamp sweep`, `compare`, `report` and `release`",
    "ray": "`train`, and simulations on all processors, GPUs and [machines](cluster.md)",
    "all": "`data`, `report` and `ray`",
}
"""The extras of the first table: what works with each."""
MORE = {
    "peft": "[transformers and adapters](models.md#transformers-and-adapters)",
    "tokenizers": "[texts](data.md#texts) in tokens of words",
    "rdata": "the data set `insteval`",
    "scikit-learn": "`FedampClassifier`",
    "pandas": "`run.frame()`",
    "tensorboard": "[a tracker](studies.md#trackers)",
    "prometheus": "[metrics](operations.md#monitor-runs)",
    "interop": "[Google's accountant](accountant.md#other-accountants)",
    "opacus": "[Opacus's accountant](accountant.md#other-accountants)",
    "plots": "curves of the accountant",
    "testing": "[contracts of your own schemes](../CONTRIBUTING.md#a-scheme-in-a-package-of-your-own)",
}
"""Those of the second table, which are small."""


def requirements_of(name: str) -> list[str]:
    """What an installed package requires; of fedamp, what this checkout says."""
    if name != "fedamp":
        return distribution(name).requires or []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    return [*project["dependencies"], *(f'{each}; extra == "{extra}"' for extra, those in extras for each in those)]


def packages_of(extra: str) -> set[str]:
    """Names of all packages that an installation with the extra has.

    Raises:
        PackageNotFoundError: one of them is not installed here.
    """
    found: dict[str, set[str]] = {}
    waiting = [Requirement(f"fedamp[{extra}]" if extra else "fedamp")]
    while waiting:
        required = waiting.pop()
        name = canonicalize_name(required.name)
        if name in found and found[name] >= required.extras:
            continue
        known = found.setdefault(name, {""})
        known |= required.extras
        for each in map(Requirement, requirements_of(name)):
            if each.marker is None or any(each.marker.evaluate({"extra": given}) for given in known):
                waiting.append(each)
    return set(found)


@cache
def bytes_of(name: str) -> int:
    """Bytes of a package's files, without compiled ones."""
    return sum(file.stat().st_size for file in files_of(name) if file.suffix != ".pyc" and file.is_file())


def files_of(name: str) -> Iterator[Path]:
    """The files of an installed package; those of fedamp lie in this checkout."""
    if name == "fedamp":
        yield from (ROOT / "fedamp").rglob("*")
    else:
        yield from (Path(str(file.locate())) for file in distribution(name).files or ())


def measured() -> dict[str, Any]:
    """By extra: number of packages, megabytes, and how many more these are than those of the extra below it."""
    found: dict[str, Any] = {}
    train = packages_of("train")
    for extra in (*MAIN, *MORE):
        names = packages_of(extra)
        below = train if extra != "train" and names >= train else packages_of("")
        more = sum(map(bytes_of, names)) - sum(map(bytes_of, below))
        found[extra] = {
            "packages": len(names),
            "megabytes": sum(map(bytes_of, names)) / 1e6,
            "more_megabytes": more / 1e6,
        }
    return found


def main_table(found: dict[str, Any]) -> str:
    """The extras of which most people install one."""
    rows = [
        {
            "extra": f"`{extra}`" if extra else "(none)",
            "what works with it": words,
            "packages": found[extra]["packages"],
            "MB": f"{found[extra]['megabytes']:,.0f}",
        }
        for extra, words in MAIN.items()
    ]
    return table(rows)


def more_table(found: dict[str, Any]) -> str:
    """The others, with what each adds to ``train``, or to the accountant alone where it does not need ``train``."""
    return table(
        [
            {"extra": f"`{extra}`", "for": words, "MB more": f"{found[extra]['more_megabytes']:,.0f}"}
            for extra, words in MORE.items()
        ]
    )


def main() -> None:
    begun = made()
    try:
        found = measured()
    except PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed; expected: an environment of make install") from None
    store(RESULTS, begun | {"extras": found})
    put_in(PAGE, "install sizes", main_table(found))
    put_in(PAGE, "install sizes: more", more_table(found))


if __name__ == "__main__":
    main()
