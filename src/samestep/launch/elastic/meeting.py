"""Meeting: torch's c10d rendezvous as members use it, to agree on who is which rank."""

import time
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]  # noqa: TID251  not the store of a world
    PrefixStore,
    Store,
    TCPStore,
)
from torch.distributed.elastic.rendezvous import (  # noqa: TID251
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (  # noqa: TID251
    C10dRendezvousBackend,
)

from samestep.launch.limits import Limits

__all__ = ["HERE", "LOST", "ROUND", "Meeting", "Store", "TCPStore", "hasten"]

HERE = "127.0.0.1"
MEET_S = 3.0
"""How long members wait for one another before they look again how many are left."""
_SIGN_OF_LIFE_S = 5
_FOR_EVER_S = 100 * 365 * 24 * 3600
LOST = "samestep/lost"
ROUND = "samestep/round"


class Meeting(RendezvousHandler):
    """Torch's c10d rendezvous, of all members that are left, no more and no fewer.

    After a loss it is another rendezvous, for one member fewer: so nobody waits for one that is gone, and
    nobody begins before the last has come.
    """

    def __init__(self, store: Store, limits: Limits, *, number: int, address: str = HERE) -> None:
        self._limits = limits
        self._number = number
        self._address = address
        self.members: list[int] = []
        """The numbers of those that met last, by rank."""
        self._store = store
        self._num_lost = -1
        self._handler: dynamic_rendezvous.DynamicRendezvousHandler
        self.is_held = False
        """While true, members that wait for a new round are not heard of."""

    @property
    def num_left(self) -> int:
        return self._limits.most - int(self._store.add(LOST, 0))

    def next_rendezvous(self) -> RendezvousInfo:
        while True:
            num_left = self.num_left
            if num_left < self._limits.least:
                raise RendezvousClosedError
            self._use(num_left)
            try:
                return self._in_order(self._handler.next_rendezvous())
            except RendezvousTimeoutError:
                continue

    def _in_order(self, met: RendezvousInfo) -> RendezvousInfo:
        """The same with ranks in the order of members; torch goes by addresses, whose order is nobody's."""
        told = PrefixStore("samestep", met.store)
        told.set(f"member/{met.rank}", str(self._number))
        self.members = sorted(int(told.get(f"member/{rank}")) for rank in range(met.world_size))
        rank = self.members.index(self._number)
        where = RendezvousStoreInfo.build(rank, told, local_addr=self._address)
        return RendezvousInfo(met.store, rank, met.world_size, where)

    def _use(self, num_left: int) -> None:
        num_lost = self._limits.most - num_left
        if num_lost == self._num_lost:
            return
        self._num_lost = num_lost
        run_id = f"samestep-{num_lost}"
        self._handler = dynamic_rendezvous.DynamicRendezvousHandler.from_backend(
            run_id=run_id,
            store=self._store,
            backend=C10dRendezvousBackend(self._store, run_id),
            min_nodes=num_left,
            max_nodes=num_left,
            local_addr=self._address,
            timeout=dynamic_rendezvous.RendezvousTimeout(join=timedelta(seconds=MEET_S)),
            # members are not given up for lack of a sign of life: torch tells that by the time of day, which
            # may jump, and whoever is gone is known to the host at once
            keep_alive_max_attempt=_FOR_EVER_S // _SIGN_OF_LIFE_S,
            keep_alive_interval=_SIGN_OF_LIFE_S,
        )
        # torch looks once a second, out of regard for stores that serve a thousand machines
        holder: Any = getattr(self._handler, "_state_holder", None)
        if hasattr(holder, "_cache_duration"):
            holder._cache_duration = 0

    def num_nodes_waiting(self) -> int:
        return 0 if self.is_held else self._handler.num_nodes_waiting()

    def is_closed(self) -> bool:
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """End the wait of all for the next round, also where they already know of a loss."""
        self._handler.set_closed()
        self._use(self.num_left)
        self._handler.set_closed()

    def shutdown(self) -> bool:
        return self._handler.shutdown()

    def get_backend(self) -> str:
        return self._handler.get_backend()

    def get_run_id(self) -> str:
        return self._handler.get_run_id()

    @property
    def use_agent_store(self) -> bool:
        return False  # ranks of a later round must not read addresses of an earlier one (pytorch #135712)


def hasten() -> None:
    """Have members see one another at once; without this a round takes two seconds more."""
    if hasattr(dynamic_rendezvous, "_delay"):
        dynamic_rendezvous._delay = lambda seconds: time.sleep(0.02)
