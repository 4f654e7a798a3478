"""What the site needs beyond Markdown: formulas without a network, and links that leave the pages."""

import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r"^\$\$\n(?P<text>.*?)\n\$\$$", re.MULTILINE | re.DOTALL)
_OUTSIDE = re.compile(r"\[(?P<text>[^\]]+)\]\(\.\./(?P<path>[^)]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Formulas become MathML, which browsers know; files that the site lacks are named."""
    text = _FORMULA.sub(lambda found: convert(found["text"], display="block"), markdown)
    return _OUTSIDE.sub(lambda found: f"{found['text']} (`{found['path']}`)", text)
