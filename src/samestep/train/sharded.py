"""The exchange of gradients in bitwise mode: shards are added up in one fixed tree, whatever the world.

A rank runs its shards one after the other and adds up neighbours as they come. What it has in the end, one
sum for each node that makes up its range, is cut into a slice for each rank; a rank gets its slice of all
nodes, adds them up along the rest of the tree, and hands the finished slice to all. Where ranges are whole
nodes, that moves what a ring all-reduce does: (N-1)/N of the gradients to the owners of slices and as much
back. Other ranges are made up of more nodes, and those are sent one by one. What is so small that its way
counts more than its size is sent whole, to be added up by everybody.

Only the last shard of a rank overlaps with the exchange: its gradients leave bucket by bucket as they get
ready. A gradient that a shard does not have counts as zeros wherever another shard has one, so that adding
within a rank and adding between ranks give the same bits, the signs of zeros included.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import Parameter

from samestep.data.shard import cut
from samestep.device import Spares, beside, catch_up, is_on_host
from samestep.train.exchange import Numbers, bucketed, refuse_sparse, refuse_twice, view_of
from samestep.train.shard_buffers import ShardBuffers
from samestep.train.tree import Node, TreeSum, nodes_of
from samestep.world import Pending, World

Gradients = list[Tensor | None]

_ALIGNMENT = 64
_SMALL_BYTES = 16 << 10
_SMALL_BYTES_OF_TWO = 1 << 20
"""Up to so many bytes are sent whole; between two ranks that moves no more than slices do."""


class _Bucket:
    """Tensors that travel together, in a flat buffer for each of this rank's nodes; one becomes the sum.

    A bucket that is sent whole can take `num_riders` float64 numbers along, which saves a message.
    """

    def __init__(
        self,
        likes: Sequence[Tensor],
        world: World,
        nodes: list[list[Node]],
        spares: Spares,
        *,
        num_riders: int = 0,
    ) -> None:
        self._world = world
        self._nodes = nodes
        self._spares = spares
        self._dtype, device = likes[0].dtype, likes[0].device
        width = self._dtype.itemsize
        # places begin where a tensor of its own would: some kernels add in another order elsewhere
        unit = max(1, _ALIGNMENT // width)
        sizes = [-(-size // unit) * unit for size in (*(like.numel() for like in likes), len(likes))]
        self._num_bytes = sum(sizes) * width
        self._raws = [
            torch.zeros(self._num_bytes + 8 * num_riders, dtype=torch.uint8, device=device)
            for _ in nodes[world.rank]
        ]
        self._bounds = [
            cut(sum(sizes), world.size, rank) if self.is_sliced else (0, sum(sizes))
            for rank in range(world.size)
        ]
        self.riders = [self._taken_apart(raw)[-1] for raw in self._raws] if num_riders else []
        parts = [self._taken_apart(raw)[0].split(sizes) for raw in self._raws]
        self.views = [[view_of(part, like) for part, like in zip(row, likes, strict=False)] for row in parts]
        """The places of the tensors, for each of this rank's nodes."""
        self._num_users = [row[-1][: len(likes)] for row in parts]
        self._received: list[list[Tensor]] = []
        self._pending: Pending | None = None

    @property
    def is_sliced(self) -> bool:
        """Whether ranks add up a slice each; what is small is added up by everybody."""
        return self._num_bytes > (_SMALL_BYTES if self._world.size > 2 else _SMALL_BYTES_OF_TWO)

    def launch(self, sums: list[Gradients]) -> None:
        """Send to each rank its slice, or all, of the sums of this rank's nodes."""
        for views, users, tensors in zip(self.views, self._num_users, sums, strict=True):
            missing = [i for i, tensor in enumerate(tensors) if tensor is None]
            users.fill_(1)
            if missing:
                torch._foreach_zero_([views[i] for i in missing])
                users[missing] = 0
            elsewhere = [
                (view, tensor)
                for view, tensor in zip(views, tensors, strict=True)
                if tensor is not None and tensor is not view
            ]
            if elsewhere:
                torch._foreach_copy_([view for view, _ in elsewhere], [tensor for _, tensor in elsewhere])
        world = self._world
        own = [self._part_of(raw, world.rank) for raw in self._raws]
        others = [rank for rank in range(world.size) if rank != world.rank]
        self._received = [
            own if rank == world.rank else [self._spares.take(own[0]) for _ in nodes]
            for rank, nodes in enumerate(self._nodes)
        ]
        self._pending = world.post(
            {rank: [self._part_of(raw, rank) for raw in self._raws] for rank in others},
            {rank: self._received[rank] for rank in others},
        )

    def pass_on(self) -> None:
        """Add up what came along the tree; if it is this rank's slice, hand it to all."""
        world = self._world
        with beside(self._raws[0].device):
            self.wait()
            tree: TreeSum[list[Tensor]] = TreeSum(_added_all)
            for nodes, parts in zip(self._nodes, self._received, strict=True):
                for node, part in zip(nodes, parts, strict=True):
                    tree.push(node, self._taken_apart(part))
            own = self._taken_apart(self._part_of(self._raws[0], world.rank))
            for mine, total in zip(own, tree.total(), strict=True):
                if mine.data_ptr() != total.data_ptr():
                    mine.copy_(total)
            for rank, parts in enumerate(self._received):
                if rank != world.rank:
                    self._spares.give_back(parts)
            self._received = []
            if not self.is_sliced:
                return
            raw = self._raws[0]
            others = [rank for rank in range(world.size) if rank != world.rank]
            self._pending = world.post(
                {rank: [self._part_of(raw, world.rank)] for rank in others},
                {rank: [self._part_of(raw, rank)] for rank in others},
            )

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def totals(self, is_missing: Sequence[bool]) -> Gradients:
        """The sums of all shards; None where this rank `is_missing` one and no other has it either."""
        self.wait()
        catch_up(self._raws[0].device)
        if not any(is_missing):
            return list(self.views[0])
        users = self._num_users[0].tolist()
        return [
            view if count != 0 or not missing else None
            for view, count, missing in zip(self.views[0], users, is_missing, strict=True)
        ]

    def _part_of(self, raw: Tensor, rank: int) -> Tensor:
        """What a rank adds up, as bytes."""
        if not self.is_sliced:
            return raw
        start, stop = (bound * self._dtype.itemsize for bound in self._bounds[rank])
        return raw[start:stop]

    def _taken_apart(self, raw: Tensor) -> list[Tensor]:
        """The numbers in bytes that were sent: those of the bucket, and its riders."""
        if raw.numel() <= self._num_bytes:
            return [raw.view(self._dtype)]
        return [raw[: self._num_bytes].view(self._dtype), raw[self._num_bytes :].view(torch.float64)]


class ShardedExchange:
    """Sums gradients, and some numbers beside them, over the shards of a step; the same bits on any world.

    `add` before the backward of each turn and `end_turn` after it; `finish` when the last one is over.
    """

    def __init__(
        self, parameters: Sequence[Parameter], world: World, buffers: ShardBuffers, *, seats: int
    ) -> None:
        assert world.shards is not None
        self.parameters = list(parameters)
        self._world = world
        self._buffers = buffers
        self._num_seats = seats
        ranges = [cut(world.shards, world.size, rank) for rank in range(world.size)]
        self._nodes = [list(nodes_of(*shards)) for shards in ranges]
        self._start, self._stop = ranges[world.rank]
        places = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        groups = bucketed(self.parameters) if world.size > 1 else []
        self._indices = [[places[id(parameter)] for parameter in group] for group in groups]
        self._groups = groups
        self._spares = Spares()
        self._buckets = [_Bucket(group, world, self._nodes, self._spares) for group in groups]
        self._numbers_bucket: _Bucket | None = None
        """A bucket of their own for the numbers, unless they ride in the last one."""
        self._missing = [[False] * len(indices) for indices in self._indices]
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, number))
            for number, group in enumerate(groups)
            for parameter in group
        ]
        self._num_numbers = 0
        self._in_flight: _Bucket | None = None
        self._leaf = torch.zeros(0)
        self._forget()

    def unit(self, weight: Tensor | float) -> float:
        """A guess at the sum of weights of a first step, from its first shard; the same on all ranks."""
        share = self._world.share
        assert share is not None
        guess = torch.as_tensor(weight, dtype=torch.float64).cpu() * share.batch / max(1, share.count)
        self._world.broadcast_(guess)
        return float(guess) or 1.0

    def add(self, numbers: Numbers, *, is_last: bool) -> None:
        """Count the numbers of a turn, and what its forward changed in buffers; before its backward.

        The backward of the last turn may send gradients as they get ready.
        """
        share = self._world.share
        assert share is not None
        seats = torch.as_tensor(numbers, dtype=torch.float64, device=self._world.device)
        leaf = torch.cat([seats, *self._buffers.moved(share.count)])
        if share.part:
            leaf += self._leaf
        self._leaf = leaf
        absent = partial(torch.zeros_like, leaf)
        if share.count and share.ends_shard:
            self._numbers.fill(share.shard, absent)
            self._numbers.push(Node(share.shard, 1), leaf)
        if is_last:
            if not share.count:  # a wish to stop is heard from a rank without examples as well
                self._numbers.push(Node(self._numbers.stop, 1), leaf)
            self._numbers.fill(self._stop, absent)
            self._is_running = True
            if self._world.size > 1:
                self._send_numbers([vector for _, vector in self._numbers.sums])

    def _send_numbers(self, vectors: list[Tensor]) -> None:
        """Send the sums of this rank's nodes: with the last bucket, or ahead where that is sent in slices."""
        if self._num_numbers != vectors[0].numel():
            self._num_numbers = vectors[0].numel()
            if self._buckets and not self._buckets[-1].is_sliced:
                self._buckets[-1] = _Bucket(
                    self._groups[-1], self._world, self._nodes, self._spares, num_riders=self._num_numbers
                )
            else:
                self._numbers_bucket = _Bucket(vectors[:1], self._world, self._nodes, self._spares)
        if self._numbers_bucket is not None:
            self._numbers_bucket.launch([[vector] for vector in vectors])
            self._in_flight = self._numbers_bucket
        else:
            for seats, vector in zip(self._buckets[-1].riders, vectors, strict=True):
                seats.copy_(vector)

    def end_turn(self) -> None:
        """Put the gradients of a shard aside that was not this rank's last."""
        share = self._world.share
        assert share is not None
        if self._is_running or not share.ends_shard:
            return
        self._gradients.fill(share.shard, self._absent)
        self._gradients.push(Node(share.shard, 1), self._taken(range(len(self.parameters))))

    def finish(self) -> Numbers:
        """Make each gradient the sum over all shards, settle the buffers, and tell the numbers' sums."""
        share = self._world.share
        assert share is not None
        if self._world.size > 1:
            while self._num_launched < len(self._buckets):
                self._launch_next()
            assert self._in_flight is not None
            self._in_flight.pass_on()
            for bucket, indices, is_missing in zip(self._buckets, self._indices, self._missing, strict=True):
                for index, total in zip(indices, bucket.totals(is_missing), strict=True):
                    self.parameters[index].grad = total
            numbers = self._totals_of_numbers()
        else:
            (gradients,) = self._sums_of(range(len(self.parameters)), [])
            for parameter, total in zip(self.parameters, gradients, strict=True):
                parameter.grad = total
            numbers = self._numbers.total()
        self._forget()
        self._buffers.settle(numbers[self._num_seats :], share.batch)
        seats = numbers[: self._num_seats]
        return seats.tolist() if is_on_host(seats) else seats.clone()

    def _totals_of_numbers(self) -> Tensor:
        if self._numbers_bucket is None:
            return self._buckets[-1].riders[0]
        (numbers,) = self._numbers_bucket.totals([False])
        assert numbers is not None
        return numbers

    def abandon(self) -> None:
        """Forget what was added since the last step."""
        for bucket in self._buckets:
            bucket.wait()
        if self._numbers_bucket is not None:
            self._numbers_bucket.wait()
        self._forget()

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _forget(self) -> None:
        self._gradients: TreeSum[Gradients] = TreeSum(_added, self._start)
        self._numbers: TreeSum[Tensor] = TreeSum(Tensor.add_, self._start)
        self._ready = [len(indices) for indices in self._indices]
        self._num_launched = 0
        self._is_running = False
        self._in_flight = None

    def _absent(self) -> Gradients:
        return [None] * len(self.parameters)

    def _taken(self, indices: Sequence[int]) -> Gradients:
        """The gradients of this backward, taken away from the parameters."""
        taken: Gradients = []
        for index in indices:
            parameter = self.parameters[index]
            refuse_sparse(parameter)
            taken.append(parameter.grad)
            parameter.grad = None
        return taken

    def _sums_of(self, indices: Sequence[int], places: list[list[Tensor]]) -> list[Gradients]:
        """The sums of this rank's nodes, for some parameters, when its last shard is done with them.

        A sum that is made last is made in `places`, those of its node, if there are any.
        """
        share = self._world.share
        assert share is not None
        place_at = {node.start: row for node, row in zip(self._nodes[self._world.rank], places, strict=False)}
        place_of: dict[int, list[Tensor]] = {}

        def added(left: Gradients, right: Gradients) -> Gradients:
            return _added(left, right, place_of.get(id(left)))

        tree: TreeSum[Gradients] = TreeSum(added, self._start)
        for node, gradients in self._gradients.sums:
            row = [gradients[index] for index in indices]
            if node.start in place_at:  # a node is finished by adding to the part that it begins with
                place_of[id(row)] = place_at[node.start]
            tree.push(node, row)
            for index in indices:  # the last to hold them is then the one that adds them up
                gradients[index] = None

        def absent() -> Gradients:
            return [None] * len(indices)

        if share.count:
            tree.fill(share.shard, absent)
            tree.push(Node(share.shard, 1), self._taken(indices))
        tree.fill(self._stop, absent)
        if self._world.size == 1:
            return [tree.total()]
        return [gradients for _, gradients in tree.sums]

    def _on_gradient(self, number: int, parameter: Tensor) -> None:
        if not self._is_running:
            return
        if number < self._num_launched:
            refuse_twice(parameter)
        self._ready[number] -= 1
        while self._num_launched < len(self._buckets) and self._ready[self._num_launched] == 0:
            self._launch_next()

    def _launch_next(self) -> None:
        number = self._num_launched
        bucket = self._buckets[number]
        sums = self._sums_of(self._indices[number], bucket.views)
        self._missing[number] = [all(row[i] is None for row in sums) for i in range(len(sums[0]))]
        bucket.launch(sums)
        # one behind: by now the slices of the bucket before have had the time of a bucket to arrive
        if self._in_flight is not None:
            self._in_flight.pass_on()
        self._in_flight = bucket
        self._num_launched += 1


def _added(left: Gradients, right: Gradients, place: list[Tensor] | None = None) -> Gradients:
    """The sum of two nodes, in `place` or in the memory of the left one; no gradient beside one is zeros."""
    if place is None:
        both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
        if both:
            torch._foreach_add_([a for a, _ in both], [b for _, b in both])
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        one = b if a is None else a
        if one is None:
            continue
        if place is not None:
            left[i] = torch.add(one, 0.0 if a is None or b is None else b, out=place[i])
        elif a is None or b is None:
            left[i] = one.add_(0.0)
    return left


def _added_all(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    for a, b in zip(left, right, strict=True):
        a.add_(b)
    return left
