"""The site: built from docs/ without a warning, and without anything that would be fetched from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages == {path.stem for path in site.glob("*.html")} - {"404"}


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.glob("*.html"):
        found = re.findall(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"(https?:)?//", page.read_text())
        assert not found, page.name


def test_formulas_are_drawn_by_the_browser(site):
    for name in ("gap", "projection"):
        text = (site / f"{name}.html").read_text()
        assert "<math" in text
        assert "$$" not in text
        assert "&amp;" not in re.findall(r"<math.*?</math>", text, re.DOTALL)[0]


def test_the_reference_has_the_public_names(site):
    import samestep

    text = (site / "reference.html").read_text()
    for name in samestep.__all__:
        assert name == "__version__" or f'id="samestep.{name}"' in text, name
