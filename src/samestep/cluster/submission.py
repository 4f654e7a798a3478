"""Submission: requests written down and handed over, each job to the ledger as soon as it has an id."""

import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from samestep.cluster.engine import Engine, Files
from samestep.cluster.ledger import Entry, Ledger
from samestep.cluster.looking import look
from samestep.cluster.request import FILE, Request
from samestep.errors import LaunchError


def files_of(engine: Engine, request: Request, folder: Path) -> dict[Path, str]:
    """All files of a request, by their paths; nothing is written."""
    own = request.folder_in(folder)
    texts: Files = {FILE: request.text(), **engine.files(request)}
    return {own / name: text for name, text in texts.items()}


def submit(engine: Engine, requests: Sequence[Request], folder: Path) -> list[Entry]:
    """Hand over all requests, in order; what was handed over before one that is refused stays."""
    ledger = Ledger(folder)
    files = [files_of(engine, request, folder) for request in requests]  # refuses before anything is written
    engine.check()
    _check_free(ledger, requests)
    entries = []
    for request, texts in zip(requests, files, strict=True):
        own = request.folder_in(folder)
        try:
            own.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise LaunchError(
                f"The jobs were to be written to {folder}, which cannot be written ({error.strerror}): "
                "choose another folder with --out."
            ) from None
        now = time.time()
        for number, (item, id) in enumerate(zip(request.items, engine.submit(own, request), strict=True)):
            entry = Entry(
                id=id,
                engine=engine.name,
                request=request.name,
                item=number,
                name=item.name,
                submitted_at=now,
            )
            ledger.submitted(entry)
            entries.append(entry)
    return entries


def _check_free(ledger: Ledger, requests: Sequence[Request]) -> None:
    """Refuse to hand over what was handed over before and is not over yet."""
    names = {item.name for request in requests for item in request.items}
    if not any(entry.name in names for entry in ledger.entries):
        return
    for seen in look(ledger):
        if seen.entry.name in names and not seen.sight.is_over and seen.sight.state != "unknown":
            raise LaunchError(
                f"{seen.entry.name} was handed over before as {seen.entry.id} and is {seen.sight.state}: "
                f"wait for it, cancel it with `samestep jobs {quote(str(ledger.folder))} --cancel`, or "
                "choose another folder with --out."
            )
