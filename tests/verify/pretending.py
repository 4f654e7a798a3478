"""The steps of a tiny training on any number of ranks, and the rows that a probe would write about them."""

import numpy as np
from rows import DDP, TENSORS, WHERE, digest, events, row, summary
from sharing import contiguous

from samestep.experiment import pass_key
from samestep.observations import multiset_print
from samestep.observed import (
    Batch,
    Call,
    Clip,
    Criterion,
    End,
    Evaluated,
    Gradient,
    Group,
    Layer,
    Loader,
    Loss,
    Model,
    Optimizer,
    Pass,
    PassEnd,
    Randomness,
    RandomState,
    Said,
    State,
    Statistic,
    Step,
)

FULL = 24
_RNG = np.random.default_rng(5)
INPUTS = _RNG.normal(size=(96, 4)).astype(np.float32) + np.float32(0.5)
TARGETS = (INPUTS @ np.float32([[1.0], [-2.0], [0.5], [0.25]]) + np.float32(0.3)).astype(np.float32)
TARGETS += _RNG.normal(size=(96, 1)).astype(np.float32)


class Training:
    """One run of a `Tiny` on `size` ranks, in lockstep."""

    def __init__(self, tiny, size, experiment):
        self.tiny, self.size, self.experiment = tiny, size, experiment
        seed = 1 if tiny.is_seeded else experiment.seed or 100 + len(tiny.asked)
        rng = np.random.default_rng(seed)
        first = {"fc.weight": rng.normal(size=(1, 4)), "fc.bias": rng.normal(size=(1,))}
        first = {name: values.astype(np.float32) for name, values in first.items()}
        self.weights = [{name: values.copy() for name, values in first.items()} for _ in range(size)]
        self.running = [np.zeros(4, np.float32) for _ in range(size)]
        self.step = 1
        self.found = [[] for _ in range(size)]
        self.before_step = [[] for _ in range(size)]

    def rows(self):
        tiny = self.tiny
        for rank in range(self.size):
            self._begin(rank)
        for number in range(1, tiny.num_passes + 1):
            self._pass(number)
            if tiny.metric:
                self._evaluate(number)
        for rank in range(self.size):
            self._put(
                rank, End, num_steps=self.step - 1, events_after=events(*self.before_step[rank]), seconds=1.0
            )
        return self.found

    def _put(self, rank, kind, /, **fields):
        self.found[rank].append(row(kind, **fields))

    def _begin(self, rank):
        tiny, size = self.tiny, self.size
        if tiny.knows_world:
            self._put(rank, Group, rank=rank, world_size=size)
        settings = {"num_replicas": str(size), "rank": str(rank)}
        a_rank = tiny.batch_size(size) // size // tiny.turns(size)
        self._put(rank, Loader, num_examples=tiny.num_examples, batch_size=a_rank, sampler_settings=settings)
        self._put(rank, Loader, loader=1, num_examples=tiny.num_evaluated, where=WHERE["evaluation loader"])

    def _begin_model(self, rank):
        tiny = self.tiny
        buffers = ("norm.running_mean float32 (4,)",) if tiny.norm else ()
        self._put(
            rank, Model,
            tensors=TENSORS + buffers,
            norms=(row(Layer),) if tiny.norm else (),
            dropouts=(row(Layer, name="dropout", kind="Dropout", p=0.2),) if tiny.has_dropout else (),
            wraps=(DDP,) if tiny.knows_world and self.size > 1 else (),
        )  # fmt: skip
        self._states(rank, 0)

    def _states(self, rank, number):
        for name, values in self.weights[rank].items():
            self._put(rank, State, step=number, name=name, summary=summary(values, name))
        if self.tiny.norm:
            name = "norm.running_mean"
            values = summary(self.running[rank], name)
            self._put(rank, State, step=number, name=name, role="buffer", summary=values)

    def _pass(self, number):
        """Go through batches by turns: as planned, or as an experiment gives them to one rank."""
        tiny, size = self.tiny, self.size
        turns = tiny.turns(size)
        order = tiny.order(number, tiny.num_examples, size)
        batches, length = [], tiny.batch_size(size)
        for begin in range(0, len(order), length):
            for part in contiguous(order[begin : begin + length], turns):
                batches.append(tiny.share(part, size))
        given = self.experiment.batches.get(pass_key(0, number))
        if given is not None and size == 1:
            batches = [[list(batch)] for batch in given]
        for rank in range(size):
            self._put(rank, Pass, step=self.step, number=number, num_planned=len(batches),
                      random=_random("pass", number, rank))  # fmt: skip
        for begin in range(0, len(batches), turns):
            self._take_step(number, begin, batches[begin : begin + turns])
        for rank in range(size):
            indices = [i for shares in batches for i in shares[rank]]
            self._put(rank, PassEnd, step=self.step, number=number, num_batches=len(batches),
                      num_examples=len(indices), multiset=multiset_print(indices))  # fmt: skip

    def _take_step(self, number, begin, turns):
        tiny, size = self.tiny, self.size
        is_full = self.step <= FULL
        local = [{name: np.zeros_like(v) for name, v in weights.items()} for weights in self.weights]
        names = [list(before) for before in self.before_step]
        for turn, shares in enumerate(turns):
            xs = [self._fetch(rank, number, begin + turn + 1, shares[rank]) for rank in range(size)]
            means = self._means(xs)
            total = sum(tiny.targets(i) for share in shares for i in share)
            for rank in range(size):
                made = self._forward(rank, shares[rank], xs[rank], means[rank], total)
                for name, gradient in made.items():
                    local[rank][name] += gradient / np.float32(len(turns))
                names[rank] += ["batch", "forward", "backward"]
        applied, clips = self._exchange(local, names)
        for rank in range(size):
            for name in self.weights[rank]:
                for stage, gradients in (("local", local), ("applied", applied)):
                    if is_full:
                        told = summary(gradients[rank][name], name)
                        self._put(
                            rank, Gradient, step=self.step, name=name, stage=stage, summary=told,
                            num_backward=len(turns),
                        )  # fmt: skip
                self.weights[rank][name] -= np.float32(tiny.rate(size)) * applied[rank][name]
            if is_full:
                self._states(rank, self.step)
            if self.step == 1:
                self._put(rank, Optimizer)
            self._put(
                rank, Step, step=self.step, is_full=is_full, lr=(tiny.rate(size),), clips=tuple(clips[rank]),
                num_forward=len(turns), num_backward=len(turns), events=events(*names[rank], "update"),
            )  # fmt: skip
            self.before_step[rank] = []
        self.step += 1

    def _fetch(self, rank, number, batch, indices):
        x = INPUTS[list(indices)]
        moved = ()
        if self.tiny.has_augmentation:
            is_seeded = self.experiment.are_examples_seeded
            keys = [(i,) if is_seeded else (rank, self.step, i, self.size) for i in indices]
            noise = [np.random.default_rng(key).normal(size=4) for key in keys]
            x = (x + np.reshape(noise, x.shape)).astype(np.float32)
            moved = ("numpy",)
        if self.step <= FULL:
            self._put(
                rank, Batch, step=self.step, number=number, batch=batch, indices=tuple(indices), moved=moved,
                num_examples=len(indices), examples=tuple(digest(values.tobytes()) for values in x),
            )  # fmt: skip
        return x

    def _means(self, xs):
        """By what each rank centres its inputs."""
        if not self.tiny.norm:
            return [np.zeros(4, np.float32)] * self.size
        if self.experiment.are_norms_frozen:
            return self.running
        means = [x.sum(0) / np.float32(len(x)) for x in xs]
        if self.tiny.norm == "global":
            count = np.float32(sum(map(len, xs)))
            means = [np.sum([x.sum(0) for x in xs], axis=0, dtype=np.float32) / count] * self.size
        # as DistributedDataParallel does before each forward pass
        self.running = [np.float32(0.9) * self.running[0] + np.float32(0.1) * mean for mean in means]
        return means

    def _forward(self, rank, indices, x, mean, total):
        """The rows of a rank's forward and backward pass, and its gradients."""
        tiny, is_first = self.tiny, self.step == 1
        if is_first and not any(isinstance(each, Model) for each in self.found[rank]):
            self._begin_model(rank)
        rows = tuple(digest(values.tobytes()) for values in x)
        hidden, moved = x - mean, ()
        if tiny.has_dropout and not self.experiment.is_dropout_off:
            mask = np.random.default_rng((rank, self.step, self.size)).random(hidden.shape) > 0.2
            hidden, moved = hidden * mask.astype(np.float32), ("torch",)
        weights = self.weights[rank]
        output = hidden @ weights["fc.weight"].T + weights["fc.bias"]
        error = output - TARGETS[list(indices)]
        counts = np.float32([[tiny.targets(i)] for i in indices]).reshape(-1, 1)
        num_targets = sum(map(tiny.targets, indices))
        many = self.size if tiny.exchange == "mean" else 1
        divisor = {"mean": num_targets, "sum": 1, "global": total / many}[tiny.reduction]
        scale = np.float32(2 / divisor)
        counted = counts * error
        gradients = {"fc.weight": scale * (counted.T @ hidden), "fc.bias": scale * counted.sum(0)}
        for name, values in weights.items():
            gradients[name] += np.float32(tiny.penalty) * tiny.penalised(values)
        if self.step > FULL:
            return gradients
        self._put(rank, RandomState, step=self.step, random=_random(rank))
        if tiny.norm:
            if is_first and not self.experiment.are_norms_frozen:
                self._put(rank, Statistic)
            self._call(rank, "norm", hidden, kind="BatchNorm1d")
        self._call(rank, "fc", output, kind="Linear")
        self._call(rank, "", output, rows=rows, moved=moved)
        reduction = "mean" if tiny.reduction == "mean" else "sum"
        self._put(rank, Criterion, step=self.step, reduction=reduction, num_targets=num_targets,
                  num_rows=len(indices))  # fmt: skip
        loss = float((counted * error).sum() / divisor)
        self._put(rank, Loss, step=self.step, value=loss)
        return gradients

    def _call(self, rank, name, output, *, kind="Net", **more):
        self._put(rank, Call, step=self.step, name=name, kind=kind, outputs=(summary(output),), **more)

    def _exchange(self, local, names):
        """The gradients that are applied; and the clippings of each rank."""
        tiny, size = self.tiny, self.size
        clips = [[] for _ in local]
        if tiny.clip == "before":
            local = [self._clipped(local[rank], clips[rank], names[rank]) for rank in range(size)]
        applied = local
        if tiny.exchange != "none":
            divisor = np.float32(size if tiny.exchange == "mean" else 1)
            total = {
                key: np.sum([of[key] for of in local], axis=0, dtype=np.float32) / divisor for key in local[0]
            }
            applied = [{key: values.copy() for key, values in total.items()} for _ in local]
            if size > 1 and tiny.clip == "before":
                for each in names:
                    each.append("all_reduce")
        if tiny.clip == "after":
            applied = [self._clipped(applied[rank], clips[rank], names[rank]) for rank in range(size)]
        return applied, clips

    def _clipped(self, gradients, clips, names):
        norm = float(np.sqrt(sum((values**2).sum() for values in gradients.values())))
        clips.append(row(Clip, limit=self.tiny.limit, norm=norm, after=len(names)))
        names.append("clip")
        factor = np.float32(min(1.0, self.tiny.limit / norm))
        return {name: values * factor for name, values in gradients.items()}

    def _evaluate(self, number):
        """Each rank evaluates its share in batches of three; the first says what came of it."""
        tiny = self.tiny
        totals = []
        for rank, share in enumerate(contiguous(list(range(tiny.num_evaluated)), self.size)):
            key = pass_key(1, number)
            plan = [share[i : i + 3] for i in range(0, len(share), 3)]
            batches = self.experiment.on_rank(rank).batches.get(key, plan)
            self._put(rank, Pass, step=self.step, loader=1, number=number, num_planned=len(plan))
            weights = self.weights[rank]
            self._put(rank, Evaluated, step=self.step, model=0, print=digest(str(weights)))
            errors = []
            for i, indices in enumerate(batches):
                self._put(
                    rank, Batch, step=self.step, loader=1, number=number, batch=i + 1, indices=tuple(indices),
                    num_examples=len(indices),
                )  # fmt: skip
                output = INPUTS[list(indices)] @ weights["fc.weight"].T + weights["fc.bias"]
                self._put(rank, Call, step=self.step, is_training=False, has_gradients=False)
                errors += [float(e) ** 2 for e in (output - TARGETS[list(indices)])[:, 0]]
            done = [i for batch in batches for i in batch]
            self._put(rank, PassEnd, step=self.step, loader=1, number=number, num_batches=len(batches),
                      num_examples=len(done), multiset=multiset_print(done))  # fmt: skip
            totals.append((sum(errors), len(errors)))
            self.before_step[rank] += ["evaluation"] + ["all_reduce"] * (tiny.metric != "first")
        means = [total / count for total, count in totals]
        value = {
            "merged": sum(total for total, _ in totals) / sum(count for _, count in totals),
            "averaged": sum(means) / len(means),
            "first": means[0],
            "kept": means[0],
        }[tiny.metric]
        numbers = (float(number), round(value, 6))
        self._put(0, Said, step=self.step, template="epoch # validation error #", numbers=numbers)


def _random(*place):
    """Generators whose states are this rank's own at this place."""
    return Randomness(python="p", torch=digest(*place), numpy=digest(*place))
