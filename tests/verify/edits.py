"""What a test changes in the rows that a pretended training writes."""

from dataclasses import replace

from samestep.observed import Loader, Model, RandomState, Start


def change(kind, made, **place):
    """An edit of the rows of a kind that have these fields; `rank` and `size` are those of the run.

    `made` has new values of fields, or makes a row, several or none of each.
    """

    def edit(each, rank, size):
        told = {"rank": rank, "size": size}
        if not isinstance(each, kind) or any(
            (told[key] if key in told else getattr(each, key)) != value for key, value in place.items()
        ):
            return each
        return made(each) if callable(made) else replace(each, **made)

    return edit


def all_of(*edits):
    """Several edits, each of what the ones before it left."""

    def edit(each, rank, size):
        rows = [each]
        for one in edits:
            made = [one(row, rank, size) for row in rows]
            rows = [row for some in made for row in (some if isinstance(some, list) else [some])]
            rows = [row for row in rows if row is not None]
        return rows

    return edit


def nothing(each, rank, size):
    """The edit of a run that ended before its first step."""
    return each if isinstance(each, Start | Model | Loader) else None


def drawing(each, rank, size):
    """The edit of a run whose training loop draws from torch's generator in each step."""
    if isinstance(each, RandomState):
        return replace(each, random=replace(each.random, torch=f"{each.random.torch} {each.step}"))
    return each
