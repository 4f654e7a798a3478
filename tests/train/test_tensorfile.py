import hashlib
import threading
import time

import pytest
import safetensors.torch
import torch

from samestep.train.tensorfile import (
    DTYPES,
    Damaged,
    Seal,
    check_tensors,
    raw_bytes,
    read_tensors,
    write_tensors,
)


def various():
    torch.manual_seed(0)
    named = {f"of {name}": (torch.rand(5, 3) * 7).to(dtype) for dtype, name in DTYPES.items()}
    named |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "tränsposed/~2": torch.randn(3, 4).t()}
    return named


def same(a, b):
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and raw_bytes(a[n]) == raw_bytes(b[n])
        for n in a
    )


def test_the_safetensors_library_reads_our_files_and_we_read_its(tmp_path):
    named = various()
    seal = write_tensors(tmp_path / "ours", named)
    assert same(safetensors.torch.load_file(tmp_path / "ours"), named)
    assert same(read_tensors(tmp_path / "ours", seal), named)
    assert (tmp_path / "ours").stat().st_size == seal.num_bytes

    safetensors.torch.save_file({name: t.contiguous() for name, t in named.items()}, tmp_path / "theirs")
    data = (tmp_path / "theirs").read_bytes()
    assert same(read_tensors(tmp_path / "theirs", Seal(len(data), hashlib.sha256(data).hexdigest())), named)


def test_no_file_is_overwritten(tmp_path):
    write_tensors(tmp_path / "x", {"a": torch.ones(1)})
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "x", {"a": torch.zeros(1)})


@pytest.mark.parametrize("reading", [read_tensors, check_tensors])
def test_one_bit_and_one_byte_are_noticed(tmp_path, reading):
    path = tmp_path / "x"
    seal = write_tensors(path, {"a": torch.ones(1000)})
    good = path.read_bytes()
    reading(path, seal)
    path.write_bytes(good[:-10] + bytes([good[-10] ^ 1]) + good[-9:])
    assert safetensors.torch.load_file(path)["a"].shape == (1000,)  # control: the library notices nothing
    with pytest.raises(Damaged, match=f"SHA-256 .* but {seal.sha256} was written"):
        reading(path, seal)
    path.write_bytes(good[:-1])
    with pytest.raises(Damaged, match=f"has {len(good) - 1} bytes; {len(good)} were written"):
        reading(path, seal)
    path.unlink()
    with pytest.raises(Damaged, match="No such file"):
        reading(path, Seal(0, ""))


def share_of_longest_stop(work) -> float:
    """The longest time that this thread could not run while another does `work`, as a share of that work."""
    thread = threading.Thread(target=work)
    start = last = time.perf_counter()
    longest = 0.0
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest / (time.perf_counter() - start)


def test_writing_does_not_stop_the_other_threads(tmp_path):
    named = {str(i): torch.zeros(4_000_000) for i in range(4)}
    # the best of three, since a busy machine can stop any thread for a while
    ours = min(share_of_longest_stop(lambda i=i: write_tensors(tmp_path / str(i), named)) for i in range(3))
    assert ours < 0.4
    data = bytes(64_000_000)  # control: a call that keeps the lock
    assert max(share_of_longest_stop(lambda: data.count(b"x")) for _ in range(3)) > 0.6
