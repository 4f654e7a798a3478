"""The pages do what they say: their code runs, their tables and quotations are the program's own.

Blocks of one page of docs/ share a namespace and a temporary working folder. A comment in front of a block
changes what happens to it: `<!-- file: NAME -->` writes it to NAME, `<!-- not run: REASON -->` leaves it
alone.
"""

import ast
import contextlib
import dataclasses
import difflib
import importlib.util
import io
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer

import samestep
import worlds
from samestep.cli import app
from samestep.nn.dropout import set_stream
from samestep.target import load
from samestep.task import Task
from samestep.verify.causes import CAUSES
from samestep.world import current

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "samestep"
EXAMPLES = ROOT / "examples"
OWN_LOOP = EXAMPLES / "own_loop"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
README = ROOT / "README.md"
EVERY_PAGE = [README, *(DOCS / name for name in PAGES), *sorted(EXAMPLES.rglob("README.md"))]

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>.*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """A fenced block of a page, with the line of the page that its text starts at."""

    language: str
    text: str
    file: str
    is_run: bool
    line: int


def blocks_of(page: str | Path) -> list[Block]:
    text = (DOCS / page).read_text()
    found = []
    for match in _BLOCK.finditer(text):
        mark = match["mark"] or ""
        assert not mark or mark.startswith(("file: ", "not run: ")), f"{page}: unknown mark {mark!r}"
        line = text.count("\n", 0, match.start("text")) + 1
        file = mark.removeprefix("file: ") if mark.startswith("file: ") else ""
        found.append(Block(match["language"], match["text"], file, not mark.startswith("not run: "), line))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder that leaves nothing behind in this process: no modules, no path, no world."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for a busy core make small tensors many times slower
    yield tmp_path
    if (world := current()) is not None:
        world.close()
    set_stream(None)
    torch.set_rng_state(generator)
    torch.set_num_threads(threads)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, folder):
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if not block.is_run:
            continue
        if block.file:
            Path(block.file).write_text(block.text)
        if block.language == "python" and not block.file:
            code = compile("\n" * (block.line - 1) + block.text, str(DOCS / page), "exec")
            exec(code, namespace)  # noqa: S102  our own pages
        elif block.language == "yaml":
            assert block.file, f"{page}:{block.line}: a YAML block needs a name, `<!-- file: NAME -->`"
            assert isinstance(load(block.file), Task)
        elif block.language == "console":
            run_console(block, page)
        else:  # a difference and what programs say are compared by tests of their own
            known = ("csv", "python") if block.file else ("diff", "text")
            assert block.language in known, f"{page}:{block.line}: run {block.language}, or say why not"


def run_console(block: Block, page: str) -> None:
    """Run each `$ samestep …` line, and look for the lines shown below it, in order; `…` is anything."""
    command, shown = "", []
    for line in [*block.text.splitlines(), "$ "]:
        if not line.startswith("$ "):
            shown.append(line)
            continue
        if command:
            text, end = run_command(command), 0
            for piece in (piece for row in shown for piece in row.split("…")):
                begin = text.find(piece, end)
                assert begin >= 0, f"{page}:{block.line}: {command}\ndid not say {piece!r} there, but\n{text}"
                end = begin + len(piece)
        command, shown = line.removeprefix("$ "), []


def run_command(command: str) -> str:
    """What `samestep …` says; it must end well, or as `# exit N` behind it says."""
    words = shlex.split(command, comments=True)
    expected = re.search(r"  # exit (\d+)$", command)
    assert words[0] == "samestep", f"only samestep is run in pages, not {command!r}"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "samestep.cli", *words[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=300,
    )
    # whether a sweep is faster is for this machine to say: both answers are good
    codes = (int(expected[1]),) if expected else (0, 1) if words[1] == "scale" else (0,)
    assert done.returncode in codes, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def test_links_lead_somewhere():
    for page in EVERY_PAGE:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page} links to {target}"
    linked = re.findall(r"\]\((\w+\.md)\)", (DOCS / "index.md").read_text())
    assert {*linked, "index.md"} == set(PAGES)


def unknown_words(command: str) -> list[str]:
    """The command and the options of a line with `samestep …` in it that there are not."""
    commands = typer.main.get_command(app).commands
    words = shlex.split(command, comments=True)
    name, *rest = words[words.index("samestep") + 1 :]
    if name not in commands:
        return [name]
    known = {text for option in commands[name].params for text in (*option.opts, *option.secondary_opts)}
    rest = rest[: rest.index("--")] if "--" in rest else rest
    return [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


def test_commands_that_are_shown_exist():
    """Those too that are not run here."""
    shown = [
        line.removeprefix("$ ")
        for page in EVERY_PAGE
        for block in blocks_of(page)
        if block.language == "console"
        for line in block.text.splitlines()
        if re.match(r"\$ (?!python\b).*\bsamestep (?!-)", line)
    ]
    assert len(shown) > 80
    assert [(line, words) for line in shown if (words := unknown_words(line))] == []
    for wrong, word in [("train --gpu 2", "--gpu"), ("trial task.py", "trial")]:  # the control
        assert unknown_words(f"samestep {wrong} -- python train.py --lr 1") == [word]


def is_there(name: str) -> bool:
    """Whether a dotted name below samestep leads to a module or to something in one."""
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


def test_names_in_python_exist(folder):
    text = "\n".join(page.read_text() for page in EVERY_PAGE)
    names = set(re.findall(r"`(samestep(?:\.\w+)+)", text))
    assert len(names) > 10
    assert {name for name in names if not is_there(name)} == set()
    assert not is_there("samestep.nn.synchronize")  # the control
    world = samestep.init()
    of_world = set(re.findall(r"\bworld\.(\w+)", text))
    assert len(of_world) > 8
    assert {name for name in of_world if not hasattr(world, name)} == set()


# the site


def built(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site), *options]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=120, check=False)


def test_site_is_built_whole_and_has_the_examples(tmp_path):
    site = tmp_path / "site"
    done = built(site)
    assert done.returncode == 0, done.stderr
    pages = sorted(site.rglob("*.html"))
    assert {f"examples/{path.parent.name}/index.html" for path in EXAMPLES.glob("*/README.md")} <= {
        path.relative_to(site).as_posix() for path in pages
    }
    for page in pages:
        if page.name == "404.html":  # it has addresses of a server
            continue
        for target in re.findall(r'(?:href|src)="([^"#?:]+)[^":]*"', page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(site)} links to {target}"


def test_site_with_a_dead_link_is_refused(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[there](nowhere.md)")
    settings = tmp_path / "mkdocs.yml"
    settings.write_text("site_name: x\nstrict: true\n")
    done = built(tmp_path / "site", "--config-file", str(settings))
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr


# README.md


def test_loop_of_the_readme_runs(folder):
    (block,) = (block for block in blocks_of(README) if block.language == "python")
    points = torch.randn(600, 4)
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    names = {
        "model": model,
        "dataset": torch.utils.data.TensorDataset(points),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": lambda model, batch: (model(batch[0]).square().sum(), len(batch[0])),
    }
    exec(compile(block.text, str(README), "exec"), names)  # noqa: S102  our own page
    assert names["world"].stepper(names["optimizer"]).num_steps == 3  # 256, 256 and the rest
    assert not torch.equal(model.weight, before)


def quoted(page: Path) -> dict[str, list[str]]:
    """The lines below each command of a page."""
    found: dict[str, list[str]] = {}
    for block in blocks_of(page):
        for line in block.text.splitlines() if block.language == "console" else ():
            if line.startswith("$ "):
                below = found.setdefault(shlex.join(shlex.split(line, comments=True)), [])
            else:
                below.append(line.rstrip("…"))
    return found


def test_readme_quotes_a_page_that_is_run():
    """The tests of the example run its page; what the README shows of it must stand there, in order."""
    of_example = quoted(EXAMPLES / "sparse_points" / "README.md")
    lines = {command: below for command, below in quoted(README).items() if below}
    assert len(lines) == 4
    for command, below in lines.items():
        rest = iter(of_example[command])
        assert [line for line in below if line not in rest] == [], command


# own_loop.md


def test_own_loop_shows_the_difference_of_the_two_files_and_it_is_small():
    before, after = (OWN_LOOP / name for name in ("plain.py", "samestep_loop.py"))
    lines = difflib.unified_diff(
        before.read_text().splitlines(), after.read_text().splitlines(), before.name, after.name, lineterm=""
    )
    difference = "\n".join(lines) + "\n"
    (shown,) = [block.text for block in blocks_of("own_loop.md") if block.language == "diff"]
    assert shown == difference
    added = [line for line in difference.splitlines()[2:] if line.startswith("+")]
    assert len(added) <= 6


def final_loss(text: str) -> float:
    (found,) = set(re.findall(r"final loss (\S+)", text))
    return float(found)


def in_this_process(source: str) -> float:
    path = Path("script.py")
    path.write_text(source)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(path), run_name="__main__")
    return final_loss(said.getvalue())


# A sum of n numbers in another order errs by at most n·u of the sum of their sizes (Higham, Accuracy and
# Stability of Numerical Algorithms, 2002, section 4.2), u = 2⁻⁵³. A step has 8 such sums on its way: three
# layers forward and backward, the loss, the exchange; the longest has n = 100 examples. 5 epochs of 18 steps
# carry the errors of those before them along. The loss is below 1, so this is absolute as well.
TOLERANCE = 90 * 8 * 100 * 2.0**-53


def test_own_loop_ends_at_the_same_loss_on_one_process_one_rank_and_two(folder):
    plain = (OWN_LOOP / "plain.py").read_text()
    reference = in_this_process(plain)
    assert abs(in_this_process((OWN_LOOP / "samestep_loop.py").read_text()) - reference) <= TOLERANCE
    two = run_command(f"samestep train --gpus 2 --out two -- python {OWN_LOOP / 'samestep_loop.py'}")
    assert abs(final_loss(two) - reference) <= TOLERANCE
    # the control: batches of one more example end elsewhere, by far more than rounding
    assert (
        abs(in_this_process(plain.replace("batch_size=100", "batch_size=101")) - reference) > 1e6 * TOLERANCE
    )


# task.md


def test_table_of_settings_is_that_of_task():
    text = (DOCS / "task.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    expected = []
    for field in dataclasses.fields(Task):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        expected.append((field.name, "needed" if default is dataclasses.MISSING else f"`{default!r}`"))
    assert rows == expected


# norms.md


def two_steps_with(world, path: str, name: str) -> dict[str, torch.Tensor]:
    """The state of a model with the page's layer after two steps, one of which no world size divides."""
    spec = importlib.util.spec_from_file_location("page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = torch.Generator().manual_seed(1)
    dataset = torch.utils.data.TensorDataset(
        torch.randn(13, 3, generator=generator, dtype=torch.float64) * 4 + 1
    )
    layers = torch.nn.Linear(3, 3), getattr(module, name)(3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
    model = world.replicate(torch.nn.Sequential(*layers).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for (x,) in world.loader(dataset, batch_size=8):
        with world.step(optimizer) as step:
            step.backward(model(x).square().sum(), len(x))
    return {
        "causes": [finding.cause for finding in world.findings],
        **{key: value.clone() for key, value in model.state_dict().items()},
    }


@pytest.mark.parametrize(("name", "is_synchronised"), [("CentreNorm", True), ("LocalCentreNorm", False)])
def test_layer_of_norms_page_takes_the_same_step_on_two_ranks(tmp_path, name, is_synchronised):
    (layer,) = [block for block in blocks_of("norms.md") if block.file == "centre_norm.py"]
    path = tmp_path / layer.file
    path.write_text(layer.text)
    one, two = (worlds.run(size, two_steps_with, path=str(path), name=name)[0] for size in (1, 2))
    assert (two.pop("causes") == []) == is_synchronised
    one.pop("causes")
    # 2 steps with 4 layers of sums, forward and backward, over at most 8 examples; see TOLERANCE
    limit = 2 * 2 * 4 * 8 * 2.0**-53 * max(float(value.abs().max()) for value in one.values())
    worst = max(float((one[key] - two[key]).abs().max()) for key in one)
    assert worst <= limit if is_synchronised else worst > 1e6 * limit


# scale.md


def test_scale_names_every_mark_and_those_that_refuse():
    source = (SOURCE / "scale" / "fairness.py").read_text()
    marks = re.findall(r'compared\.mark\(\s*"([\w-]+)"(.*?)\n        +\)', source, re.DOTALL)
    assert len(marks) > 10
    rows = re.findall(r"^\| (`[\w-]+`.*?) \|", (DOCS / "scale.md").read_text(), re.MULTILINE)
    named = {mark: row.endswith("refused") for row in rows for mark in re.findall(r"`([\w-]+)`", row)}
    refuses = {mark: "is_refusal=True" in rest for mark, rest in marks}
    assert {mark: named.get(mark) for mark in refuses} == refuses


# troubleshooting.md


def said_in_source() -> list[str]:
    """Every text in the source, with `…` where a value is put in."""
    texts = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_troubleshooting_quotes_what_the_program_says():
    quoted = re.findall(r"^### “(.+)”$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    said = said_in_source()
    assert len(quoted) > 30
    assert [text for text in quoted if not any(text in words for words in said)] == []


def test_troubleshooting_names_every_cause_of_a_finding():
    causes = {
        cause
        for path in SOURCE.rglob("*.py")
        for cause in re.findall(r'\bcause="([\w-]+)"', path.read_text())
    } | set(CAUSES)
    named = set(re.findall(r"^### `([\w-]+)`$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE))
    assert named == causes
    assert set(re.findall(r"\(troubleshooting\.md#([\w-]+)\)", (DOCS / "symptoms.md").read_text())) >= causes
