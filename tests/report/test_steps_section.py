from hypothesis import given
from hypothesis import strategies as st

from samestep.report.sections.steps import MOST_COLUMNS, columns

marks = st.sampled_from(["same", "equal", "different"])
tables = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(1, 300)), marks, max_size=400)


@given(tables, st.integers(1, 300))
def test_every_step_is_in_one_column_with_its_own_marks(table, lit):
    rows = [(quantity, step, mark) for (quantity, step), mark in table.items()]
    quantities, shown, num_hidden = columns(rows, lit=lit)
    steps = {step for _, step in table}
    assert len(shown) <= MOST_COLUMNS and (num_hidden > 0) <= (len(steps) > MOST_COLUMNS)
    covered = [step for column in shown for step in range(column.first, column.last + 1) if step in steps]
    assert covered == sorted(set(covered)) and (num_hidden or set(covered) == steps)
    for column in shown:
        for step in steps & set(range(column.first, column.last + 1)):
            assert column.marks == tuple(table.get((quantity, step)) for quantity in quantities)
    if lit in steps:
        assert [column.title for column in shown if column.first <= lit <= column.last] == [str(lit)]


def test_few_steps_are_never_joined_and_many_alike_are_one_column():
    for num_steps, expected in ((MOST_COLUMNS, MOST_COLUMNS), (MOST_COLUMNS + 1, 1)):
        table = [("weight", step, "same") for step in range(1, num_steps + 1)]
        _, shown, num_hidden = columns(table, lit=None)
        assert (len(shown), num_hidden) == (expected, 0)
    assert shown[0].title == f"1–{MOST_COLUMNS + 1}"
