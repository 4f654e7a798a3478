"""The example of the plain script: its page is true. How little the two differ is told by the docs tests."""

from readme_commands import copied, said, shown_in, verified

NAME = "own_loop"


def test_all_end_at_one_loss(tmp_path):
    folder = copied(NAME, tmp_path)
    losses = set()
    for shown in (*shown_in(NAME, "python"), *shown_in(NAME, "samestep train")):
        code, text = said(shown.command, folder)
        assert code == 0, text
        shown.assert_said(text)
        losses.add(text.rpartition("final loss ")[2][:15])
    assert len(losses) == 1


def test_verify_has_nothing_to_say(tmp_path, capsys):
    (shown,) = shown_in(NAME, "samestep verify")
    code, text = verified(shown.command, copied(NAME, tmp_path), capsys)
    assert code == 0, text
    shown.assert_said(text)
