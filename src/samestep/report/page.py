"""The page: one HTML file about a folder, which opens from disk and needs no network.

Everything that is not ours is escaped. Style and script stand in the page and are let in by their digests;
the page's own policy forbids the network and every other script.
"""

import base64
import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from samestep import __version__
from samestep.errors import RecordError
from samestep.report.headline import headline
from samestep.report.material import Material
from samestep.report.sections import SECTIONS
from samestep.report.wording import visible


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page as text, and the names of the sections that it has."""

    html: str
    sections: tuple[str, ...]

    def write(self, path: Path) -> int:
        """Write it as a whole or not at all; returns its size in bytes."""
        content = self.html.encode("utf-8")
        half = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            half.write_bytes(content)
            half.replace(path)
        except OSError as error:
            half.unlink(missing_ok=True)
            raise RecordError(
                f"The report was to be written to {path}, but that is not possible ({error.strerror}); "
                "name another file with -o."
            ) from None
        return len(content)


def page_of(folder: Path, *, now: datetime | None = None) -> Page:
    """The page about what is in `folder`; refuses one that has nothing to report."""
    material = Material.read(folder)
    shown = [(section, values) for section in SECTIONS if (values := section.values(material)) is not None]
    html = (
        _templates()
        .get_template("page.html")
        .render(
            name=material.folder.resolve().name,
            folder=str(material.folder),
            headline=headline(material),
            sections=shown,
            policy=_policy(),
            style=_asset("style.css"),
            script=_asset("script.js"),
            samestep=__version__,
            now=(now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )
    return Page(html=html, sections=tuple(section.name for section, _ in shown))


def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("samestep.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )


def _asset(name: str) -> Markup:
    """A file of ours, which needs no escaping."""
    path = resources.files("samestep.report") / "assets" / name
    return Markup(path.read_text(encoding="utf-8"))  # noqa: S704


def _policy() -> str:
    """What a browser may do with the page: our style and our script, by their digests, and nothing else."""
    digests = {
        name: base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()
        for name in ("style.css", "script.js")
    }
    return (
        f"default-src 'none'; style-src 'sha256-{digests['style.css']}'; "
        f"script-src 'sha256-{digests['script.js']}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
