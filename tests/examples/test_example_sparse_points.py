"""The example of the point clouds: its network is right, and its page is true."""

import os
import re
import sys

import pytest
import torch
from readme_commands import EXAMPLES, copied, said, shown_in, verified
from torch.nn.functional import conv3d

NAME = "sparse_points"
CAUSES = {
    "samestep verify --gpus 1,2 -- python ddp.py": {"norm-not-synchronised", "tokens-averaged-per-rank"},
    "samestep verify task.py --gpus 1,2 --set steps=8": set(),
}
"""What is found in each program of the page."""


@pytest.fixture
def sparse(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES / NAME)
    import sparse

    yield sparse
    del sys.modules["sparse"]


def test_the_sparse_convolution_is_the_dense_one_where_there_are_points(sparse):
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(2, 3, 5, 5, 5, generator=generator, dtype=torch.float64)
    dense *= torch.rand(2, 1, 5, 5, 5, generator=generator) < 0.4
    places = dense.any(1).nonzero()  # scan, x, y, z, in the order of their keys
    sites = sparse.keys_of(places[:, 1:].double() + 0.5, places[:, 0].bincount(), 1.0)
    assert torch.equal(sites, sites.sort().values)

    layer = sparse.SparseConv(3, 4).double()
    layer.norm = torch.nn.Identity()
    scan, x, y, z = places.T
    found = layer(dense[scan, :, x, y, z], sparse.neighbours_of(sites))
    kernel = layer.weight.reshape(3, 3, 3, 3, 4).permute(4, 3, 0, 1, 2)
    expected = conv3d(dense, kernel, padding=1).relu()[scan, :, x, y, z]
    # sums of 27·3 products in another order, of numbers below 8: n·u of their sizes
    assert (found - expected).abs().max() <= 81 * 2.0**-53 * 81 * 8
    # the control: the same kernel seen in a mirror is another
    assert (conv3d(dense, kernel.flip(2), padding=1).relu()[scan, :, x, y, z] - found).abs().max() > 0.1


def test_voxels_of_twice_the_size_hold_the_points_of_those_inside(sparse):
    points = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) * 20 - 10
    lengths = torch.tensor([120, 80])
    whole = sparse.keys_of(points, lengths, 0.5)
    # both count from the edge of the world, which is half as many large voxels away
    (away,) = (sparse.coarser(sparse.keys_of(points, lengths, 0.25)) - whole).unique()
    assert away != 0 and len((sparse.keys_of(points, lengths, 0.25) - whole).unique()) > 1


@pytest.mark.parametrize("command", CAUSES)
def test_faults_are_named_and_the_task_has_none(command, tmp_path, capsys):
    (shown,) = shown_in(NAME, command)
    code, text = verified(command, copied(NAME, tmp_path), capsys)
    assert set(re.findall(r"^\d+\. ([\w-]+)$", text, re.MULTILINE)) == CAUSES[command], text
    assert code == bool(CAUSES[command])
    shown.assert_said(text)


def test_the_published_figures_lead_to_three_gpus(tmp_path):
    (shown,) = shown_in(NAME, "samestep advise")
    code, text = said(shown.command, copied(NAME, tmp_path))
    assert code == 0, text
    shown.assert_said(text)


@pytest.mark.quiet
@pytest.mark.timeout(900)
def test_contention_is_named_and_cured_by_fewer_threads(tmp_path):
    folder, cores = copied(NAME, tmp_path), len(os.sched_getaffinity(0))
    found = []
    for shown, threads in zip(shown_in(NAME, "samestep scale"), (cores, cores // 2), strict=True):
        command = re.sub(r"--threads \d+", f"--threads {threads}", shown.command)
        code, text = said(command, folder, limit_s=600)
        assert code in (0, 1), text
        found.append(re.findall(r"^\d+\. ([\w-]+)$", text, re.MULTILINE))
        if cores == 2:
            shown.assert_said(text)
    beyond, within = found
    assert beyond[0] == "cpu-contention" and "cpu-contention" not in within
