"""The benchmarks run and say numbers; how good these are is not for a test on a shared machine to say."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", ["step", "ddp", "bitwise", "order", "watch", "timing", "scaling"])
def test_a_quick_run_prints_its_table_and_writes_its_figures(name: str, tmp_path: Path) -> None:
    done = run(name, "--quick", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    assert f"{name}: " in done.stdout
    assert "no GPU figure is claimed" in done.stdout
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["machine"]["torch"]
    rows = written["benchmarks"][name]
    assert rows
    for row in rows:
        assert row["what"] in done.stdout
        sides = [side for side in (row["ours"], row["theirs"]) if side is not None]
        # memory is the growth of a peak, which may not grow at all
        assert all(math.isfinite(side) and (side > 0 or row["unit"] == "MB") for side in sides)
        if row["figure_unit"] == "of their throughput":
            assert 0 < row["figure"]["low"] <= row["figure"]["value"] <= row["figure"]["high"] < math.inf


def test_an_unknown_benchmark_is_refused() -> None:
    done = run("stop")
    assert done.returncode == 2
    assert "unknown benchmark stop; there are step, ddp, bitwise, order" in done.stderr
