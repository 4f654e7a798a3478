"""What the site needs beyond Markdown: formulas without a network, and the examples with their files."""

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_EXAMPLES = Path(__file__).parent.parent.parent / "examples"
_SHOWN = {".csv", ".md", ".py", ".yaml", ".yml"}
_MADE = {"__pycache__", "runs"}
_FORMULA = re.compile(r"^\$\$\n(?P<text>.*?)\n\$\$$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Examples stand beside docs in the repository, and below it on the site."""
    for path in sorted(_EXAMPLES.rglob("*")):
        place = path.relative_to(_EXAMPLES.parent)
        if path.suffix in _SHOWN and not _MADE.intersection(place.parts):
            files.append(File.generated(config, place.as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Formulas become MathML, which browsers know; links lead to where a file is on the site."""
    text = _FORMULA.sub(lambda found: convert(found["text"], display="block"), markdown)
    if page.file.src_uri.startswith("examples/"):
        return text.replace("](../docs/", "](../").replace("](../../docs/", "](../../")
    return text.replace("](../examples/", "](examples/")
