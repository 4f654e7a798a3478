"""What tells two machines apart, as Linux and NVIDIA's driver write it down."""

import pytest

from samestep.launch import inventory, machine

INFORMATION = "Model: \t\t {model}\nIRQ:   \t\t 35\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"


@pytest.fixture
def driver(tmp_path):
    """A machine with two GPUs of one model, and one of another."""
    for minor, (bus, model) in enumerate(
        [("0000:07:00.0", "NVIDIA A100-SXM4-40GB"), ("0000:0b:00.0", "NVIDIA A100-SXM4-40GB"),
         ("0000:c1:00.0", "Tesla T4")]
    ):  # fmt: skip
        (tmp_path / bus).mkdir()
        text = INFORMATION.format(model=model, uuid=f"GPU-{minor}{minor}", minor=minor)
        (tmp_path / bus / "information").write_text(text)
    return tmp_path


def test_gpus_by_number_and_by_name(driver):
    assert inventory.gpu_models(["0", "2"], driver) == ["NVIDIA A100-SXM4-40GB", "Tesla T4"]
    assert inventory.gpu_models(["GPU-22"], driver) == ["Tesla T4"]


@pytest.mark.parametrize("names", [["3"], ["0", "MIG-1"], ["0", "GPU-99"]])
def test_one_that_is_not_known_leaves_all_unknown(driver, names):
    assert inventory.gpu_models(names, driver) == []


def test_without_a_driver_there_are_no_models(tmp_path):
    assert inventory.gpu_models(["0"], tmp_path / "none") == []


def test_gpus_that_we_may_not_use_are_of_the_node_all_the_same(driver, monkeypatch):
    monkeypatch.setattr(machine, "_DRIVER", driver)
    monkeypatch.setattr(inventory, "_DRIVER", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = inventory.inventory()
    assert (machine.count_gpus(), found["gpus_per_node"]) == (1, 3)


def test_the_processor_by_its_name(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: AMD EPYC 7543  32-Core\nmodel name\t: other\n")
    assert inventory.cpu_model(path) == "AMD EPYC 7543 32-Core"
    path.write_text("processor\t: 0\n")
    assert inventory.cpu_model(path) is None
    assert inventory.cpu_model(tmp_path / "none") is None


def test_this_machine_has_memory():
    assert inventory.memory_bytes() > 2**28
