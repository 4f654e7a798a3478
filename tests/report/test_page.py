"""The page as a file: what it says, leaves out and refuses. How it looks: test_page_in_browser."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner
from verdicts import verdict, write_record, write_verdict

from samestep import cli
from samestep.errors import RecordError
from samestep.report.page import page_of

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"quoted'\nline {{ 7*7 }}\x1b[31m"
)


class Elements(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.text += " " if tag in ("dt", "dd", "th", "td", "p") else ""

    def handle_data(self, data):
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def text_of(html: str) -> str:
    return " ".join(Elements(html[html.index("<body>") : html.index("<script>")]).text.split())


def test_a_verdict_says_what_was_found_word_for_word(tmp_path):
    page = page_of(write_verdict(tmp_path), now=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert page.sections == ("steps", "findings", "remarks", "runs", "repeat", "environment")
    text = text_of(page.html)
    given = verdict()
    for finding in given["findings"]:
        assert finding["message"] in text and finding["fix"] in text and finding["cause"] in text
    assert all(remark in text for remark in given["remarks"])
    assert "On 2 and 4 ranks the program does not train the same as on one." in text
    assert "First seen in step 3: the output of backbone.layer1.0.bn1." in text
    assert "0.1873, 59,000 times what rounding explains" in text
    assert "ranks compared 1, 2 and 4 steps compared 24 runs made 8 time taken 52.4 s" in text
    assert "samestep verify --gpus 1,2,4 -- python train.py --epochs 1" in text
    assert "threads a rank 1 and 2" in text and "torch 2.13.0" in text and "2026-01-02 03:04 UTC" in text
    assert "none" not in {name.strip() for name in re.findall(r"<dt[^>]*>(.*?)</dt>", page.html)}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"verdict": "same"}, "the same bits in all weights and buffers, over 24 steps."),
        ({"verdict": "equal", "worlds": [1, 2]}, "On 2 ranks the program trains the same as on one, up to"),
        ({"verdict": "inconclusive", "remarks": ["it never stepped."]}, "is not known: it never stepped."),
        ({"verdict": "inconclusive", "remarks": []}, "is not known: there was nothing to compare."),
    ],
)
def test_other_verdicts_in_one_sentence(tmp_path, changes, sentence):
    value = verdict(first=99) | {"first_difference": None, "findings": []} | changes
    html = page_of(write_verdict(tmp_path, value)).html
    assert sentence in text_of(html)
    assert "The first difference" not in html and 'id="findings"' not in html


def test_the_first_difference_is_lit_up_once_and_marks_differ_without_colour(tmp_path):
    html = page_of(write_verdict(tmp_path)).html
    assert html.count('id="first-difference"') == html.count("different, the first difference") == 1
    cells = set(re.findall(r'<td class="(\w+)[^>]*><span aria-hidden="true">(.)</span>', html))
    assert cells == {("same", "="), ("equal", "≈"), ("different", "≠"), ("none", "·")}


def test_a_difference_that_is_not_in_the_table_is_told_and_lights_nothing_up(tmp_path):
    first = verdict()["first_difference"] | {"quantity": "examples", "size": 4.0, "tolerance": 0.0}
    html = page_of(write_verdict(tmp_path, verdict(first=99) | {"first_difference": first})).html
    assert 'id="first-difference"' not in html and "It is between the program as it is" in html
    assert "apart by 4 allowed nothing: it has to be the same exactly" in text_of(html)


def test_a_training_run_shows_its_course_and_its_end(tmp_path):
    page = page_of(write_record(tmp_path, nan_at=150))
    assert page.sections == ("findings", "training", "epochs", "repeat", "environment")
    text = text_of(page.html)
    assert "Finished 300 steps and 19,200 examples on 2 ranks." in text
    assert "It is not a finite number in step 150." in text
    assert (
        "samestep train task.py --gpus 2 --mode bitwise --shards 8 --threads 1 --set lr=0.1" in text
        and "cpu × 2" in text
        and "AVX2" in text
    )
    assert len(Elements(page.html).named("path")) == 2
    assert "c1" * 32 in text and "A norm is local." in text


def test_a_run_that_was_cut_off_is_told_as_far_as_it_goes(tmp_path):
    write_record(tmp_path, num_steps=7, is_finished=False)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    text = text_of(page_of(tmp_path).html)
    assert "7 steps and 448 examples on 2 ranks so far" in text
    assert "steps.jsonl, line 8: cut off while it was written" in text


def test_a_folder_may_hold_a_verdict_and_a_run(tmp_path):
    write_record(tmp_path)
    page = page_of(write_verdict(tmp_path))
    assert {"steps", "training", "epochs"} < set(page.sections)
    assert "A norm is local." in page.html and "norm-not-synchronised" in page.html


def hostile_verdict():
    first = verdict()["first_difference"] | {"name": HOSTILE, "reference": HOSTILE, "candidate": HOSTILE}
    finding = {
        "cause": HOSTILE,
        "message": HOSTILE,
        "evidence": {HOSTILE: [HOSTILE, {"a": HOSTILE}]},
        "fix": HOSTILE,
    }
    run = {"name": HOSTILE, "world_size": 2, "status": HOSTILE, "why": HOSTILE, "failure": HOSTILE}
    return verdict() | {
        "first_difference": first,
        "findings": [finding],
        "remarks": [HOSTILE],
        "runs": [run],
        "command": ["verify", HOSTILE],
        "table": [[HOSTILE, 1, "same"], ["forward", 3, "different"]],
    }


def test_what_users_write_is_never_markup(tmp_path):
    folder = write_verdict(tmp_path / "<b>bold & \"x'", hostile_verdict())
    html = page_of(folder).html
    found = Elements(html)
    assert len(found.named("script")) == 1 and not found.named("img") and not found.named("b")[3:]
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert unescape(html).count("{{ 7*7 }}") > 10 and "\x1b" not in html and "\\u001b[31m" in html


def test_a_path_in_the_name_of_a_run_leads_nowhere(tmp_path):
    write_verdict(tmp_path / "other")
    runs = [{"name": "../other/reference", "world_size": 1, "status": "finished"}]
    value = verdict() | {"runs": runs, "command": []}
    inside = page_of(write_verdict(tmp_path / "here", value))
    assert "environment" not in inside.sections and "node7" not in inside.html
    runs[0]["name"] = "reference"
    assert "node7" in page_of(write_verdict(tmp_path / "here", value)).html


def test_the_command_is_made_from_what_was_watched_if_it_was_not_written_down(tmp_path):
    html = page_of(write_verdict(tmp_path, verdict(command=[]))).html
    assert "samestep verify --gpus 1,2,4 -- python train.py --epochs 1" in html


def test_a_page_stays_small_and_says_what_it_leaves_out(tmp_path):
    """Whatever a program writes: long texts, of the character that escaping makes the longest."""
    write_record(tmp_path, num_steps=2000)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.writelines(f'{{"step": {k}, "loss": {k % 7}.5, "lr": 0.1}}\n' for k in range(2001, 30_000))
    long = '"' * 5_000
    finding = {"message": long, "fix": long, "evidence": {f"{k}{long}": long for k in range(40)}}
    run = {"name": long, "world_size": 2, "status": long, "why": long, "failure": long}
    value = verdict(num_steps=20_000) | {
        "findings": [finding | {"cause": f"{k}{long}"} for k in range(60)],
        "remarks": [long] * 200,
        "runs": [run] * 200,
        "command": [long] * 9,
    }
    html = page_of(write_verdict(tmp_path, value)).html
    assert 1_000_000 < len(html.encode()) < 6_000_000
    for hidden in (
        "11 more findings",
        "24 values",
        "150 more remarks",
        "100 more runs",
        "4,000 more characters",
    ):
        assert hidden in html


def test_nothing_to_report_is_a_sentence(tmp_path):
    def refusal(folder: Path) -> str:
        with pytest.raises(RecordError) as caught:
            page_of(folder)
        return str(caught.value)

    assert "there is no such folder" in refusal(tmp_path / "none")
    assert "holds nothing to report" in refusal(tmp_path)
    write_record(tmp_path / "2-ranks", num_steps=1)
    assert "name one of them: 2-ranks" in refusal(tmp_path)
    assert "it is a file" in refusal(tmp_path / "2-ranks" / "record.json")
    (tmp_path / "verdict.json").write_text('{"verdict"')
    assert "not a JSON object" in refusal(tmp_path)
    (tmp_path / "verdict.json").write_text(json.dumps(verdict() | {"worlds": ["two"]}))
    assert "(worlds.0: " in refusal(tmp_path)
    (tmp_path / "verdict.json").write_text('{"version": 2, "samestep": "9.0"}')
    assert "has version 2" in refusal(tmp_path) and "(9.0)" in refusal(tmp_path)
    about = json.loads((tmp_path / "2-ranks" / "record.json").read_text()) | {"version": 7}
    (tmp_path / "2-ranks" / "record.json").write_text(json.dumps(about))
    assert "has version 7" in refusal(tmp_path / "2-ranks")


def test_the_command_writes_the_page_or_says_why_not(tmp_path, monkeypatch, capsys):
    folder = write_verdict(tmp_path / "out")
    done = CliRunner().invoke(cli.app, ["report", str(folder)])
    assert done.exit_code == 0 and done.stdout.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    done = CliRunner().invoke(cli.app, ["report", str(folder), "-o", str(tmp_path / "p.html"), "--json"])
    said = json.loads(done.stdout)
    assert said["bytes"] == (tmp_path / "p.html").stat().st_size and said["sections"][0] == "steps"
    (tmp_path / "empty").mkdir()
    for words, sentence in (
        ([str(tmp_path / "empty")], "holds nothing to report"),
        ([str(folder), "-o", str(tmp_path / "none" / "p.html")], "name another file with -o"),
    ):
        monkeypatch.setattr(sys, "argv", ["samestep", "report", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2 and sentence in " ".join(capsys.readouterr().err.split())
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_page_needs_no_torch(tmp_path):
    code = (
        "import sys, pathlib; sys.modules['torch'] = None; from samestep.report.page import page_of; "
        "print(len(page_of(pathlib.Path(sys.argv[1])).html))"
    )
    words = [sys.executable, "-c", code, str(write_verdict(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and int(done.stdout) > 1000, done.stderr
