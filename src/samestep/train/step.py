"""Step: one optimizer update that means the same on any number of ranks.

The gradient of a step is that of `sum of losses / sum of weights` over the whole global batch, plus a
penalty that counts once. Ranks add up gradients of sums; the division comes last, when the sum of weights
is known, because no rank knows it before. Clipping, scaling and the schedule see the finished gradient.

With U the sum of weights of the step before and W that of this step, every rank runs backward on
`losses / U` and the summed gradient is multiplied by U / W. Where the weights are constant that factor is
exactly 1, and left out where the host knows it; and gradients keep the size that they have on one device, so
that fp16 loss scaling sees nothing unusual.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.optim import Optimizer

from samestep import phase
from samestep.device import is_on_host
from samestep.errors import ConfigError, LossError
from samestep.findings import Finding
from samestep.train import stop, uncompiled
from samestep.train.conditions import refuse_operator
from samestep.train.exchange import Exchange, Numbers
from samestep.train.randomness import Randomness
from samestep.train.shard_buffers import ShardBuffers
from samestep.train.sharded import ShardedExchange
from samestep.train.slice_state import States, uncut_states, whole_states
from samestep.train.sliced import SlicedExchange
from samestep.train.totals import Totals
from samestep.train.turn_order import TurnOrder
from samestep.train.update import UPDATES, Update, apply, cannot_be_sharded, pays, why_whole
from samestep.world import World

Number = Tensor | float
_NUM_VALUES = 3  # sum of losses, sum of weights, wishes to stop


class NonFiniteLoss(LossError):
    """The loss of a step is infinite or not a number; raised before the update, on all ranks, on request."""


class Stepper:
    """The steps of one optimizer, and what has to be known from one to the next."""

    def __init__(
        self,
        optimizer: Optimizer,
        world: World,
        randomness: Randomness,
        buffers: ShardBuffers,
        order: TurnOrder,
        scaler: GradScaler | None,
        index: int,
    ) -> None:
        self.optimizer = optimizer
        self.num_steps = 0
        self.totals: Totals | None = None
        self.after_first_step: Callable[[], None] | None = None
        self._world = world
        self._randomness = randomness
        self._buffers = buffers
        self._order = order
        self.scaler = scaler
        self._scaler_state: dict[str, Any] | None = None
        self._index = index
        self.update_setting: Update = "whole"
        self._exchange: Exchange | ShardedExchange | None = None
        self._made_for: tuple[Update, bool] | None = None
        self._unit: Number | None = None  # U of the module's docstring
        self._seeds: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}

    def state(self) -> dict[str, Any]:
        """What the next step needs, free of the world."""
        return {
            "num_steps": self.num_steps,
            "unit": None if self._unit is None else float(self._unit),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def optimizer_states(self) -> States:
        """The optimizer's state for whole parameters, free of the world; all ranks call it."""
        exchange = self._exchange
        if isinstance(exchange, SlicedExchange):
            return whole_states(self.optimizer, exchange.slices, self._world)
        return self.optimizer.state

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on after the step at which `state` was taken."""
        self.num_steps = state["num_steps"]
        self._unit = state["unit"]
        self._scaler_state = state["scaler"]
        if self.scaler is not None:
            self.use_scaler(self.scaler)

    def use_scaler(self, scaler: GradScaler) -> None:
        """Scale the loss with `scaler`, which takes up the state that was restored."""
        if self.scaler is not None and self.scaler is not scaler:
            raise ConfigError("world.step was given another scaler than before for the same optimizer.")
        self.scaler = scaler
        if self._scaler_state:
            scaler.load_state_dict(self._scaler_state)
            self._scaler_state = None

    def use_update(self, update: Update) -> None:
        """Update whole parameters, or slices, from the next step on."""
        if update not in UPDATES:
            raise ConfigError(f"update is {update!r}; it must be one of {', '.join(UPDATES)}.")
        self.update_setting = update

    def begin(self, turn: int) -> None:
        """Make ready for the forward of a turn."""
        if self._world.shards is not None:
            self._order.begin(self._world.share, self.optimizer)
        phase.enter("forward", step=self.num_steps + 1)
        if turn == 0:
            self.abandon()
            uncompiled.zero_grad(self.optimizer)
        self._randomness.begin_turn(self._index, self.num_steps, turn)

    def backward(
        self, loss_sum: Tensor, weight: Number, penalty: Tensor | None, turn: int, turns: int
    ) -> None:
        """Add the gradients of one turn; in the last one the exchange starts as they get ready."""
        phase.enter("backward")
        world = self._world
        exchange = self._exchange_of_now()
        is_idle = world.is_idle
        if is_idle:
            weight = 0.0
        if self._unit is None:
            self._look_at_weight(weight)
            self._unit = exchange.unit(weight)
        is_last = turn == turns - 1
        wish = float(is_last and stop.requested() is not None)
        if is_idle:
            if world.shards is None:
                self._keep_company(loss_sum, exchange)
            exchange.add([0.0, 0.0, wish], is_last=is_last)
        else:
            # on the host the number itself: the tensor is the user's, and may be changed in place later
            seen = loss_sum.item() if is_on_host(loss_sum) else loss_sum.detach()
            exchange.add(self._values(seen, weight, wish), is_last=is_last)
            roots, seeds = [loss_sum], [self._seed(loss_sum, 1.0)]
            if penalty is not None:
                # by the weight of this turn, so that over all turns and ranks U / W makes it count once
                roots.append(penalty)
                seeds.append(self._seed(penalty, weight))
            uncompiled.backward(roots, seeds)
        exchange.end_turn()

    def end_turn(self) -> None:
        """The block of a turn is over, and nothing was wrong."""
        if self._world.shards is not None:
            self._order.end(self._world.share)

    def _keep_company(self, loss_sum: Tensor, exchange: "Exchange | ShardedExchange") -> None:
        """Go back through the stand-in batch: the others' synchronised norms need this rank on the way.

        Its gradients count nothing, and are thrown away rather than multiplied by 0, which would keep a NaN.
        """
        kept = [parameter.grad for parameter in exchange.parameters]
        self.optimizer.zero_grad(set_to_none=True)
        uncompiled.backward([loss_sum], [torch.zeros_like(loss_sum)])
        for parameter, gradient in zip(exchange.parameters, kept, strict=True):
            parameter.grad = gradient

    def update(self, *, clip_norm: float | None, schedule: Any, stop_on_nan: bool) -> None:
        """Finish the gradient, clip it, update the parameters and move the schedule on."""
        exchange = self._exchange
        assert exchange is not None
        phase.enter("exchange")
        values = exchange.finish()
        phase.enter("update")
        loss_sum, weight, _ = values
        if stop_on_nan and not math.isfinite(float(loss_sum)):
            raise NonFiniteLoss(
                f"The loss of step {self.num_steps + 1} is {float(loss_sum)}; the update was not made."
            )
        assert self._unit is not None
        factor = _ratio(self._unit, weight)
        self._unit = _positive(weight, self._unit)
        grad_norm = apply(
            self.optimizer, exchange.parameters, getattr(exchange, "slices", None), self._world,
            factor=factor, clip_norm=clip_norm, scaler=self.scaler,
        )  # fmt: skip
        if schedule is not None:
            schedule.step()
        self.totals = Totals(values, grad_norm)
        self.num_steps += 1
        if self.after_first_step is not None:
            look, self.after_first_step = self.after_first_step, None
            look()
        self._randomness.begin_between(self._index, self.num_steps)
        phase.enter("other", step=self.num_steps + 1)

    def abandon(self) -> None:
        """Give up a step that an exception ended; the next one starts clean."""
        if self._exchange is not None:
            self._exchange.abandon()

    def close(self) -> None:
        """Leave the parameters as they would be without this stepper."""
        if self._exchange is not None:
            self._exchange.close()

    def _exchange_of_now(self) -> "Exchange | ShardedExchange":
        """The exchange of the optimizer's trainable parameters; made anew when these or settings change."""
        now = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        known = [] if self._exchange is None else self._exchange.parameters
        made_for = self.update_setting, uncompiled.sees_gradients(self.optimizer)
        is_known = len(now) == len(known) and all(map(operator.is_, now, known))
        if self._exchange is None or not is_known or made_for != self._made_for:
            if isinstance(self._exchange, SlicedExchange):
                uncut_states(self.optimizer, self._exchange.slices, self._world)
            self.close()
            self._made_for = made_for
            self._exchange = self._new_exchange(now)
        return self._exchange

    def _new_exchange(self, parameters: list[Parameter]) -> "Exchange | ShardedExchange":
        world, setting = self._world, self.update_setting
        if world.size > 1 and (setting == "sharded" or (setting == "auto" and pays(parameters))):
            reason = why_whole(self.optimizer, parameters, world)
            if reason is None:
                return SlicedExchange(parameters, world, self.optimizer)
            if setting == "sharded":
                world.notice(cannot_be_sharded(reason))
        if world.shards is None:
            return Exchange(parameters, world, seats=_NUM_VALUES)
        return ShardedExchange(parameters, world, self._buffers, seats=_NUM_VALUES)

    def _look_at_weight(self, weight: Number) -> None:
        share = self._world.share
        if share is not None and share.count > 1 and float(weight) == 1.0:
            self._world.notice(_weight_is_one(share.count))

    def _values(self, loss_sum: Number, weight: Number, wish: float) -> Numbers:
        """What ranks add up beside gradients; plain numbers where nobody has to wait for them."""
        parts = [loss_sum, weight, wish]
        on_host = [part for part in parts if not isinstance(part, Tensor)]
        if len(on_host) == len(parts):
            return on_host
        return torch.stack([_scalar(part, torch.float64, self._world.device) for part in parts])

    def _seed(self, root: Tensor, factor: Number) -> Tensor:
        assert self._unit is not None
        number = factor / self._unit
        if isinstance(number, Tensor):
            seed = number.to(root.device, root.dtype)
        else:  # where weights are constant, so is the seed: a new one costs a tiny step one part in a hundred
            key = number, root.dtype, root.device
            if key not in self._seeds:
                self._seeds = {key: _scalar(number, root.dtype, root.device)}
            seed = self._seeds[key]
        return seed if self.scaler is None else self.scaler.scale(seed)


class Step:
    """One pass through `with world.step(optimizer) as step:`, which is one turn of a step.

    The update happens when the block of the last turn ends; an exception inside leaves the weights alone.
    """

    __slots__ = ("_clip_norm", "_has_backward", "_schedule", "_stepper", "_stop_on_nan", "_turn", "_turns")

    def __init__(
        self,
        stepper: Stepper,
        turn: int,
        turns: int,
        clip_norm: float | None,
        schedule: Any,
        stop_on_nan: bool,
    ) -> None:
        self._stepper = stepper
        self._turn = turn
        self._turns = turns
        self._clip_norm = clip_norm
        self._schedule = schedule
        self._stop_on_nan = stop_on_nan
        self._has_backward = False

    @property
    def is_last_turn(self) -> bool:
        """Whether the end of this block is the end of the step."""
        return self._turn == self._turns - 1

    @property
    def totals(self) -> Totals:
        """What the step saw over all ranks; after the block of the last turn."""
        if self._stepper.totals is None:
            raise LossError(
                "step.totals was asked for before a step was over; read it after the `with` block."
            )
        return self._stepper.totals

    def __enter__(self) -> "Step":
        self._stepper.begin(self._turn)
        return self

    def backward(
        self, sum: Tensor, weight: Number | None = None, penalty: Tensor | None = None, outputs: Any = None
    ) -> None:
        """Backward of this rank's sum of losses; `weight` is the sum of their weights.

        `penalty` is a term of the loss that belongs to no example; it counts once, not once a rank or turn.
        Where turns have different ones, they are averaged by weight.
        `outputs` is not looked at: a whole `Loss` can be passed on as `*loss`.
        """
        if self._has_backward:
            raise LossError(
                "step.backward was called twice in one block. Add the losses up and call it once, or let the "
                "loader cut the batch into turns: world.loader(…, accumulate=k)."
            )
        self._has_backward = True
        loss_sum, weight = checked(sum, weight)
        self._stepper.backward(loss_sum, weight, penalty, self._turn, self._turns)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            phase.enter("other")
            self._stepper.abandon()
            if kind is RuntimeError:
                refuse_operator(str(rest[0]))
            return
        if not self._has_backward:
            raise LossError("The block of world.step ended without a call of step.backward.")
        self._stepper.end_turn()
        if self.is_last_turn:
            self._stepper.update(
                clip_norm=self._clip_norm, schedule=self._schedule, stop_on_nan=self._stop_on_nan
            )


def checked(loss_sum: Any, weight: Any) -> tuple[Tensor, Number]:
    """The pair that a step needs, or a LossError that says what it got instead."""
    rule = (
        "the loss must return (sum of losses, sum of weights), two numbers; for a mean, multiply by the count"
    )
    if not isinstance(loss_sum, Tensor) or loss_sum.numel() != 1:
        got = f"a tensor of shape {tuple(loss_sum.shape)}" if isinstance(loss_sum, Tensor) else repr(loss_sum)
        raise LossError(f"The sum of losses is {got}, not a tensor with one number: {rule}.")
    if weight is None:
        raise LossError(f"The loss came without the sum of weights: {rule}.")
    if isinstance(weight, Tensor):
        if weight.numel() != 1:
            raise LossError(f"The sum of weights is a tensor of shape {tuple(weight.shape)}: {rule}.")
        weight = weight.item() if is_on_host(weight) else weight.detach().reshape(())
    elif isinstance(weight, bool) or not isinstance(weight, int | float):
        raise LossError(f"The sum of weights is {weight!r}: {rule}.")
    if not isinstance(weight, Tensor) and not 0 <= weight < math.inf:
        raise LossError(f"The sum of weights is {float(weight)}; it must be 0 or more, and finite.")
    if not loss_sum.requires_grad and torch.is_grad_enabled():
        raise LossError("The sum of losses does not depend on any parameter that is trained.")
    # a view would be one more node of the graph, for nothing where there is no dimension
    return loss_sum.reshape(()) if loss_sum.dim() else loss_sum, weight


def _weight_is_one(count: int) -> Finding:
    return Finding(
        cause="weight-is-one",
        message=f"The loss of {count} examples came with the weight 1, as a mean would.",
        evidence={"examples": count, "weight": 1.0},
        fix=(
            "Give the sum of the losses and their number: a rank with fewer examples would otherwise count "
            "as much as one with more. For a mean over n examples: step.backward(mean * n, n)."
        ),
    )


def _scalar(number: Number, dtype: torch.dtype, device: torch.device) -> Tensor:
    # filled on the device: a copy from the host would wait for what the device has still to do
    if isinstance(number, Tensor):
        return number.to(device, dtype)
    return torch.full((), number, dtype=dtype, device=device)


def _positive(weight: Number, otherwise: Number) -> Number:
    """The weight, unless it is 0: a step without any weight must not become the unit of the next."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, weight, otherwise)
    return weight if weight > 0 else otherwise


def _ratio(unit: Number, weight: Number) -> Number:
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, unit / weight, torch.zeros_like(weight))
    return unit / weight if weight > 0 else 0.0
