"""The page as a browser shows it: on a phone and on a wide screen, in light and in dark, and printed."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from fedamp.extensions.pages.page import write_report
from tests.tools import BROWSER

WIDTHS = (400, 1000, 1600)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

MEASURE = """
<pre id="found"></pre>
<script>
const frames = [...document.querySelectorAll('iframe')];
const seen = frame => {
  const inside = frame.contentDocument, root = inside.documentElement;
  const words = [...inside.querySelectorAll('h1,h2,h3,p,dt,dd,li,figcaption')];
  const colour = element => frame.contentWindow.getComputedStyle(element);
  return {
    width: frame.clientWidth, scrolls: root.scrollWidth, ground: colour(inside.body).backgroundColor,
    ink: colour(inside.body).color, smallest: Math.min(...words.map(each => parseFloat(colour(each).fontSize))),
    outside: words.filter(each => each.getBoundingClientRect().right > frame.clientWidth + 1).length,
    pictures: [...inside.images].map(each => each.complete && each.naturalWidth > 0 ? each.clientWidth : 0),
    filters: [...inside.images].map(each => colour(each).filter),
    cards: new Set([...inside.querySelectorAll('.card')].map(each => each.offsetLeft)).size,
  };
};
window.onload = () => { document.getElementById('found').textContent = JSON.stringify(frames.map(seen)); };
</script>
"""


def browse(folder: Path, *options: str) -> str:
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def measured(page: str, folder: Path, scheme: str) -> list[dict]:
    """What the page looks like in frames of several widths."""
    srcdoc = page.replace("&", "&amp;").replace('"', "&quot;")
    frame = '<iframe style="width: {}px; height: 900px; border: 0" srcdoc="{}"></iframe>'
    frames = [frame.format(width, srcdoc) for width in WIDTHS]
    file = folder / "frames.html"
    file.write_text("<!doctype html><meta charset='utf-8'>" + "".join(frames) + MEASURE)
    preferred = f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}"
    options = [preferred, "--window-size=1700,1000", "--dump-dom"]
    found = re.search(r'<pre id="found">(.*?)</pre>', browse(folder, *options, f"file://{file}"))
    assert found is not None
    return json.loads(found[1])


def brightness(colour: str) -> float:
    red, green, blue = (int(value) for value in re.findall(r"\d+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_at_every_width_the_page_is_whole_and_can_be_read(runs, tmp_path, scheme):
    page = write_report([runs["hidden"]], tmp_path / "page.html").read_text()
    found = measured(page, tmp_path, scheme)
    assert [each["width"] for each in found] == list(WIDTHS)
    for each in found:
        assert each["scrolls"] <= each["width"]  # nothing moves sideways
        assert each["outside"] == 0
        assert each["smallest"] >= 14  # CSS pixels
        assert len(each["pictures"]) == 1  # quality and cost, by round
        assert min(each["pictures"]) > 300
        assert (brightness(each["ground"]) < 0.2) == (scheme == "dark")
        assert abs(brightness(each["ground"]) - brightness(each["ink"])) > 0.7
        assert all((filter_ != "none") == (scheme == "dark") for filter_ in each["filters"])  # white pictures glare
    assert [each["cards"] for each in found] == [1, 3, 3]  # columns


@pytest.mark.slow
def test_it_can_be_printed(runs, tmp_path):
    page = write_report([runs["hidden"]], tmp_path / "page.html")
    browse(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}", f"file://{page}")
    content = (tmp_path / "page.pdf").read_bytes()
    (count,) = re.findall(rb"/Count (\d+)", content)
    assert 2 <= int(count) <= 6
