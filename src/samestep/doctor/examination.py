"""Examination: all that the doctor does, in order, led by the first of the processes that a launcher started.

    roll call       who is there; who is missing is named
    folder          whether a file that the first writes is seen by the others
    links           each pair of machines: reachable, how late, how fast, clocks
    exchange        all ranks together, as in a training; not tried where a link is missing, for it would hang

Waits are short throughout: what does not answer is named, not waited for.
"""

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from samestep.doctor.checks import judge
from samestep.doctor.diagnosis import Between, Diagnosis, Exchange, Node
from samestep.doctor.facts import facts_here
from samestep.doctor.hands import Hands
from samestep.doctor.link import Answering, why
from samestep.doctor.ranks import MOST_S, Ranks
from samestep.doctor.rollcall import Attendant, Roll, call, cannot_come, come
from samestep.errors import LaunchError
from samestep.launch.machine import check_ranks, free_port, gpus_at
from samestep.launcher import Seat

COME_S = 15.0
ANSWER_S = 60.0
"""For one link or one look at a folder: a stream of the least size takes a minute at 100 kbit/s."""


def attend(seat: Seat, *, ranks: int, come_s: float = COME_S) -> str | None:
    """Be one of the others; None when the first has asked all it wants, else why it could not be reached."""
    with _ready(seat, ranks) as (own, hands):
        try:
            with come(seat, own, within_s=come_s) as channel:
                hands.serve(channel)
        except OSError as error:
            return cannot_come(seat, own, error)
    return None


def examine(seat: Seat, *, ranks: int, out: Path | None = None, come_s: float = COME_S) -> Diagnosis:
    """As the first: all that can be found out, and what is wrong with it."""
    began = time.monotonic()
    with _ready(seat, ranks) as (own, hands):
        roll = call(seat, own, within_s=come_s)
        with contextlib.closing(roll):
            found = Diagnosis(
                launcher=seat.launcher,
                num_processes=seat.count,
                num_ranks=ranks * seat.count,
                meeting=seat.address,
                missing=roll.missing,
                waited_s=time.monotonic() - began,
                folder=None if out is None else str(out),
            )
            _Asking(seat, ranks, roll, hands).fill(found, out)
            found.findings = judge(found)
            for attendant in roll.present.values():
                if attendant.channel is not None:
                    with contextlib.suppress(OSError):
                        attendant.channel.send({"do": "end", "is_fine": found.is_fine})
    return found


@contextlib.contextmanager
def _ready(seat: Seat, ranks: int) -> Iterator[tuple[Attendant, Hands]]:
    """This process as others see it, and what it can do for them."""
    check_ranks(ranks, len(gpus_at(seat, ranks)))
    seat.check_meeting()
    with contextlib.closing(Answering()) as answering:
        facts = facts_here(seat, ranks=ranks)
        own = Attendant(index=seat.index, facts=facts, port=answering.port)
        yield own, Hands(Ranks(seat=seat, num=ranks))


class _Asking:
    """Asks the processes that came, each in words that `Hands` knows."""

    def __init__(self, seat: Seat, ranks: int, roll: Roll, hands: Hands) -> None:
        self._seat = seat
        self._ranks = ranks
        self._roll = roll
        self._hands = hands

    def fill(self, found: Diagnosis, out: Path | None) -> None:
        """Put into the diagnosis what can be found out."""
        nodes = self._roll.nodes
        seen = self._look(nodes, out)
        found.links = self._links(nodes)
        told: Mapping[str, Any] = {}
        if not found.missing and all(link.error is None for link in found.links):
            told = self._exchange()
        found.exchange_error = told.get("error")
        found.exchange_latency_s = told.get("latency_s")
        found.exchanges = [Exchange(**row) for row in told.get("exchanges", ())]
        for attendant in nodes:
            facts = attendant.facts
            there = [rank for rank in told.get("ranks", ()) if rank["node"] == facts.node]
            ranks = self._ranks * sum(a.facts.node == facts.node for a in self._roll.present.values())
            found.nodes.append(
                Node(
                    index=attendant.index,
                    num_ranks=ranks,
                    facts=facts,
                    devices=tuple(rank["device"] for rank in there),
                    versions={**facts.versions, **(there[0]["versions"] if there else {})},
                    seen_s=seen.get(attendant.index),
                )
            )

    def _ask(self, index: int, request: Mapping[str, Any], *, within_s: float = ANSWER_S) -> dict[str, Any]:
        channel = self._roll.present[index].channel
        if channel is None:
            return self._hands.do(request)
        try:
            return channel.ask(request, within_s=within_s)
        except OSError as error:
            return {"error": why(error)}

    def _look(self, nodes: Sequence[Attendant], out: Path | None) -> dict[int, float | None]:
        """How long a file in `out` took to be seen on each machine."""
        if out is None:
            return {}
        try:
            out.mkdir(parents=True, exist_ok=True)
            path, token = out.resolve() / f".doctor-{secrets.token_hex(4)}", secrets.token_hex(8)
            path.write_text(token)
        except OSError as error:
            raise LaunchError(
                f"--out {out} cannot be written to ({error.strerror}): name a folder that can."
            ) from None
        try:
            request = {"do": "see", "path": str(path), "token": token}
            with ThreadPoolExecutor(len(nodes)) as pool:
                answers = pool.map(lambda node: self._ask(node.index, request).get("seen_s"), nodes)
                return dict(zip((node.index for node in nodes), answers, strict=True))
        finally:
            path.unlink(missing_ok=True)

    def _links(self, nodes: Sequence[Attendant]) -> list[Between]:
        links: list[Between] = []
        for turn in rounds(len(nodes)):
            with ThreadPoolExecutor(max(1, len(turn))) as pool:
                links += pool.map(lambda pair: self._link(nodes[pair[0]], nodes[pair[1]]), turn)
        return sorted(links, key=lambda link: (link.first, link.second))

    def _link(self, first: Attendant, second: Attendant) -> Between:
        request = {"do": "link", "address": second.facts.address, "port": second.port}
        told = self._ask(first.index, request)
        if "error" in told:
            return Between(first=first.index, second=second.index, error=str(told["error"]))
        known = {name: told.pop(name) for name in Between.__dataclass_fields__ if name in told}
        return Between(first=first.index, second=second.index, details=told, **known)

    def _exchange(self) -> dict[str, Any]:
        """What the ranks of all processes found together."""
        own = self._seat
        base = {
            "do": "exchange",
            "size": self._ranks * own.count,
            "address": own.address,
            "port": free_port(),
        }
        present = sorted(self._roll.present)
        with ThreadPoolExecutor(len(present)) as pool:
            answers = list(
                pool.map(
                    lambda index: self._ask(
                        index, {**base, "first": index * self._ranks}, within_s=MOST_S + ANSWER_S
                    ),
                    present,
                )
            )
        errors = [answer["error"] for answer in answers if "error" in answer]
        return {"error": min(errors, key=_is_consequence)} if errors else answers[0]


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of so many, in rounds in which each has one partner at most (the circle method)."""
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    found = []
    for _ in range(len(places) - 1):
        pairs = zip(places[: len(places) // 2], reversed(places[len(places) // 2 :]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def _is_consequence(error: str) -> bool:
    """Whether a rank only tells of another that it lost."""
    return "onnection" in error or "could not meet" in error
