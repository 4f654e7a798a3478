"""Requests: what is asked for, from the command line's words to the file, and back."""

from pathlib import Path

import pytest
from cluster_requests import request_of
from hypothesis import given
from hypothesis import strategies as st

from samestep.cluster.local import Local
from samestep.cluster.plan import Wish, lead_of, pairs_of, requests_of, sweep_of
from samestep.cluster.request import Request, bytes_of, clock, nodes_for, one_line, seconds_of
from samestep.errors import ConfigError

HOME, WORKDIR = Path("/shared/jobs"), Path("/home/ada")


def wish(**more):
    return Wish(**({"engine": "slurm", "command": "train", "target": ("task.py",), "worlds": (1, 4)} | more))


@given(
    env=st.dictionaries(st.text(min_size=1), st.text()),
    words=st.lists(st.text(), min_size=1),
    home=st.text(min_size=1),
)
def test_what_was_asked_for_comes_back_from_its_file(env, words, home):
    import tempfile

    words = [word.encode("utf-8", "ignore").decode() for word in words]
    env = {k.encode("utf-8", "ignore").decode(): v.encode("utf-8", "ignore").decode() for k, v in env.items()}
    request = request_of(env=env, home=home.encode("utf-8", "ignore").decode())
    with tempfile.TemporaryDirectory() as folder:
        request.write(Path(folder))
        assert Request.read(Path(folder)) == request


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45m", 2700), ("1.5h", 5400), ("1d", 86400), ("01:30:00", 5400), ("1-12:00:00", 129600)],
)
def test_times_are_read_and_written(text, seconds):
    assert seconds_of(text) == seconds
    assert seconds_of(clock(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "10", "2 weeks", "0s", "-5m", "1:00"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match=r"no time|less than"):
        seconds_of(text)


def test_memory_is_read():
    assert (bytes_of("512M"), bytes_of("1.5G"), bytes_of("2GiB")) == (2**29, 3 * 2**29, 2**31)
    with pytest.raises(ValueError, match="no amount of memory"):
        bytes_of("a lot")


@given(world=st.integers(1, 4096), per_node=st.integers(1, 16))
def test_nodes_have_equally_many_ranks_or_it_is_refused(world, per_node):
    try:
        nodes = nodes_for(world, per_node)
    except ConfigError:
        assert world > per_node and world % -(-world // per_node)
        return
    assert world % nodes == 0 and world // nodes <= per_node


def test_one_job_a_world_size_on_as_many_nodes_as_it_needs():
    one, four = requests_of(wish(per_node=2, cpus_per_rank=3), home=HOME, workdir=WORKDIR)
    assert (one.name, one.needs.num_nodes, one.items[0].name) == ("1-rank", 1, "1-rank")
    assert (four.name, four.needs.num_nodes, four.needs.cpus_per_node) == ("4-ranks", 2, 6)
    words = four.items[0].words
    assert words[:3] == ("train", "--gpus", "4") and words[-1] == "task.py"
    # the same threads for every world, whatever machine it lands on
    assert words[words.index("--threads") + 1] == "3"


def test_a_sweep_is_the_product_of_its_values_and_a_script_keeps_its_own_words():
    swept = sweep_of(["lr=0.1,0.2", "seed=1,2,3"])
    (request,) = requests_of(wish(worlds=(2,), sweep=swept), home=HOME, workdir=WORKDIR)
    assert len(request.items) == 6
    assert request.items[0].name == "2-ranks-lr=0.1-seed=1"
    assert request.items[0].words.count("--set") == 2
    target = ("python", "a b.py", "--x", "it's $HOME")
    (script,) = requests_of(wish(worlds=(2,), target=target), home=HOME, workdir=WORKDIR)
    assert script.items[0].words[-5:] == ("--", *target)


@pytest.mark.parametrize("value", ["../../etc", "a/b", "a b", "é\n", "$(id)"])
def test_values_of_a_sweep_are_harmless_in_the_names_of_folders(value):
    (request,) = requests_of(wish(worlds=(1,), sweep={"path": [value]}), home=HOME, workdir=WORKDIR)
    (item,) = request.items
    assert "/" not in item.name and item.name.isprintable() and " " not in item.name and "," not in item.name
    assert f"path={value}" in item.words, "the value itself is kept as it is"


def test_a_verification_is_one_job_on_the_most_ranks():
    (request,) = requests_of(wish(command="verify"), home=HOME, workdir=WORKDIR)
    assert request.needs.world_size == 4 and not request.may_go_on
    assert request.items[0].words[:3] == ("verify", "--gpus", "1,4")
    with pytest.raises(ConfigError, match="runs on one"):
        requests_of(wish(command="verify", per_node=2), home=HOME, workdir=WORKDIR)
    with pytest.raises(ConfigError, match="only trainings can be swept"):
        requests_of(wish(command="verify", sweep={"lr": ["1"]}), home=HOME, workdir=WORKDIR)


def test_htcondor_is_sent_the_files_and_told_their_names_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "task.py").touch()
    (tmp_path / "env.yml").touch()
    asked = wish(engine="htcondor", target=("sub/task.py:big",), worlds=(1,), environment="env.yml")
    (request,) = requests_of(asked, home=HOME, workdir=tmp_path)
    assert request.transfer == (str(tmp_path / "sub" / "task.py"),)
    assert request.items[0].words[-1] == "task.py:big"
    assert request.environment == str(tmp_path / "env.yml")
    with pytest.raises(ConfigError, match="nothing is there"):
        requests_of(wish(engine="htcondor", transfer=("no.csv",)), home=HOME, workdir=tmp_path)
    with pytest.raises(ConfigError, match="share no files"):
        requests_of(wish(environment="env.yml"), home=HOME, workdir=tmp_path)


def test_words_that_mean_nothing_are_refused():
    assert pairs_of("--env", ["A=b=c\nd"]) == {"A": "b=c\nd"}
    for parse, text in ((sweep_of, "lr"), (sweep_of, "lr="), (lambda t: pairs_of("--env", t), "A")):
        with pytest.raises(ConfigError):
            parse([text])
    with pytest.raises(ConfigError, match="printable"):
        one_line("name", "a\tb\n")


def test_a_training_is_told_in_time_also_where_there_is_little():
    assert lead_of(None) == lead_of(7200) == 120
    assert lead_of(240) == 60 and lead_of(20) == 10


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"gpu_memory_bytes": 2**30}, "--gpu-memory: only HTCondor"),
        ({"gpu_capability": 8.0, "engine": "ray"}, "--gpu-capability: only HTCondor.* --on is ray"),
        ({"gpu_type": "A100", "device": "cpu"}, "--cpu asks for no GPUs, and --gpu-type"),
        ({"gpu_memory_bytes": 1, "engine": "htcondor", "device": "cpu"}, "--cpu asks for no GPUs"),
    ],
)
def test_what_nobody_would_hear_is_refused(more, match):
    with pytest.raises(ConfigError, match=match):
        requests_of(wish(**more), home=HOME, workdir=WORKDIR)


def test_a_job_of_this_machine_is_on_one_and_has_no_limits():
    (request,) = requests_of(wish(engine="local", worlds=(9,), per_node=8), home=HOME, workdir=WORKDIR)
    assert request.needs.num_nodes == 1 and Local().files(request) == {}
    for more, name in (
        ({"time_s": {9: 60}}, "--time and --like"),
        ({"memory_per_rank_bytes": 1}, "--memory"),
        ({"gpu_type": "A100"}, "--gpu-type"),
        ({"options": {"nice": "1"}}, "--option"),
    ):
        (request,) = requests_of(wish(engine="local", worlds=(9,), **more), home=HOME, workdir=WORKDIR)
        with pytest.raises(ConfigError, match=f"leave out {name}, or"):
            Local().files(request)


def test_each_world_size_has_its_time_limit():
    one, four = requests_of(wish(time_s={1: 7200, 4: 240}), home=HOME, workdir=WORKDIR)
    assert (one.needs.time_s, one.lead_s) == (7200, 120)
    assert (four.needs.time_s, four.lead_s) == (240, 60)
