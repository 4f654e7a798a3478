"""The scripts of the zoo, as parameters of tests."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = ("plain", "accelerate", "lightning", "transformers")


def entries():
    """Folder, name and accepted causes of each script that has a fault; its twin has `_right` in its name."""
    for folder in FOLDERS:
        spec = importlib.util.spec_from_file_location(f"zoo_{folder}", HERE / folder / "entries.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for entry in module.ENTRIES:
            yield pytest.param(folder, entry.name, entry.causes, id=f"{folder}/{entry.name}")
