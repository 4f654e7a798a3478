"""Gathering: the hosts of a run come together before any rank is started, and leave together at the end.

A run on one machine has one host, and nothing here waits. Knows the store and a file in the run's folder, by
which it is told whether all machines mean the same folder.
"""

import contextlib
import os
import secrets
import time
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # noqa: TID251  no world's

from samestep.errors import LaunchError
from samestep.launch.elastic.meeting import HERE, Store, TCPStore
from samestep.launcher import Seat

COME_S = 300.0
"""How long the others are waited for: file systems with Python on them are slow when many start at once."""
SHARED_S = 30.0
"""How long a file may take to be seen on another machine."""
LEAVE_S = 15.0
"""How long the first host keeps the store for others that still end."""
STORE_S = 20.0
"""How long members wait for what others are to tell them at once."""
TICK_S = 0.05

_TOKEN, _COME, _ALL, _LEFT, _REFUSAL = (
    f"samestep/{name}" for name in ("token", "come", "all", "left", "refusal")
)


def store_at(seat: Seat) -> Store:
    """The store of the run, which the first host or the launcher keeps; waits for it to be there."""
    if seat.count == 1:
        return TCPStore(HERE, seat.port, is_master=False, timeout=timedelta(seconds=STORE_S))
    try:
        store = TCPStore(seat.address, seat.port, is_master=False, timeout=timedelta(seconds=COME_S))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise LaunchError(
            f"{seat} could not reach the first at {seat.address}:{seat.port} within {COME_S:.0f} s: {reason}"
        ) from None
    store.set_timeout(timedelta(seconds=STORE_S))
    if not seat.has_store:
        return store
    # a launcher that starts all again keeps its store, with what the earlier attempt left there
    return PrefixStore(f"samestep-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def gather(folder: Path, store: Store, seat: Seat) -> None:
    """Return when all hosts of the run are here and see the same folder."""
    if seat.count == 1:
        return
    mark = folder / "agent" / "gathering"
    if seat.is_first:
        mark.parent.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(8)
        mark.write_text(token)
        store.set(_TOKEN, token)
        _await_others(store, seat)
        store.set(_ALL, "")
        return
    store.wait([_TOKEN], timedelta(seconds=COME_S))
    token = store.get(_TOKEN).decode()
    deadline = time.monotonic() + SHARED_S
    while _text_of(mark) != token:
        if time.monotonic() > deadline:
            refusal = (
                f"{folder} is not one folder for all machines: {os.uname().nodename} ({seat}) does not see "
                "what the first has written there. Choose one on a shared file system with --out."
            )
            store.set(_REFUSAL, refusal)
            raise LaunchError(refusal)
        time.sleep(TICK_S)
    store.add(_COME, 1)
    await_all(store, seat)


def await_all(store: Store, seat: Seat) -> None:
    """Return when the first host has seen all others."""
    if seat.count > 1:
        store.wait([_ALL], timedelta(seconds=COME_S + SHARED_S))


def leave(store: Store, seat: Seat) -> None:
    """Tell the first that this host ends, or, as the first, wait for all others to have said so."""
    if seat.count == 1:
        return
    deadline = time.monotonic() + LEAVE_S
    with contextlib.suppress(RuntimeError):  # whoever keeps the store may be gone
        gone = store.add(_LEFT, 1)
        while seat.is_first and gone < seat.count and time.monotonic() < deadline:
            time.sleep(TICK_S)
            gone = store.add(_LEFT, 0)


def _await_others(store: Store, seat: Seat) -> None:
    deadline = time.monotonic() + COME_S
    while (come := int(store.add(_COME, 0))) < seat.count - 1:
        if store.check([_REFUSAL]):
            raise LaunchError(store.get(_REFUSAL).decode())
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{come + 1} of the {seat.count} processes that {seat.launcher} started came to "
                f"{seat.address}:{seat.port} within {COME_S:.0f} s: look at what the others said."
            )
        time.sleep(TICK_S)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
