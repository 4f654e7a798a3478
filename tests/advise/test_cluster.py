"""Specs of clusters: what ships, what is read, what is refused and how."""

from pathlib import Path

import pytest

from samestep.advise.cluster import Cluster, Link, Network, read_cluster, shipped
from samestep.errors import ConfigError

GOOD = """\
name: lab
gpus_per_node: 4
inside:
  bytes_per_s: 31.5e9
  latency_s: 5e-6
between:
  bytes_per_s: 3.125e9
  latency_s: 1e-5
  links_per_node: 2
  achieved: 0.8
sources:
  - https://example.org/sheet
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "lab.yaml"
    path.write_text(text)
    return path


def test_a_spec_is_read_with_its_units(tmp_path):
    cluster = read_cluster(written(tmp_path, GOOD))
    assert cluster == Cluster(
        name="lab",
        gpus_per_node=4,
        inside=Link(bytes_per_s=31.5e9, latency_s=5e-6),
        between=Network(bytes_per_s=3.125e9, latency_s=1e-5, links_per_node=2, achieved=0.8),
        sources=("https://example.org/sheet",),
    )
    assert cluster.inside.rate_bytes_per_s == 31.5e9
    assert cluster.node_bytes_per_s == 3.125e9 * 0.8 * 2


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_spec_is_read_and_has_sources(name):
    cluster = read_cluster(name)
    assert cluster.inside is not None
    assert cluster.sources
    # published figures only: what exchanges reach of them is for the user to measure
    assert cluster.inside.achieved == 1.0
    if cluster.between is not None:
        assert cluster.between.achieved == 1.0
        # no machine has a faster way out of a node than from one of its GPUs to all others
        assert cluster.node_bytes_per_s <= cluster.gpus_per_node * cluster.inside.bytes_per_s


def test_the_machines_people_ask_for_ship():
    assert {"dgx-a100", "dgx-h100", "aws-p4d", "aws-p5", "aws-g5-12xlarge", "pcie-4gpu-25gbe"} <= set(
        shipped()
    )
    assert read_cluster("dgx-a100").node_bytes_per_s == 8 * 200e9 / 8
    assert read_cluster("aws-p5").node_bytes_per_s == 3200e9 / 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gpus_per_node: 4", "gpus_per_node: 0", "lab.yaml:2: `gpus_per_node` is 0; it should be greater"),
        ("gpus_per_node: 4", "gpus_per_node: four", "`gpus_per_node` is 'four'; it should be a valid"),
        ("gpus_per_node: 4", "gpus_per_nodes: 4", "`gpus_per_nodes`; did you mean `gpus_per_node`?"),
        ("  links_per_node: 2", "  nics: 2", "lab.yaml:9: unknown key `between.nics`. The keys there are"),
        ("31.5e9", "31.5", "lab.yaml:4: `inside.bytes_per_s` is 31.5; it must be in bytes a second"),
        ("31.5e9", "-1e9", "`inside.bytes_per_s` is -1000000000.0; it should be greater than 0"),
        ("31.5e9", ".nan", "`inside.bytes_per_s` is nan; it should be a finite number"),
        ("31.5e9", ".inf", "`inside.bytes_per_s` is inf; it should be a finite number"),
        ("31.5e9", "fast", "`inside.bytes_per_s` is 'fast'"),
        ("latency_s: 5e-6", "latency_s: 5", "lab.yaml:5: `inside.latency_s` is 5; it must be in seconds"),
        ("latency_s: 5e-6", "latency_s: -5e-6", "`inside.latency_s` is -5e-06"),
        ("  latency_s: 5e-6\n", "", "the key `inside.latency_s` is missing"),
        ("achieved: 0.8", "achieved: 80", "`between.achieved` is 80; it should be less than or equal to 1"),
        ("achieved: 0.8", "achieved: 0", "`between.achieved` is 0; it should be greater than 0"),
        ("https://example.org/sheet", "my memory", "`sources.0` is 'my memory'; it must be a URL"),
        (GOOD[GOOD.index("inside") : GOOD.index("between")], "", "`gpus_per_node` is 4, so `inside` must"),
        ("name: lab\n", "name: lab\nname: lab\n", "the key `name` is there twice"),
        ("name: lab", "name: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_its_name_and_line(tmp_path, old, new, said):
    assert old in GOOD
    with pytest.raises(ConfigError) as refused:
        read_cluster(written(tmp_path, GOOD.replace(old, new, 1)))
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "8"])
def test_a_file_that_is_no_spec_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="must hold keys and values"):
        read_cluster(written(tmp_path, text))


def test_a_name_that_is_not_known_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"`dgx-a10` is neither .* did you mean `dgx-a100`\?"):
        read_cluster("dgx-a10")
    with pytest.raises(ConfigError, match=r"Known names are aws-.*, rtx-pcie"):
        read_cluster("zzz")
    with pytest.raises(ConfigError, match=r"missing\.yaml cannot be read"):
        read_cluster("missing.yaml")


def test_one_node_cannot_be_several():
    workstation = read_cluster("rtx-pcie")
    workstation.check(2)
    with pytest.raises(ConfigError, match=r"^3 GPUs were asked for; .* is one node with 2\. .*`between: \{"):
        workstation.check(3)
    for none in (0, -4):
        with pytest.raises(ConfigError, match=f"^{none} GPUs were asked for; it must be 1 or more"):
            workstation.check(none)
