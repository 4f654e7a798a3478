from samestep.launch.progress import Progress
from samestep.observations import encode, observations_path
from samestep.observed import End, Trouble

STEP = '{{"row":"Step","step":{},"optimizer":1}}\n'


def test_steps_are_counted_as_the_file_grows(tmp_path):
    progress = Progress(tmp_path, 3)
    progress.look(1.0)
    assert (progress.num_steps, progress.first_step_at, progress.num_bytes) == (0, None, 0)
    path = observations_path(tmp_path, 3)
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        file.write(STEP.format(1))
        file.flush()
        progress.look(2.0)
        file.write(STEP.format(2) + STEP.format(3)[:10])
        file.flush()
        progress.look(3.0)
        assert (progress.num_steps, progress.first_step_at) == (2, 2.0)
        file.write(STEP.format(3)[10:])
        file.flush()
        progress.look(4.0)
    assert (progress.num_steps, progress.first_step_at) == (3, 2.0)
    assert progress.num_bytes == path.stat().st_size > 0


def test_rows_longer_than_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("samestep.launch.progress._MOST_BYTES", 100)
    path = observations_path(tmp_path, 0)
    path.parent.mkdir(parents=True)
    long = encode(Trouble(step=1, place='{"row":"Step","step":99,', error="x" * 1000))
    end = encode(End(status="finished", exit_code=0))
    path.write_text(STEP.format(1) + long + STEP.format(2) + end)
    progress = Progress(tmp_path, 0)
    progress.look(1.0)
    assert progress.num_steps == 1 and not progress.has_finished
    progress.look(1.0, to_the_end=True)
    assert progress.num_steps == 2  # and not what stands inside of another row
    assert progress.has_finished and progress.end.status == "finished"


def test_an_end_that_was_not_good_is_no_finish(tmp_path):
    path = observations_path(tmp_path, 0)
    path.parent.mkdir(parents=True)
    path.write_text(encode(End(status="failed", exit_code=1, error="ValueError")))
    progress = Progress(tmp_path, 0)
    progress.look(1.0)
    assert progress.end.error == "ValueError" and not progress.has_finished
