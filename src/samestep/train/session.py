"""Stub, being replaced."""

from samestep.world import World, enter, join


class Session(World):
    seed = 0

    def reset(self) -> None:
        self.share = None


def init(seed: int = 0) -> Session:
    rank, size, local_rank, device, launcher = join()
    session = Session(rank=rank, size=size, local_rank=local_rank, device=device, launcher=launcher)
    enter(session)
    return session
