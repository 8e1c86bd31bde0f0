"""The site that ``make docs`` builds: every page has its place, and every link leads somewhere."""

import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest

from tests.documentation import PAGES, ROOT

NOT_LISTED = {"docs/research/papers/", "packaging/"}  # reached from other pages


def pages_of(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "site" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_contents_once_and_every_entry_is_a_page(site):
    listed = list(pages_of(tomllib.loads((ROOT / "docs" / "site" / "zensical.toml").read_text())["project"]["nav"]))
    assert len(listed) == len(set(listed))
    written = {
        str(site.place_of(ROOT / page)) for page in PAGES if not any(page.startswith(each) for each in NOT_LISTED)
    }
    assert set(listed) == written | {f"reference/{name}.md" for name in site.REFERENCE}


def test_links_that_lead_nowhere_are_found(site, tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there"></a><a href="b.html#gone"></a><img src="c.png">')
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html"></a><a href="https://example.org/gone"></a>')
    assert site.broken_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.png"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="the extra docs is not installed")
def test_the_site_is_built_its_tutorials_run_and_its_links_lead_somewhere(site):
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "build.py"], check=True, cwd=ROOT)
    first = (site.SITE / "first.html").read_text()
    assert "accuracy" in first
    assert re.search(r'<img[^>]*src="(?:data:image/|[^"]*first-output_)', first)  # the picture of the run
    assert 'id="fedamp.accounting.Allocation"' in (site.SITE / "reference" / "accounting.html").read_text()
    pages = {page.relative_to(site.SITE): page.read_text(encoding="utf-8") for page in site.SITE.rglob("*.html")}
    for place, text_ in pages.items():
        fetched = re.findall(r'<(?:script|link|img)\b[^>]*?(?:src|href)="(https?://[^"]*)', text_)
        assert fetched == [], f"{place} needs the internet"
        assert not re.search(r":(?:attr|class|data|exc|func|meth|mod):(?=`|<code>)", text_), f"{place} shows a role"
    assert (site.SITE / "katex" / "katex.min.js").is_file()
    assert list((site.SITE / "katex" / "fonts").glob("*.woff2"))
    for page in ("accounting", "correlated-noise", "k-of-t"):
        assert 'class="arithmatex"' in (site.SITE / "research" / f"{page}.html").read_text()
