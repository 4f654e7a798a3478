"""The page in a real Chromium: nothing is asked for, nothing runs, all can be read, reached and printed."""

import http.server
import re
import threading
from itertools import pairwise

import pytest
from chromium import Chromium
from sweeps import hostile_sweep, noisy_sweep, write_lines, write_sweep
from test_page import HOSTILE, hostile_verdict
from verdicts import verdict, write_record, write_verdict

from samestep.report.page import page_of

# The smallest contrast that WCAG 2.2 asks of text (criterion 1.4.3): 4.5 to 1.
CONTRAST = 4.5
PHONE, DESKTOP = 360, 1100
A4 = 688
"""Pixels between the margins of a sheet: 182 mm at 96 to the inch."""

LOW_CONTRAST = """(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => {
      const c = v / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/^rgba.*, 0\\)$/.test(colour) && colour !== "transparent") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("script, .unseen, .skip")) continue;
    const style = getComputedStyle(element);
    if (element.matches("svg title, svg desc") || !element.checkVisibility()) continue;
    const ink = element.closest("svg") ? style.fill : style.color;
    // a letter in a bar is on the bar's colour, other text of a picture on the page's
    const bar = element.matches("svg .on") ? element.previousElementSibling : null;
    const under = bar ? getComputedStyle(bar).fill : behind(element);
    const [low, high] = [light(ink), light(under)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < LEAST) found.push(`${element.getAttribute("class") || element.tagName} ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
})()""".replace("LEAST", str(CONTRAST))

# Boxes that scroll by themselves may hold more than they show; nothing else may.
CUT_OFF = """(() => {
  const width = document.documentElement.clientWidth;
  return [...document.body.querySelectorAll("*")]
    .filter((e) => !e.closest(".wide, .unseen, .skip") && e.getBoundingClientRect().right > width + 0.5)
    .map((e) => e.getAttribute("class") || e.tagName);
})()"""
# Texts of one picture that lie upon one another.
COLLIDING = """(() => {
  const found = [];
  for (const picture of document.querySelectorAll("svg[role=img]")) {
    const texts = [...picture.querySelectorAll("text")];
    const boxes = texts.map((e) => [e.textContent, e.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (wide > 1 && high > 3) found.push(`${a} / ${b}`);
    }));
  }
  return found;
})()"""
# Pictures without words for those who cannot see them; what only decorates is hidden from them.
NAMELESS = """(() => {
  const named = (e) => e.ariaLabel || ["labelledby", "describedby"]
    .map((how) => document.getElementById(e.getAttribute(`aria-${how}`))?.textContent ?? "").join("");
  return [...document.querySelectorAll("svg")]
    .filter((e) => e.getAttribute("role") === "img" ? named(e).length < 20
      : !e.closest("[aria-hidden=true]") && !e.parentElement.closest("svg[role=img]"))
    .map((e) => e.outerHTML.slice(0, 80));
})()"""
SCROLLED = '[...document.querySelectorAll(".wide")].filter((e) => e.scrollWidth > e.clientWidth).length'


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of each kind, by name."""
    base = tmp_path_factory.mktemp("pages")
    many = write_verdict(base / "many", verdict(num_steps=3000, first=1711))
    folders = {
        "verdict": write_verdict(base / "verdict"),
        "hostile": write_verdict(base / "hostile", hostile_verdict()),
        "training": write_record(base / "training", nan_at=150),
        "many": many,
        "sweep": write_sweep(base / "sweep"),
        "batches": write_sweep(base / "batches", has_gpus=True, batches=(16, 64), worlds=(1, 2)),
        "hostile-sweep": write_sweep(base / "hostile-sweep", hostile_sweep(HOSTILE)),
        "killed": write_lines(base / "killed"),
        "noisy": write_sweep(base / "noisy", noisy_sweep()),
    }
    for name, folder in folders.items():
        page_of(folder).write(base / f"{name}.html")
    return {name: base / f"{name}.html" for name in folders}


SWEEPS = ("sweep", "batches", "hostile-sweep", "killed", "noisy")
KINDS = ("verdict", "hostile", "training", "many", *SWEEPS)


def changed(page, name, change):
    """A copy of a page with something wrong in it, to see that it would be noticed."""
    path = page.with_name(f"{name}.html")
    text = page.read_text()
    assert change(text) != text
    path.write_text(change(text))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_asks_nobody_for_anything_and_has_no_complaints(browser, pages, kind):
    browser.open(pages[kind])
    assert browser.requests() == [pages[kind].as_uri()]
    assert browser.complaints() == []
    assert (
        browser.ask("document.title").endswith("– Samestep") and browser.ask("document.scripts.length") == 1
    )


def test_a_script_or_picture_that_came_in_all_the_same_is_stopped_by_the_policy(browser, pages):
    asked = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/x"
        evil = f"<script>document.title = 'owned'</script><img src='{address}' onerror='document.title = 1'>"
        stopped = changed(pages["verdict"], "evil", lambda text: text.replace("<main", f"{evil}<main"))
        browser.open(stopped)
        assert browser.ask("document.title").endswith("– Samestep") and asked == []
        assert sum("Content Security Policy" in text for text in browser.complaints()) >= 2
        # the control: without the policy both happen
        free = changed(stopped, "free", lambda text: re.sub(r'<meta http-equiv="Content-Sec.*?>', "", text))
        browser.open(free)
        assert asked == ["/x"] and browser.ask("document.title") in ("owned", "1")
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_can_be_read_in_light_and_dark(browser, pages, kind, scheme):
    browser.open(pages[kind], scheme=scheme)
    assert browser.ask(LOW_CONTRAST) == []
    paper = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", paper))) < 64) == (scheme == "dark")


def test_text_that_cannot_be_read_would_be_noticed(browser, pages):
    browser.open(pages["verdict"])
    browser.ask('document.documentElement.style.setProperty("--soft", "#a9a69f")')
    assert any(text.startswith("note 2.") for text in browser.ask(LOW_CONTRAST))


@pytest.mark.parametrize("width", [320, PHONE, 768, DESKTOP])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_sticks_out_of_a_window(browser, pages, kind, width):
    browser.open(pages[kind], width=width, height=740)
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask(CUT_OFF) == []


def test_a_table_that_sticks_out_would_be_noticed(browser, pages):
    loose = changed(pages["verdict"], "loose", lambda text: text.replace('<div class="wide"', "<div"))
    browser.open(loose, width=PHONE)
    assert browser.ask(CUT_OFF) != []


def test_on_a_phone_the_table_opens_at_the_first_difference(browser, pages):
    first = write_verdict(pages["verdict"].parent / "late", verdict(first=20))
    page = pages["verdict"].with_name("late.html")
    page_of(first).write(page)
    browser.open(page, width=PHONE, height=740)
    box = 'document.querySelector(".wide")'
    left, right = browser.ask(
        "(() => { const r = document.getElementById('first-difference').getBoundingClientRect(); "
        "return [r.left, r.right]; })()"
    )
    header = browser.ask(f"{box}.querySelector('tbody th').getBoundingClientRect().right")
    assert header < left < right < PHONE  # beside the names of the rows, which stay
    browser.ask(f"{box}.scrollLeft = 0")
    assert browser.ask("document.getElementById('first-difference').getBoundingClientRect().left") > PHONE


def test_all_can_be_reached_and_used_by_keyboard(browser, pages):
    browser.open(pages["verdict"], width=PHONE, height=740)
    browser.press("Tab")
    assert browser.ask("document.activeElement.className") == "skip"
    assert browser.ask("document.activeElement.getBoundingClientRect().top") >= 0
    browser.press("Enter")
    assert browser.ask("document.activeElement.id") == "main"
    reached = []
    while (
        browser.ask("document.hasFocus() && document.activeElement !== document.body") and len(reached) < 50
    ):
        browser.press("Tab")
        reached.append(
            browser.ask(
                "(() => { const e = document.activeElement, s = getComputedStyle(e); "
                "return [e.tagName, e.getAttribute('aria-label'), s.outlineStyle, s.outlineWidth]; })()"
            )
        )
    names = [name for name, *_ in reached if name != "BODY"]
    assert names == ["DIV", "DIV", "PRE", "BUTTON", "PRE", "BUTTON"]
    assert {tuple(shown) for name, _, *shown in reached if name != "BODY"} == {("solid", "2px")}
    assert reached[0][1] == "Quantities by step"


def test_a_reader_of_the_screen_finds_headings_tables_and_sections(browser, pages):
    for kind in KINDS:
        browser.open(pages[kind])
        assert browser.ask("document.querySelectorAll('h1').length") == 1
        levels = browser.ask("[...document.querySelectorAll('h1,h2,h3,h4')].map((e) => +e.tagName[1])")
        assert all(after - before <= 1 for before, after in pairwise(levels))
        ids = browser.ask("[...document.querySelectorAll('[id]')].map((e) => e.id)")
        assert len(ids) == len(set(ids))
        links = browser.ask("[...document.querySelectorAll('a')].map((e) => e.getAttribute('href'))")
        assert {link.removeprefix("#") for link in links} <= set(ids)
        assert browser.ask("[...document.querySelectorAll('th')].filter((e) => !e.scope).length") == 0
        assert browser.ask(NAMELESS) == []


@pytest.mark.parametrize("kind", KINDS)
def test_it_prints_whole_and_without_what_a_sheet_cannot_do(browser, pages, kind):
    browser.open(pages[kind], width=A4)
    browser.media(media="print", scheme="dark")
    assert browser.ask(CUT_OFF) == [] and browser.ask(LOW_CONTRAST) == []
    assert browser.ask(SCROLLED) == 0
    assert browser.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.media()
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type /Page\b", pdf)) <= (10 if kind in SWEEPS else 5)


def test_a_command_can_be_copied(browser, pages):
    browser.open(pages["verdict"])
    browser.ask(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (t) => (window.kept = t)}})"
    )
    browser.ask("document.querySelector('.commands button').click()")
    assert browser.ask("window.kept") == "samestep verify --gpus 1,2,4 -- python train.py --epochs 1"
    assert browser.ask("document.querySelector('.commands button').textContent") == "Copied"


@pytest.mark.parametrize("width", [320, 390, 520, 768, DESKTOP])
@pytest.mark.parametrize("kind", SWEEPS)
def test_texts_of_a_picture_do_not_collide(browser, pages, kind, width):
    browser.open(pages[kind], width=width)
    assert browser.ask("document.querySelectorAll('svg[role=img] text').length") > 20
    assert browser.ask(COLLIDING) == []


@pytest.mark.parametrize("kind", SWEEPS)
def test_texts_of_a_picture_do_not_collide_in_print(browser, pages, kind):
    browser.open(pages[kind], width=A4)
    browser.media(media="print")
    assert browser.ask(COLLIDING) == []


def test_texts_that_collide_would_be_noticed(browser, pages):
    browser.open(pages["sweep"], width=390)
    browser.ask("for (const e of document.querySelectorAll('.fall text')) e.removeAttribute('x')")
    browser.ask("for (const e of document.querySelectorAll('.fall text')) e.removeAttribute('text-anchor')")
    assert browser.ask(COLLIDING) != []


def test_pictures_of_a_sweep_fill_the_width_and_noise_is_hatched(browser, pages):
    wide = "document.querySelector('#gap svg[role=img]').getBoundingClientRect().width"
    for width in (390, DESKTOP):
        browser.open(pages["sweep"], width=width)
        room = browser.ask("document.querySelector('#gap figure').getBoundingClientRect().width")
        assert browser.ask(wide) == pytest.approx(room, abs=1)
    fills = browser.ask(
        "[...document.querySelectorAll('#gap svg[role=img] rect')]"
        ".map((e) => [e.getAttribute('class'), getComputedStyle(e).fill])"
    )
    hatched = {name for name, fill in fills if fill.startswith("url")}
    assert hatched == {"noise"} and {"end", "lost", "noise"} <= {name for name, _ in fills}
    assert browser.ask("document.getElementById('hatch').tagName") == "pattern"


def test_a_table_behind_a_picture_opens_by_keyboard(browser, pages):
    browser.open(pages["sweep"])
    browser.ask("document.querySelector('#gap summary').focus()")
    table = "document.querySelector('#gap details table').checkVisibility()"
    assert not browser.ask(table)
    browser.press("Enter")
    assert browser.ask(table)
    browser.press("Tab")
    assert browser.ask("document.activeElement.getAttribute('aria-label')").startswith("2 GPUs, batch 32")


def test_lines_and_phases_are_told_apart_without_colour(browser, pages):
    browser.open(pages["sweep"])
    dashes = browser.ask(
        "[...document.querySelectorAll('#learning figure:first-child path.curve')]"
        ".map((e) => getComputedStyle(e).strokeDasharray)"
    )
    assert len(dashes) == len(set(dashes)) == 3
    keys = browser.ask("[...document.querySelectorAll('#timeline .key')].map((e) => e.textContent)")
    letters = browser.ask("[...document.querySelectorAll('#timeline text.on')].map((e) => e.textContent)")
    assert len(keys) == len(set(keys)) and set(letters) <= set(keys) and len(letters) > 20
