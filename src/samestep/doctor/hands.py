"""Hands: what a machine does when the first asks it to: measure a link, look for a file, start ranks.

The first has hands as well and asks itself in the same words, so that all machines are treated alike.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from samestep.doctor.link import measure, why
from samestep.doctor.ranks import Ranks
from samestep.doctor.wire import Channel

CONNECT_S = 3.0
SEE_S = 5.0
"""How long a file may take to be seen on another machine: network file systems look anew after seconds."""
TICK_S = 0.02
IDLE_S = 600.0
"""For the first to ask on; that it is there at all is known sooner."""

Request = Mapping[str, Any]


class Hands:
    """Does what is asked, one thing after the other; `ranks` starts those of this process."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._known: dict[str, Callable[[Request], dict[str, Any]]] = {
            "link": _link,
            "see": _see,
            "exchange": self._exchange,
        }

    def do(self, request: Request) -> dict[str, Any]:
        """The answer to one request; one that is not known is not done."""
        action = self._known.get(str(request.get("do")))
        return {"error": f"{request.get('do')!r} is not known here"} if action is None else action(request)

    def serve(self, channel: Channel) -> bool:
        """Do what the first asks until it says that this is all; the first's verdict."""
        while True:
            request = channel.receive(within_s=IDLE_S)
            if request.get("do") == "end":
                return bool(request.get("is_fine"))
            channel.send(self.do(request))

    def _exchange(self, request: Request) -> dict[str, Any]:
        return self._ranks.run(
            first=int(request["first"]),
            size=int(request["size"]),
            address=str(request["address"]),
            port=int(request["port"]),
        )


def _link(request: Request) -> dict[str, Any]:
    try:
        return measure(request["address"], int(request["port"]), connect_s=CONNECT_S).to_json()
    except OSError as error:
        return {"error": why(error)}


def _see(request: Request) -> dict[str, Any]:
    """How long it takes until a file holds what was written elsewhere; None if that is not to be seen."""
    path, began = Path(request["path"]), time.monotonic()
    while (waited := time.monotonic() - began) < SEE_S:
        try:
            if path.read_text() == request["token"]:
                return {"seen_s": waited}
        except OSError:
            pass
        time.sleep(TICK_S)
    return {"seen_s": None}
