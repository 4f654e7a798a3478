"""Headline: the answer in one sentence, and the few numbers that say how much it rests on."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from samestep.record import Record
from samestep.report.faster import answer, widest
from samestep.report.material import Material, Verification
from samestep.report.sweep import Sweep
from samestep.report.wording import counted, duration, joined, number


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What the top of a page says; `is_good` is None where the question stays open."""

    kind: str
    title: str
    symbol: str
    sentence: str
    is_good: bool | None
    facts: tuple[tuple[str, str], ...]


def headline(material: Material) -> Headline:
    """That of the verdict where there is one, else that of the sweep, else that of the training."""
    if material.verification is not None:
        return _of_verdict(material.verification)
    if material.sweep is not None:
        return _of_sweep(material.sweep)
    assert material.record is not None
    return _of_training(material.record)


def verdict_sentence(verification: Verification) -> str:
    """The verdict in one sentence."""
    on = f"On {joined([str(size) for size in verification.worlds if size > 1]) or '1'} ranks"
    steps = counted(verification.num_steps, "step")
    match verification.verdict:
        case "same":
            return (
                f"{on} the program trains the same as on one: the same bits in all weights and buffers, "
                f"over {steps}."
            )
        case "equal":
            return (
                f"{on} the program trains the same as on one, up to rounding: over {steps} nothing is "
                "further off than the tolerance that was derived for it."
            )
        case "different":
            first = verification.first_difference
            where = f" First seen in step {first.step}: {first.words}." if first else ""
            return f"{on} the program does not train the same as on one.{where}"
        case "inconclusive":
            return (
                f"Whether the program trains the same as on one rank is not known: {_reason(verification)}."
            )


def _reason(verification: Verification) -> str:
    if not verification.remarks:
        return "there was nothing to compare"
    return "; ".join(verification.remarks[-1:]).rstrip(".")


def _of_verdict(verification: Verification) -> Headline:
    titles: dict[str, tuple[str, Literal["=", "≈", "≠", "?"], bool | None]] = {
        "same": ("Same", "=", True),
        "equal": ("Equal", "≈", True),
        "different": ("Different", "≠", False),
        "inconclusive": ("Inconclusive", "?", None),
    }
    title, symbol, is_good = titles[verification.verdict]
    return Headline(
        kind="Verdict",
        title=title,
        symbol=symbol,
        sentence=verdict_sentence(verification),
        is_good=is_good,
        facts=(
            ("ranks compared", joined([str(size) for size in verification.worlds])),
            ("steps compared", number(verification.num_steps)),
            ("runs made", number(len(verification.runs))),
            ("time taken", duration(sum(run.seconds for run in verification.runs))),
        ),
    )


def _of_sweep(sweep: Sweep) -> Headline:
    found = answer(sweep)
    facts = [("GPUs compared", joined([str(size) for size in sweep.worlds]))]
    if sizes := sorted({family[0].batch_size for family in sweep.families()}):
        name = "batch of one GPU" if sweep.is_weak else "global batch"
        facts.append((name, joined([number(size) for size in sizes])))
    facts.append(("rounds", number(sweep.rounds)))
    if (half := widest(sweep)) is not None:
        facts.append(("widest interval of a step", f"±{half:.1%}"))
    return Headline(
        kind="Speed",
        title=found.title,
        symbol=found.symbol,
        sentence=found.sentence,
        is_good=found.is_good,
        facts=tuple(facts),
    )


def _of_training(record: Record) -> Headline:
    result: dict[str, Any] = record.result or {}
    status = str(result.get("status", "not ended"))
    reached = result or next(iter(deque(record.steps(), maxlen=1)), {})
    counts: dict[str, int] = {
        noun: value
        for noun, value in (
            ("step", reached.get("steps", reached.get("step"))),
            ("example", reached.get("examples")),
            ("rank", result.get("world_size", record.about.get("world_size"))),
        )
        if isinstance(value, int)
    }
    facts = [(f"{noun}s", number(count)) for noun, count in counts.items()]
    facts += [("mode", str(record.about["mode"]))] if record.about.get("mode") else []
    if isinstance(seconds := result.get("seconds"), int | float):
        facts.append(("time taken", duration(seconds)))
    return Headline(
        kind="Training",
        title=status[:1].upper() + status[1:],
        symbol={"finished": "✓", "failed": "✕"}.get(status, "…"),
        sentence=_training_sentence(counts, record.result),
        is_good={"finished": True, "failed": False, "stopped": False}.get(status),
        facts=tuple(facts),
    )


def _training_sentence(counts: Mapping[str, int], result: Mapping[str, Any] | None) -> str:
    done = (
        joined([counted(counts[noun], noun) for noun in ("step", "example") if noun in counts]) or "No step"
    )
    on = f" on {counted(counts['rank'], 'rank')}" if "rank" in counts else ""
    if result is None:
        return f"{done}{on} so far: the run goes on, or it was killed, and has written no result."
    reason = result.get("stop_reason")
    return f"{done}{on}{f'; it stopped: {reason}' if reason else ''}."
