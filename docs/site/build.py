"""Builds the site: ``make docs``. Pages are those of the repository; first.md is executed, links are checked.

What it needs is the extra ``docs``. Everything it writes is below ``build``.
"""

import html.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "docs"
PAGES, SITE = BUILD / "pages", BUILD / "site"
KATEX = "katex@0.16.47"
"""Sets mathematics; a package of npm, which is unpacked beside the pages."""
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")

OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
BESIDE = ("benchmarks/README.md", "examples/blocks/README.md", "examples/nvflare/README.md")
"""The pages that are not in docs; those beside are reached from others, and not in the contents."""
EXECUTED = ("first.md",)
"""Pages of docs whose cells are run, and which are notebooks as well."""
STABLE = "A stable part: a change has a deprecation period."
CHANGING = "A part that may change in a minor version. Names that no page of the reference has are internal."
REFERENCE = {
    "fedamp": ["fedamp.api", "fedamp.server.observers"],
    "accounting": [
        "fedamp.accounting",
        "fedamp.extensions.batches.mechanisms.TruncatedPoisson",
        "fedamp.extensions.batches.mechanisms.WithoutReplacement",
        "fedamp.extensions.correlated.spaced.BallsInBins",
        "fedamp.extensions.correlated.spaced.Cyclic",
        "fedamp.extensions.correlated.spaced.Spaced",
        "fedamp.extensions.foreign.claims.Claims",
        "fedamp.extensions.merging.mechanism.LinearCombination",
        "fedamp.extensions.modelmix.mechanism.MixedCoordinate",
        "fedamp.extensions.modelmix.mechanism.ModelMix",
    ],
    "strategies": ["fedamp.strategies.private.PrivateStrategy", "fedamp.server.custom_app.AppStrategy"],
    "client": ["fedamp.client.app"],
    "sweeps": ["fedamp.extensions.tune.sweep"],
    "trackers": [
        "fedamp.extensions.trackers.observers.TensorBoard",
        "fedamp.extensions.trackers.observers.Mlflow",
        "fedamp.extensions.trackers.observers.Wandb",
    ],
    "runs": ["fedamp.runs.run", "fedamp.runs.records"],
    "errors": ["fedamp.errors"],
}


def main() -> None:
    """Put the pages together, build, and check every link; ends with exit status 1 where one leads nowhere."""
    shutil.rmtree(BUILD, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for source in [*(ROOT / name for name in (*OUTSIDE, *BESIDE)), *sorted((ROOT / "docs").rglob("*.md"))]:
        text = executed(source) if source.name in EXECUTED else source.read_text(encoding="utf-8")
        write(place_of(source), LINK.sub(lambda link, source=source: moved(link, source), text))
    for name, modules in REFERENCE.items():
        tier = STABLE if name in ("fedamp", "accounting", "runs", "errors") else CHANGING
        write(Path("reference") / f"{name}.md", "\n\n".join([tier, *(f"::: {module}" for module in modules)]))
    put_katex(PAGES / "katex")
    shutil.copytree(ROOT / "docs" / "site" / "assets", PAGES / "assets")
    config = BUILD / "zensical.toml"
    shutil.copy(ROOT / "docs" / "site" / "zensical.toml", config)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)], check=True, cwd=BUILD
    )
    broken = list(broken_links(SITE))
    print(*broken, sep="\n")
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE}, {len(broken)} broken links")
    sys.exit(1 if broken else 0)


def put_katex(folder: Path) -> None:
    """The script, the style sheet and its fonts, from the registry of npm."""
    if shutil.which("npm") is None:
        sys.exit(f"npm was not found; it is needed to fetch {KATEX}, which sets the mathematics")
    package = (
        BUILD
        / subprocess.run(
            ["npm", "pack", "--silent", KATEX], check=True, cwd=BUILD, capture_output=True, text=True
        ).stdout.strip()
    )
    with tarfile.open(package) as archive:
        wanted = re.compile(r"package/dist/(katex\.min\.(?:js|css)|fonts/.*\.woff2)$")
        for member in archive:
            if found := wanted.match(member.name):
                member.name = found[1]
                archive.extract(member, folder, filter="data")


def place_of(source: Path) -> Path:
    """Where a file of the repository stands on the site."""
    path = source.relative_to(ROOT)
    if path == Path("README.md"):
        return Path("index.md")
    if path.parts[0] == "docs":
        path = Path(*path.parts[1:])
    elif path.suffix == ".md" and len(path.parts) == 1:
        path = Path(path.name.lower())
    elif path.suffix != ".md":
        path = Path("files") / path
    return path.with_name("index.md") if path.name == "README.md" else path


def write(place: Path, text: str) -> None:
    """A page of the site."""
    file = PAGES / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def moved(link: re.Match[str], source: Path) -> str:
    """A link from where the page is now; what it leads to beside pages is copied."""
    opening, target, anchor, closing = link.groups(default="")
    if urlsplit(target).scheme:
        return link[0]
    found = (source.parent / target).resolve()
    if found.is_dir():
        if not (found / "README.md").is_file():
            return f"{opening}{os.path.relpath(PAGES / place_of(source), (PAGES / place_of(source)).parent)}{closing}"
        found /= "README.md"
    if found.suffix != ".md" and found.is_file():
        copy = PAGES / place_of(found)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, copy)
    here = os.path.relpath(PAGES / place_of(found), (PAGES / place_of(source)).parent)
    return f"{opening}{here}{anchor}{closing}"


def executed(source: Path) -> str:
    """A page with the outputs of its cells; the notebook is beside it."""
    import jupytext
    from nbclient import NotebookClient
    from nbconvert import MarkdownExporter

    notebook = jupytext.read(source, fmt="md")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    folder = BUILD / "runs" / source.stem
    folder.mkdir(parents=True)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    place = (PAGES / place_of(source)).parent
    jupytext.write(notebook, place / f"{source.stem}.ipynb")
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    for name, content in resources["outputs"].items():
        (place / f"{source.stem}-{name}").write_bytes(content)
        text = text.replace(f"]({name})", f"]({source.with_name(f'{source.stem}-{name}')})")
    print(f"executed {source.name}")
    return f"{text}\n\n[This page as a notebook]({source.with_suffix('.ipynb')})\n"


class Links(html.parser.HTMLParser):
    """What a page leads to, and what in it can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors |= {name for name in (given.get("id"), given.get("name")) if name}
        self.targets += [target for key in ("href", "src") if (target := given.get(key))]


def broken_links(site: Path) -> list[str]:
    """Links, pictures and anchors of a site that are not there."""
    pages = {page.resolve(): Links(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    broken = []
    for page, links in pages.items():
        if page.name == "404.html":  # its links are those of the site's root
            continue
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target.startswith("/"):
                continue
            found = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            found = found / "index.html" if found.is_dir() else found
            anchored = not parts.fragment or found not in pages or unquote(parts.fragment) in pages[found].anchors
            if not found.exists() or not anchored:
                broken.append(f"{page.relative_to(site.resolve())}: {target}")
    return broken


if __name__ == "__main__":
    main()
