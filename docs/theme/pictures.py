"""Draws docs/pictures: `python docs/theme/pictures.py`.

The projection is computed from the tutorial's table; the gap is one that `samestep scale` measured, gap.json;
shares and shards are cut as a training cuts them.
"""

import json
from pathlib import Path

import numpy as np

from samestep.advise import laws, project
from samestep.advise.places import Places
from samestep.data.order import Shuffled
from samestep.data.shard import cut
from samestep.train.tree import nodes_of

FOLDER = Path(__file__).parent.parent / "pictures"
INK, FAINT, LOST, IDEAL = "#1f1d1a", "#8c877d", "#b23a12", "#b9b4a9"
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#1f1d1a}.f{fill:#6d685f}.e{text-anchor:end}"
    ".m{text-anchor:middle}.b{font-weight:600}</style>"
)
RANKS = ("#e9c9b8", "#cfd8dc", "#dfe3c4")
MEASURED = {1: 0.610, 2: 0.325, 4: 0.190}
"""Seconds a step of the tutorial's table."""


def svg(name: str, width: int, height: int, title: str, parts: list[str]) -> None:
    body = "\n".join(parts)
    (FOLDER / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title>{STYLE}\n"
        f'<rect width="{width}" height="{height}" rx="6" fill="#fbfaf8"/>\n{body}\n</svg>\n',
        encoding="utf-8",
    )


def same_step(batch: int = 10, worlds: tuple[int, ...] = (1, 2, 3)) -> None:
    """One global batch on several numbers of ranks: the same examples, one sum of losses, one of weights."""
    order = [int(index) for index in Shuffled(100, seed=0, epoch=0).slice(0, batch)]
    left, cell, parts, y = 96, 40, [], 48
    parts.append(
        f'<text x="{left}" y="26" class="f">the global batch: the examples of one step, by number</text>'
    )
    for world_size in worlds:
        many = "s" if world_size > 1 else ""
        parts.append(f'<text x="{left - 14}" y="{y + 23}" class="e">{world_size} rank{many}</text>')
        for rank in range(world_size):
            start, stop = cut(batch, world_size, rank)
            for position in range(start, stop):
                x = left + position * cell + 8 * rank
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{cell - 3}" height="34" rx="3" fill="{RANKS[rank]}"/>'
                    f'<text x="{x + (cell - 3) / 2}" y="{y + 22}" class="m">{order[position]}</text>'
                )
        parts.append(f'<text x="{left + batch * cell + 34}" y="{y + 23}">Σ ℓᵢ / Σ wᵢ over all {batch}</text>')
        y += 52
    svg("same_step.svg", 720, y + 4, "A global batch on one, two and three ranks", parts)


def tree(shards: int = 8, world_size: int = 3) -> None:
    """Shards, whose they are, and the one order in which they are added up; what ranks send stands out."""
    left, cell, bottom, level = 60, 78, 236, 58
    owner = {}
    sent = set()
    for rank in range(world_size):
        start, stop = cut(shards, world_size, rank)
        owner |= dict.fromkeys(range(start, stop), rank)
        sent |= {tuple(node) for node in nodes_of(start, stop)}

    def at(start: int, size: int) -> tuple[float, float]:
        return left + (start + (size - 1) / 2) * cell + 30, bottom - level * (size.bit_length() - 1)

    lines, dots = [], []
    size = 1
    while size <= shards:
        for start in range(0, shards, size):
            x, y = at(start, size)
            of = {owner[i] for i in range(start, start + size)}
            fill = RANKS[of.pop()] if len(of) == 1 else "#fbfaf8"
            ring = f'stroke="{LOST}" stroke-width="2.5"' if (start, size) in sent else f'stroke="{FAINT}"'
            sign = f"{start}" if size == 1 else "+"
            dots.append(f'<circle cx="{x}" cy="{y}" r="15" fill="{fill}" {ring}/>')
            dots.append(f'<text x="{x}" y="{y + 4.5}" class="m">{sign}</text>')
            if size > 1:
                for half in (start, start + size // 2):
                    hx, hy = at(half, size // 2)
                    lines.append(f'<line x1="{x}" y1="{y}" x2="{hx}" y2="{hy}" stroke="{FAINT}"/>')
        size *= 2
    for rank in range(world_size):
        start, stop = cut(shards, world_size, rank)
        middle = (at(start, 1)[0] + at(stop - 1, 1)[0]) / 2
        dots.append(f'<text x="{middle}" y="{bottom + 42}" class="m f">rank {rank}</text>')
    title = f"{shards} shards on {world_size} ranks, added up in one tree"
    svg("tree.svg", 720, bottom + 60, title, [*lines, *dots])


def bar(y: int, start: float, end: float, colour: str, unit: float) -> str:
    left, width = 180 + min(start, end) * unit, abs(end - start) * unit
    return f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="18" fill="{colour}"/>'


def whisker(y: int, low: float, high: float, unit: float) -> str:
    left, right = 180 + low * unit, 180 + high * unit
    ends = f"M{left:.1f} {y + 5}v8M{right:.1f} {y + 5}v8"
    return f'<path d="M{left:.1f} {y + 9}H{right:.1f}{ends}" stroke="{INK}" fill="none"/>'


def gap() -> None:
    """Bars as the report draws them: what is noise is hatched over its interval, other bars have theirs."""
    measured = json.loads((FOLDER / "gap.json").read_text())
    ideal, total = measured["ideal_s"], measured["measured_s"]
    at, farthest = ideal, total
    for part in measured["parts"]:
        farthest = max(farthest, at + part["high"])
        at += part["seconds"]
    unit = 460 / farthest
    parts = [
        '<defs><pattern id="noise" width="5" height="5" patternUnits="userSpaceOnUse"'
        ' patternTransform="rotate(45)">'
        f'<path d="M0 0V5" stroke="{LOST}" stroke-width="2"/></pattern></defs>',
        '<text x="168" y="38" class="e">ideal step</text>',
        bar(24, 0, ideal, IDEAL, unit),
        f'<text x="{188 + ideal * unit:.1f}" y="38" class="f">{1000 * ideal:.2f} ms</text>',
    ]
    at, y = ideal, 52
    for part in measured["parts"]:
        low, high, end = at + part["low"], at + part["high"], at + part["seconds"]
        if part["is_noise"]:
            parts.append(bar(y, low, high, "url(#noise)", unit))
        else:
            parts += [bar(y, at, end, LOST, unit), whisker(y, low, high, unit)]
        told = f"{1000 * part['seconds']:+.2f} ms".replace("-", "−") + (", noise" if part["is_noise"] else "")
        parts.append(f'<text x="168" y="{y + 14}" class="e">{part["name"]}</text>')
        parts.append(f'<text x="{188 + max(high, end) * unit:.1f}" y="{y + 14}" class="f">{told}</text>')
        at, y = end, y + 28
    parts.append(f'<text x="168" y="{y + 14}" class="e b">measured step</text>')
    parts.append(bar(y, 0, total, FAINT, unit))
    parts.append(f'<text x="{188 + total * unit:.1f}" y="{y + 14}" class="b">{1000 * total:.2f} ms</text>')
    svg("gap.svg", 720, y + 42, "From the ideal step to the measured one: the demo on three ranks", parts)


def projection() -> None:
    batch = 256
    cells = [{"gpus": n, "batch_per_gpu": batch / n, "step_s": s} for n, s in MEASURED.items()]
    worlds = [1, 2, 4, 6, 8, 12, 16]
    rows = project(cells, worlds, gpus_per_node=16)
    left, top, width, height, most = 60, 24, 460, 300, 16.0

    def at(gpus: float, speedup: float) -> str:
        return f"{left + np.log2(gpus) / 4 * width:.1f},{top + height - speedup / most * height:.1f}"

    new = [row for row in rows if row.gpus >= 4]
    band = [at(row.gpus, row.speedup_high or 0) for row in new]
    band += [at(row.gpus, row.speedup_low or 0) for row in reversed(new)]
    parts = [f'<polygon points="{" ".join(band)}" fill="{LOST}" opacity="0.16"/>']
    for value in range(0, 17, 4):
        x, y = at(1, value).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{left + width}" y2="{y}" stroke="#e4e0d8"/>')
        parts.append(f'<text x="{left - 10}" y="{float(y) + 4}" class="e f">{value}</text>')
    for n in (1, 2, 4, 8, 16):
        x, _ = at(n, 0).split(",")
        parts.append(f'<text x="{x}" y="{top + height + 20}" class="m f">{n}</text>')
    parts.append(f'<text x="{left + width / 2}" y="{top + height + 40}" class="m f">GPUs</text>')
    fine = np.exp2(np.linspace(0, 4, 60))
    parts.append(line([at(n, n) for n in fine], IDEAL, "6 4"))
    places = Places.of(list(MEASURED), [1] * 3, [batch / n for n in MEASURED])
    times = np.array(list(MEASURED.values()))
    asked = Places.of(fine, [1] * len(fine), batch / fine)
    labels = [("ideal", 16.0, IDEAL)]
    for law, dashes in ((laws.AMDAHL, "2 3"), (laws.LAST_EFFICIENCY, "8 3 2 3")):
        speedups = MEASURED[1] / law.fit(places, times)(asked)
        parts.append(line([at(n, s) for n, s in zip(fine, speedups, strict=True)], FAINT, dashes))
        labels.append((f"{law.name} alone", float(speedups[-1]), FAINT))
    parts.append(line([at(row.gpus, row.speedup or 0) for row in rows], LOST, ""))
    labels.append(("projection", rows[-1].speedup or 0, LOST))
    labels.append(("80 %", rows[-1].speedup_high or 0, LOST))
    for text, value, colour in spread(labels):
        parts.append(f'<text x="{left + width + 12}" y="{value:.1f}" style="fill:{colour}">{text}</text>')
    for n, s in MEASURED.items():
        x, y = at(n, MEASURED[1] / s).split(",")
        parts.append(f'<circle cx="{x}" cy="{y}" r="4.5" fill="{INK}"/>')
    svg("projection.svg", 720, 380, "Speedup projected from three measured cells", parts)


def spread(labels: list[tuple[str, float, str]]) -> list[tuple[str, float, str]]:
    """Labels at the right end, moved apart where they would lie upon one another."""
    placed: list[tuple[str, float, str]] = []
    for text, value, colour in sorted(labels, key=lambda label: -label[1]):
        y = 24 + 300 - value / 16.0 * 300 + 4
        y = max(y, placed[-1][1] + 16) if placed else y
        placed.append((text, y, colour))
    return placed


def line(points: list[str], colour: str, dashes: str) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    same_step()
    tree()
    gap()
    projection()
