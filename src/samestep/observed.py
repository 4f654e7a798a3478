"""Rows of observations: one frozen dataclass for each kind of thing that a probe writes down.

Names of parameters, buffers and modules are those of `named_parameters` and the like on the unwrapped model,
so that a model and its DDP wrap have the same names. Prints are digests of exact bits: equal bits of equal
dtype and shape have equal prints on every kind of device. Times are host times in seconds. `where` is the
line of the program, "file:line", from which something was done: the innermost that belongs to no library;
empty where there is none. `moved` names the generators ("python", "numpy", "torch") that something drew from.
"""

from dataclasses import dataclass, field

VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A tensor in a few numbers, taken in float64; `sample` are the elements at `sample_positions`."""

    print: str
    dtype: str
    shape: tuple[int, ...]
    mean: float
    rms: float
    max_abs: float
    sample: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Randomness:
    """Prints of the states of the generators, which reading does not move; None where one is not in use."""

    python: str
    torch: str
    numpy: str | None = None
    device: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The first row: which program is watched, how, and what its launcher said of the rank."""

    format: str
    version: int
    samestep: str
    rank: int
    world_size: int | None
    attempt: int
    program: tuple[str, ...]
    steps_in_full: int
    most_bytes: int
    python: str
    host: str
    pid: int
    time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What the first forward pass ran with."""

    torch: str
    num_threads: int
    device: str
    is_deterministic: bool
    matmul_precision: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The default process group was made."""

    step: int
    rank: int
    world_size: int
    backend: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """A torch DataLoader when it was first iterated over; settings are its sampler's plain attributes.

    `where` is the line that made it. `has_set_epoch` tells if its sampler, or its batch sampler, can be told
    the number of the epoch. `num_drawn` is the sampler's length. `contents` is a print of what the data set
    holds, as far as that can be seen without fetching examples; only runs that are watched for long have it.
    """

    loader: int
    dataset: str
    num_examples: int | None
    is_iterable: bool
    sampler: str
    sampler_settings: dict[str, str]
    batch_sampler: str | None
    batch_size: int | None
    drop_last: bool
    num_workers: int
    is_in_order: bool
    has_generator: bool
    has_worker_init: bool
    has_set_epoch: bool = False
    where: str = ""
    num_drawn: int | None = None
    contents: str = ""
    is_pinned: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """An iteration over a loader began; `base_seed` is what its workers' seeds are made of.

    `num_planned` is the loader's length in batches, None where it has none.
    """

    step: int
    loader: int
    number: int
    base_seed: int | None
    sampler_settings: dict[str, str]
    random: Randomness
    num_planned: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PassEnd:
    """A pass ran out, or was left early; `multiset` is `multiset_print` of all indices handed out.

    Prints of multisets add up modulo 2 ** 64: that of all ranks together is the sum of theirs.
    """

    step: int
    loader: int
    number: int
    num_batches: int
    num_examples: int | None
    multiset: int | None
    is_exhausted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A batch was handed out; its indices are None where the data set has none or they are not numbers.

    `tensors` are prints of its tensors, in order, and `examples` one print for each row of the largest.
    `moved` is by fetching it in this process, without workers.
    """

    step: int
    loader: int
    number: int
    batch: int
    indices: tuple[int, ...] | None
    num_examples: int | None
    print: str
    tensors: tuple[str, ...]
    examples: tuple[str, ...]
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """A worker process of a loader: its generators before its first fetch of a pass, and which that moved.

    `number` is that of the pass, `step` the one under way when the process began.
    """

    step: int
    loader: int
    number: int
    worker: int
    random: Randomness
    moved: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A normalisation or dropout layer of a model; `p` is that of dropout."""

    name: str
    kind: str
    keeps_statistics: bool = False
    p: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wrap:
    """DistributedDataParallel and the like around a model, with those of its settings that are plain."""

    kind: str
    settings: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A module that is called from outside of any other; written again when it is called in another wrap.

    `tensors` are its parameters, then its buffers, in their own order: name, dtype, shape, and whether it
    needs a gradient, as one text each.
    """

    step: int
    model: int
    kind: str
    wraps: tuple[Wrap, ...]
    norms: tuple[Layer, ...]
    dropouts: tuple[Layer, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A forward pass of a module, in order of their ends; the model itself has an empty name.

    Of calls that do not train (evaluation mode or no gradients) only those of whole models are written.
    `will_exchange` tells if a wrap was to exchange gradients in the backward pass. Of whole models only are
    `inputs`, `rows`, one print for each row of the largest input, and `moved`.
    """

    step: int
    model: int
    name: str
    kind: str
    is_training: bool
    has_gradients: bool
    autocast: str | None
    will_exchange: bool | None
    inputs: tuple[str, ...]
    outputs: tuple[Summary, ...]
    rows: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistic:
    """A module whose own forward pass in training changed floating-point buffers of its own.

    `buffers` are their full names, `num_collectives` the collectives called within that forward pass. Told
    once for each module of a model.
    """

    step: int
    model: int
    name: str
    kind: str
    buffers: tuple[str, ...]
    num_collectives: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Criterion:
    """A call of a loss function of torch.nn.functional, named by `kind`.

    `num_targets` are the elements that count: targets that are not to be ignored for classes, all elements
    otherwise. `num_rows` is the length of the target's first dimension, 1 if it has none.
    """

    step: int
    kind: str
    reduction: str
    num_targets: int
    num_rows: int
    has_gradients: bool
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Something on which backward was called; `value` is None unless it is one number."""

    step: int
    number: int
    value: float | None
    dtype: str
    num_elements: int
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one backward pass of several left where there was no gradient; `sample` is a shorter one."""

    backward: int
    mean: float
    rms: float
    sample: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradient:
    """The gradient of a parameter, `local` as the last backward pass left it before any exchange, or
    `applied` as the optimizer found it; the summary is None where there was no gradient.

    `num_backward` counts the backward passes that reached the parameter in this step, and `num_edits` those
    between which something else changed its gradient. `parts` has them one by one, at the stage `local`, if
    there were several and somebody took the gradient away before each, as shards of one step have theirs.
    """

    step: int
    optimizer: int
    name: str
    stage: str
    num_backward: int
    summary: Summary | None
    num_edits: int = 0
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A parameter or buffer after a step, or before the first (step 0)."""

    step: int
    model: int
    name: str
    role: str
    summary: Summary


@dataclass(frozen=True, kw_only=True, slots=True)
class Replica:
    """One print over all parameters and buffers of a model, names included, after a sampled step.

    `parts` are four digits for each tensor of `Model.tensors`, or for each of as many runs of them as there
    are: enough to tell where two replicas differ, not whether they do.
    """

    step: int
    model: int
    print: str
    parts: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """One print over all parameters of a model at its first evaluation since a step in full."""

    step: int
    model: int
    print: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomState:
    """The generators at the first forward pass of a step in training mode."""

    step: int
    random: Randomness


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerGroup:
    """A group of an optimizer's parameters, with its settings that are numbers, texts or truths."""

    parameters: tuple[str, ...]
    settings: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """An optimizer at its first step; `where` is the line that took it."""

    step: int
    optimizer: int
    kind: str
    groups: tuple[OptimizerGroup, ...]
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip:
    """A call of torch's clipping functions; `after` counts the events of the step before it."""

    kind: str
    limit: float
    norm: float | None
    after: int
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """Calls of one function of torch.distributed in one phase of a step; bytes of the tensors handed in.

    `where` is that of the first of them.
    """

    name: str
    phase: str
    count: int
    num_bytes: int
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened in a step, `count` times in a row."""

    name: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """An optimizer step and what led to it, from the end of the one before.

    `phases_s` adds up to the whole time; "probe" is what watching cost. `scale` is that of a GradScaler, and
    `num_skipped` counts the updates that it left out since the step before.
    """

    step: int
    optimizer: int
    is_full: bool
    lr: tuple[float, ...]
    weight_decay: tuple[float, ...]
    num_forward: int
    num_backward: int
    num_scheduler_steps: int
    scale: float | None
    num_skipped: int
    clips: tuple[Clip, ...]
    collectives: tuple[Collective, ...]
    events: tuple[Event, ...]
    phases_s: dict[str, float]


BETWEEN_STEPS = ("evaluation", "checkpoint")
"""Phases that belong to an epoch and to no step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """A block of steps and the time that it took, on the host's clock, with the device waited for at its end.

    `step_s` are the steps one by one, without waiting and without the phases between steps; `phases_s` adds
    up to `seconds`. What came after the last step of a program is a block without steps; the one before it
    ended with that step, for which nobody waited. `cpu_s` is the time of all threads of the process.
    `began_s` is by the monotonic clock, which ranks of one machine share. `losses` has one number a step: the
    mean of the scalars that backward was called on, None if there were none. `num_waits` counts calls that
    wait for a device where there is one, on a CPU too.
    """

    first_step: int
    num_steps: int
    num_examples: int | None
    seconds: float
    step_s: tuple[float, ...]
    phases_s: dict[str, float]
    cpu_s: float
    rss_bytes: int
    device_bytes: int
    began_s: float = 0.0
    losses: tuple[float | None, ...] = ()
    num_waits: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A phase of one step, in order, of the few steps that are told in such detail; `began_s` as above."""

    step: int
    phase: str
    began_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class First:
    """The first step ended `seconds` after the process began; one that was forked began with the fork."""

    seconds: float
    is_cold: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """A line with numbers in it that the program wrote to `stream`, "stdout" or "stderr".

    `template` is the line with `#` for each number, cut to 200 characters, and `numbers` are those that are
    left in it. `after_evaluation`: since the last step a model with parameters ran without gradients or in
    evaluation mode.
    """

    step: int
    template: str
    numbers: tuple[float, ...]
    after_evaluation: bool
    stream: str
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spawn:
    """The program started processes of its own through torch.multiprocessing; they are not watched."""

    step: int
    num_processes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """The probe could not see something; told once for each place."""

    step: int
    place: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The last row: how the program left, and what is missing from this file."""

    status: str
    exit_code: int | None
    error: str = ""
    message: str = ""
    where: str = ""
    traceback: str = ""
    saw_torch: bool = False
    num_steps: int = 0
    num_scheduler_steps_after: int = 0
    events_after: tuple[Event, ...] = ()
    """What happened since the last step."""
    seconds: float = 0.0
    probe_s: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)


Row = (
    Start | Machine | Group | Loader | Pass | PassEnd | Batch | Worker | Model | Call | Statistic | Criterion
    | Loss | Gradient | State | Replica | Evaluated | RandomState | Optimizer | Step | Timing | Span | First
    | Said | Spawn | Trouble | End
)  # fmt: skip
ROWS: dict[str, type[Row]] = {kind.__name__: kind for kind in Row.__args__}
