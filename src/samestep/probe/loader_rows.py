"""Rows about loaders: what is written down of a DataLoader, a pass over it, and a batch of it."""

from typing import Any

from torch.utils.data import IterableDataset

from samestep.data.fingerprint import fingerprint
from samestep.observed import Batch, Loader, Pass, PassEnd, Randomness
from samestep.probe.draws import Draws, Known
from samestep.probe.summaries import bits_print, example_prints, settings_of, tensors_in


def loader_row(number: int, loader: Any, line: str) -> Loader:
    """A loader that was made at the line."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    is_iterable = isinstance(loader.dataset, IterableDataset)
    return Loader(
        loader=number,
        dataset=type(loader.dataset).__name__,
        num_examples=None if is_iterable else _length(loader.dataset),
        is_iterable=is_iterable,
        sampler=type(_sampler(loader)).__name__,
        sampler_settings=_sampler_settings(loader),
        batch_sampler=None if batch_sampler is None else type(batch_sampler).__name__,
        batch_size=getattr(loader, "batch_size", None) or getattr(batch_sampler, "batch_size", None),
        drop_last=bool(getattr(loader, "drop_last", False)),
        num_workers=loader.num_workers,
        is_in_order=getattr(loader, "in_order", True),
        has_generator=loader.generator is not None,
        has_worker_init=loader.worker_init_fn is not None,
        has_set_epoch=any(hasattr(sampler, "set_epoch") for sampler in _samplers(loader)),
        where=line,
        num_drawn=_length(loader.sampler),
        is_pinned=bool(getattr(loader, "pin_memory", False)),
    )


def pass_row(step: int, known: Known, loader: Any, iterator: Any, random: Randomness) -> Pass:
    """A pass that begins, over a loader that may have to be asked for its length by another name."""
    return Pass(
        step=step,
        loader=known.number,
        number=known.num_passes,
        base_seed=getattr(iterator, "_base_seed", None),
        sampler_settings=_sampler_settings(loader),
        random=random,
        # a loader over a stream would remember that it was asked, and warn when it has handed out more
        num_planned=None if isinstance(loader.dataset, IterableDataset) else _length(loader),
    )


def pass_end_row(step: int, known: Known, draws: Draws, is_exhausted: bool) -> PassEnd:
    """A pass that ends."""
    return PassEnd(
        step=step,
        loader=known.number,
        number=draws.number,
        num_batches=draws.num_batches,
        num_examples=draws.num_examples,
        multiset=draws.multiset,
        is_exhausted=is_exhausted,
    )


def batch_row(
    step: int, known: Known, draws: Draws, indices: tuple[int, ...] | None, moved: tuple[str, ...], data: Any
) -> Batch:
    """The batch that was handed out last."""
    tensors = tensors_in(data)
    rows = [len(tensor) for tensor in tensors if tensor.ndim]
    num_examples = len(indices) if indices is not None else (rows[0] if rows else None)
    return Batch(
        step=step,
        loader=known.number,
        number=draws.number,
        batch=draws.num_batches,
        indices=indices,
        num_examples=num_examples,
        print=fingerprint(data),
        tensors=tuple(bits_print(tensor) for tensor in tensors),
        examples=example_prints(tensors, num_examples),
        moved=moved,
    )


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:
        return None


def _samplers(loader: Any) -> list[Any]:
    """A loader's samplers, and those that they draw from."""
    found: list[Any] = []
    waiting = [loader.sampler, getattr(loader, "batch_sampler", None)]
    while waiting and len(found) < 16:
        sampler = waiting.pop()
        if sampler is not None and all(sampler is not other for other in found):
            found.append(sampler)
            waiting += [getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None)]
    return found


def _sampler_settings(loader: Any) -> dict[str, str]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = settings_of(batch_sampler, most=16) if batch_sampler is not None else {}
    return inner | settings_of(_sampler(loader), most=16)


def _sampler(loader: Any) -> Any:
    """What single indices are drawn from; a loader with a batch sampler of the program's names another."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    while (inner := getattr(batch_sampler, "batch_sampler", None)) not in (None, batch_sampler):
        batch_sampler = inner
    found = getattr(batch_sampler, "sampler", None)
    return loader.sampler if found is None else found
