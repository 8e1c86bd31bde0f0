"""The site that ``make docs`` builds: every page has its place, and every link leads somewhere."""

import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.documentation import PAGES, ROOT

NOT_LISTED = {"docs/research/papers/", "packaging/"}  # reached from other pages


def pages_of(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


def loaded(name):
    """A script of docs/site as a module."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site():
    return loaded("build")


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


@pytest.fixture(scope="module")
def prose():
    return loaded("prose")


@pytest.fixture(scope="module")
def matrix():
    return loaded("matrix")


def test_user_pages_stay_few_short_and_plain(prose):
    """To add words, take others away."""
    pages = prose.user_pages()
    lists = [page for page in pages if page.stem in ("limitations", "pitfalls", "matrix")]
    assert len(pages) - len(lists) <= 24
    assert sum(map(prose.words, pages)) - sum(map(prose.words, lists)) <= 30_000
    assert sum(map(prose.words, lists)) <= 3_200
    for page in pages:
        assert prose.listed(page.read_text("utf-8")) == [], page
    long = [each for page in pages for each in prose.long_sentences(page.read_text("utf-8"))]
    assert long == []


def test_helps_of_commands_are_short_and_plain(prose):
    for place, text in prose.helps():
        assert prose.listed(text) == prose.long_sentences(text) == [], place


def test_research_pages_have_hardly_any_long_sentence(prose):
    long = [each for page in prose.research_pages() for each in prose.long_sentences(page.read_text("utf-8"))]
    assert len(long) <= 10, long


@pytest.fixture(scope="module")
def numbers():
    return loaded("sources")


def test_measured_numbers_name_their_command_and_its_commit(numbers):
    """``python docs/site/sources.py --write`` writes the commits."""
    for page in numbers.pages():
        text, name = page.read_text("utf-8"), str(page.relative_to(ROOT))
        assert numbers.with_commits(text) == text, name
        assert name in numbers.COMPUTED or numbers.without_source(text) == [], name
    for (name, heading), (file, index) in numbers.WRITTEN_BY_HAND.items():
        own = (ROOT / name).read_text("utf-8").partition(f"{heading}\n")[2].partition("\n## ")[0]
        assert numbers.unexplained(list(numbers.tables(own))[index], ROOT / "benchmarks" / file) == [], name


def test_the_checker_of_numbers_finds_tables_without_a_source_and_changed_numbers(numbers, tmp_path):
    table = "| a | b |\n| --- | --- |\n| x | 1.5 |\n"
    page = f"# Title\n\nText.\n\n## One\n\n`python -m benchmarks.studies.demo`\n\n{table}\n## Two\n\n{table}"
    assert numbers.without_source(page) == ["## Two"]
    assert re.search(r"demo` at `[0-9a-f]{8}`\n", numbers.with_commits(page))
    assert numbers.with_commits(numbers.with_commits(page)) == numbers.with_commits(page)
    (tmp_path / "results.json").write_text('{"share": 0.9312, "seconds": 12.34}')
    assert numbers.unexplained(["93.1", "12", "12.4 (of 93)"], tmp_path / "results.json") == ["12.4"]


def test_the_checker_of_prose_finds_long_sentences_and_listed_words(prose):
    text = "Short. Word " + "word " * 25 + "end.\n\n```sh\n" + "code " * 40 + "\n```\n\n- The file is gone.\n"
    assert [len(each.split()) for each in prose.long_sentences(text)] == [27]
    assert prose.listed(text) == ["'gone': The file is gone."]


@pytest.mark.slow
def test_the_matrix_is_what_fedamp_says(matrix):
    lines = matrix.PAGE.read_text("utf-8").splitlines()
    reasons = [line.partition(". ")[2] for line in lines if re.match(r"\d+\. ", line)]
    for check_in, noise, model in dict.fromkeys(matrix.rows()):
        names = (check_in, noise) if model == "whole" else (model, check_in)
        [line] = [line for line in lines if line.startswith(f"| {' | '.join(names)} |")]
        cells = [cell.strip() for cell in line.split("|")[3:-1]]
        for column, cell in zip(matrix.COLUMNS, cells, strict=False):
            why = matrix.refusal(matrix.scenario(check_in, noise, model, column))
            assert cell == ("runs" if why is None else f"no ({reasons.index(why) + 1})"), (line, column)
        if model == "whole" and check_in in ("poisson", "batches") and noise == "independent":  # the quick ones
            assert tuple(cells[-2:]) == matrix.bracket(matrix.scenario(check_in, noise, model, "client"))


def flower_versions():
    """Those that pyproject.toml allows."""
    train = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["train"]
    bounds = re.search(r"flwr>=1\.(\d+),<1\.(\d+)", " ".join(train))
    return [f"1.{minor}" for minor in range(int(bounds[1]), int(bounds[2]))]


def test_badges_say_what_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    for name, said in {"python": pythons, "flower": flower_versions()}.items():
        assert f": {' | '.join(said)}</title>" in (ROOT / "docs" / "images" / f"{name}.svg").read_text()


def test_every_file_format_is_listed_with_its_version():
    listed = set(re.findall(r"\| (fedamp [\w ]+ \d+) \|", (ROOT / "docs" / "operations.md").read_text()))
    sources = " ".join(file.read_text() for file in (ROOT / "fedamp").rglob("*.py"))
    assert listed == set(re.findall(r'"(fedamp (?:[a-z]+ )+\d+)"', sources))


def test_links_between_pages_lead_to_headings(site):
    """As the site's own check of links, without building it."""
    for page in map(ROOT.joinpath, (*PAGES, *site.BESIDE)):
        for target, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", without_code(page)):
            found = (page.parent / target).resolve() if target else page
            if found.suffix == ".md":
                assert anchor in headings(found), f"{page.name}: {target}#{anchor}"


def without_code(page):
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def headings(page):
    """Anchors of a page, as the site and GitHub make them."""
    titles = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title)) for title in plain}


def test_the_pipeline_tests_every_promised_version_and_each_night_what_is_slow():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)}
    matrix = jobs["quick"]["strategy"]["matrix"]
    assert set(matrix["python"]) == promised
    assert {each["flower"] for each in matrix["include"]} == set(matrix["flower"]) == set(flower_versions())
    nightly = " ".join(jobs["nightly"]["strategy"]["matrix"]["command"])
    for command in ("make test-slow", "make docs", "make wheel", "tests.planted_faults"):
        assert command in nightly


def test_the_changelog_stays_short():
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 120
