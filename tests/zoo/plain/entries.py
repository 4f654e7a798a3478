"""What is wrong with each script in this folder, by the slugs that `samestep verify` gives causes.

Knows names only: the scripts are programs to run, never imported. `NAME.py` has the fault, and
`NAME_right.py` is the same program with nothing but the cure.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A script with one fault.

    `causes`: the names of the fault, the best first; one of them must be found. `note`: what is to be seen.
    `also`: what follows from the fault and is true as well; a finding by that name is no false alarm.
    """

    name: str
    causes: tuple[str, ...]
    note: str
    also: tuple[str, ...] = ()


ENTRIES: list[Entry] = [
    Entry(
        "submodules_from_a_set",
        ("parameter-order-differs",),
        "the order follows PYTHONHASHSEED, so one rank does not repeat either; DDP sends weights by position",
        also=("not-repeatable", "replicas-start-different", "replicas-drift"),
    ),
    Entry(
        "sampler_built_before_group",
        ("sampler-knows-no-world",),
        "it asks for the world before there is one; every rank takes all examples, in N times steps",
        also=("same-examples-on-every-rank",),
    ),
    Entry(
        "no_distributed_sampler",
        ("same-examples-on-every-rank",),
        "one seed, one shuffle: every rank takes all examples in one order, in N times the steps",
    ),
    Entry(
        "epoch_never_set",
        ("epoch-not-set",),
        "weights agree on any world; the second epoch repeats the order of the first",
    ),
    Entry(
        "files_shared_out",
        ("uneven-steps",),
        "ranks have 6 and 4 batches (6, 5, 5 on three); ends in a time-out of 10 s on every rank",
        also=("crashed-in-one-world",),
    ),
    Entry(
        "sampler_pads",
        ("examples-repeated",),
        "125 rows: one comes twice in an epoch on 2 and on 3 ranks; counts are weighed right",
    ),
    Entry(
        "tail_dropped_by_rank",
        ("examples-dropped",),
        "65 rows: none is dropped on one rank, one on 2, two on 3; counts are weighed right",
    ),
    Entry(
        "unequal_split",
        ("unequal-batches-averaged",),
        "11 examples are split 6 + 5 (4 + 4 + 3 on three), and the means of ranks are averaged",
    ),
    Entry(
        "spread_merged_by_sum",
        ("metric-merged-wrongly",),
        "weights agree; centred sums of squares are added up, and the printed spread is too small",
    ),
    Entry(
        "deviations_averaged",
        ("metric-merged-wrongly",),
        "weights agree; standard deviations of ranks are averaged, and the printed one is too small",
    ),
    Entry(
        "accuracy_averaged",
        ("metric-averaged-without-counts",),
        "weights agree; ranks validate 32 and 19 examples (19, 16, 16 on three), and accuracies are averaged",
    ),
    Entry(
        "confusion_in_a_buffer",
        ("metric-overwritten",),
        "weights agree; each training forward puts rank 0's counts in place of every other rank's",
    ),
    Entry(
        "batch_norm_left_local",
        ("norm-not-synchronised",),
        "BatchNorm2d; buffers are not broadcast, so replicas have other running statistics",
        also=("replicas-drift",),
    ),
    Entry(
        "batch_norm_hidden_by_broadcast",
        ("norm-not-synchronised",),
        "BatchNorm1d; buffers are broadcast, so replicas agree in evaluation and nothing shows",
    ),
    Entry(
        "hand_written_norm",
        ("norm-not-synchronised",),
        "a norm with a running mean square that is no subclass of torch's; its twin calls all_reduce inside",
    ),
    Entry(
        "sync_norm_decides_early",
        ("sync-norm-is-local",),
        "asks in its constructor, before the group exists, if it is alone; calls no collective",
        also=("norm-not-synchronised",),
    ),
    Entry(
        "update_skipped_on_one_rank",
        ("replicas-drift",),
        "each rank skips updates by its own loss, so step counts differ; in the twin all ranks agree",
    ),
    Entry(
        "noise_on_the_weights",
        ("replicas-drift",),
        "each rank adds noise of its own to the weights; the twin adds the same noise everywhere",
    ),
    Entry(
        "crops_alike_on_every_rank",
        ("same-randomness-on-every-rank",),
        "torch.randint and torch.randn when an example is read, from one seed; draws differ by world in both",
    ),
    Entry(
        "batch_per_rank_fixed",
        ("batch-grows-with-world",),
        "the global batch is 24 N, with 1 / N of the steps; dropout, whose draws differ by world in both",
    ),
    Entry(
        "rate_times_world",
        ("rate-depends-on-world",),
        "the rate is N times as high at the same global batch",
    ),
    Entry(
        "summed_loss",
        ("summed-loss-averaged",),
        "gradients are 1 / N of those on one rank; the twin keeps the sum and multiplies by N",
    ),
    Entry(
        "mean_loss_summed",
        ("averaged-loss-summed",),
        "gradients are N times those on one rank; examples are picked by index, without a loader",
    ),
    Entry(
        "clipped_then_reduced",
        ("clipped-before-exchange",),
        "clip_grad_norm_ comes before the all_reduce of gradients by hand, and binds",
    ),
    Entry(
        "clipped_while_accumulating",
        ("clipped-per-rank",),
        "own clipping code shortens the local gradient between two backward passes, the first under no_sync",
        also=("clipped-before-exchange",),
    ),
    Entry(
        "schedule_stepped_by_world",
        ("schedule-stepped-per-rank",),
        "the scheduler steps N times an update",
        also=("rate-depends-on-world",),
    ),
    Entry(
        "penalty_on_every_rank",
        ("penalty-counted-per-rank",),
        "the error is divided by N before gradients are summed, the penalty is not",
    ),
    Entry(
        "padded_tokens",
        ("tokens-averaged-per-rank",),
        "each rank divides by its own number of tokens; padding differs by rank",
    ),
    Entry(
        "padded_tokens_accumulated",
        ("tokens-averaged-per-rank",),
        "each small batch of each rank divides by its own number of tokens; two of them an update",
    ),
    Entry(
        "average_kept_by_rank_zero",
        ("average-updated-on-one-rank",),
        "weights agree but for dropout; other ranks validate an average that stays at the first weights",
        also=("replicas-drift",),
    ),
    Entry(
        "metric_kept_by_rank_zero",
        ("metric-updated-on-one-rank", "metric-of-one-rank"),
        "weights agree; the printed error is summed over ranks, but only rank 0 put anything in",
    ),
    Entry(
        "frozen_on_rank_zero",
        ("frozen-on-one-rank",),
        "rank 0 freezes the backbone after the wrap; where there are other ranks, they train it",
    ),
    Entry(
        "unused_on_one_rank",
        ("unused-on-one-rank",),
        "the second head is used on rank 0 only; others send zeros for it, so its gradient is 1 / N",
    ),
    Entry(
        "weights_loaded_after_wrap",
        ("weights-changed-after-wrap",),
        "replicas agree when DDP wraps them, and no longer at the first step",
        also=("replicas-start-different", "replicas-drift"),
    ),
    Entry(
        "started_from_other_seeds",
        ("replicas-start-different",),
        "nothing sends rank 0's weights; equal updates keep replicas apart",
        also=("replicas-drift",),
    ),
    Entry(
        "validation_padded",
        ("evaluation-padded",),
        "weights agree; 37 examples are validated as 38 (39 on three), and the sum is divided by 37",
    ),
    Entry(
        "validation_of_rank_zero",
        ("metric-of-one-rank",),
        "weights agree; the printed validation loss is that of rank 0's part",
    ),
    Entry(
        "bf16_on_rank_zero",
        ("precision-differs",),
        "autocast on rank 0 only; the twin has it everywhere and agrees as far as bfloat16 does (1e-3)",
    ),
    Entry(
        "workers_seeded_alike",
        ("workers-with-equal-seeds",),
        "all workers of all ranks and epochs draw the same numbers from numpy; draws differ by world in both",
        also=("same-randomness-on-every-rank",),
    ),
    Entry(
        "module_called_inside_wrap",
        ("gradients-not-exchanged",),
        "the loop calls the module inside DDP, whose hooks then do nothing",
        also=("replicas-drift",),
    ),
    Entry(
        "group_without_exchange",
        ("gradients-not-exchanged",),
        "there is a group and a sampler, and nothing exchanges gradients",
        also=("replicas-drift",),
    ),
    Entry(
        "no_group",
        ("world-ignored",),
        "N copies of the same training; they agree to the bit, and gain nothing",
        also=("same-examples-on-every-rank", "gradients-not-exchanged"),
    ),
]
