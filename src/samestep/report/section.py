"""Section: one part of a page. To add one, write a module with one and its template, and list it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from samestep.report.material import Material


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page, shown by assets/sections/NAME.html.

    `values` returns what the template shows, or None where the material has nothing for it: the section is
    then left out.
    """

    name: str
    title: str
    short: str = ""
    """What the list of sections calls it, if not by its title."""
    values: Callable[[Material], Mapping[str, Any] | None]
