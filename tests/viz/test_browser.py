"""The page in headless Chromium: every step of four programs is clicked through, and of 10,000 nodes few are drawn.

Needs ``pip install 'tinsmith[viz-test]'`` and Chromium (``apt-get install chromium``). ``VIZ_SHOTS=FOLDER`` keeps
pictures.
"""
from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tinsmith import viz
from tinsmith.viz.serve import Server

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'tinsmith[viz-test]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")

STEPS = ["graph", "passes", "schedule", "tree", "kernel", "opts", "uops", "source", "assembly"]
MOST_DRAWN = 6000  # elements that a page has at any time


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Return a function that opens the page of a trace from a server; at the end no script may have failed or made a
    request."""
    problems: list[str] = []
    servers: list[Server] = []
    context = browser.new_context(viewport={"width": 1400, "height": 850}, offline=False)

    def opened(trace: Path) -> Any:
        server = Server(viz.page.page(viz.page.read_trace(trace)))
        servers.append(server)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" and "favicon" not in m.text else None)
        page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(server.url.split("?")[0]) else None)
        page.goto(server.url)
        page.wait_for_selector("body[data-opened]")
        return page

    yield opened
    context.close()
    for server in servers:
        server.close()
    assert problems == []


def shot(page: Any, name: str) -> None:
    if os.environ.get("VIZ_SHOTS"):
        page.screenshot(path=str(Path(os.environ["VIZ_SHOTS"]) / f"{name}.png"))


def program_of(trace: Path, words: str) -> int:
    """Return the number of the last program that computes a line with these words."""
    document = json.loads(trace.read_text())
    (text,) = document["files"].values()
    line = next(n for n, row in enumerate(text.splitlines(), 1) if words in row)
    return max(p["number"] for p in document["programs"]
               if any(document["origins"][o][2] == line for i in p["items"] for o in i["origins"]))


@pytest.mark.parametrize("words", [".dot(", ".var(", "a @ b", "self.conv(x)"])
def test_every_step_of_a_program(words: str, four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click(f"[data-program='{program_of(four, words)}']")
    marks = {"graph": "g.box", "passes": "[data-pass]", "schedule": "tr.on", "tree": ".row", "kernel": "[data-pass]",
             "opts": "i.meter", "uops": ".row", "source": ".row", "assembly": ".row"}
    for step in STEPS:
        page.click(f"button[data-tab='{step}']")
        assert page.locator(f"#view {marks[step]}").count() >= 1, step
        assert page.locator(f"button[data-tab='{step}']").get_attribute("aria-selected") == "true"
        assert words in page.locator("#code").inner_text()  # the user's file is beside it
        shot(page, f"{words.strip('.( )').replace(' ', '')}-{step}")
    assert ".globl" in page.locator("#view").inner_text()


def test_a_node_leads_to_its_kernel_its_line_and_its_neighbours(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click(f"[data-program='{program_of(four, '.dot(')}']")
    page.click("g.box:has-text('MUL')")
    details = page.locator("#details")
    assert "fused" in details.inner_text() and "dot program.py:4" in details.inner_text()
    assert ".dot(" in page.locator("#code .row.same").inner_text()
    details.locator("button:has-text('REDUCE')").click()
    assert "stored" in details.inner_text() and "output" in details.inner_text()
    details.locator("button:has-text('r_2')").click()
    assert page.evaluate("document.body.dataset.tab") == "tree"
    assert "SUM (0,)" in page.locator("#view").inner_text()
    page.keyboard.press("]")
    assert page.evaluate("document.body.dataset.tab") == "kernel"
    page.keyboard.press("ArrowRight")
    assert "before: kernel" in page.locator("#view").inner_text()
    assert "after: lower" in page.locator("#view").inner_text()
    page.keyboard.press("[")
    page.locator("#details button:has-text('its node')").click()
    assert "REDUCE" in page.locator("g.box.on").inner_html()


def test_a_line_of_source_leads_to_its_uop_its_node_its_assembly_and_back(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click(f"[data-program='{program_of(four, '.dot(')}']")
    page.click("button[data-tab='source']")
    page.locator("#view .row:has-text('data1')").last.click()
    details = page.locator("#details")
    assert "UOps.LOAD" in details.inner_text() and "program.py:4" in details.inner_text()
    assert ".dot(" in page.locator("#code .row.same").inner_text()
    assert page.locator("#view .row.on:has-text('load')").count() >= 1  # what the device gets, beside it
    details.locator("button:has-text('UOps.LOAD')").click()
    assert page.evaluate("document.body.dataset.tab") == "uops"
    assert "UOps.LOAD" in page.locator("#view .row.on").inner_text()
    page.locator("#view .row:has-text('UOps.STORE')").last.click()
    page.click("button[data-tab='assembly']")
    page.locator("#view .row.linked").last.click()
    shot(page, "linked")
    assert "UOps." in details.inner_text() and page.locator("#view .row.on").count() >= 1
    details.locator("dt:has-text('in the graph') + dd button").click()
    assert page.evaluate("document.body.dataset.tab") == "graph" and page.locator("g.box.on").count() == 1
    details.locator("dt:has-text('UOps') + dd button").click()
    assert page.evaluate("document.body.dataset.tab") == "uops" and page.locator("#view .row.on").count() == 1


def test_a_users_line_leads_to_what_computes_it(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click("[data-tab='schedule']")
    page.locator("#code .row:has-text('a @ b')").click()
    assert "matmul" in page.locator("#details").inner_text()
    assert page.locator("#programs .program.on").get_attribute("data-program") == str(program_of(four, "a @ b"))


def test_keys_search_and_both_themes(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.keyboard.press("7")
    assert page.evaluate("document.body.dataset.tab") == "uops"
    page.keyboard.press("/")
    page.keyboard.type("ALU")
    assert page.locator("#view .row.found").count() >= 1
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    assert page.locator("#programs .program.on").get_attribute("data-program") == "1"
    colors = set()
    for _ in range(2):
        page.keyboard.press("t")
        colors.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colors) == 2
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    page.keyboard.press("ArrowRight")
    assert page.locator("g.box.on").count() == 1


def test_the_timeline(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.keyboard.press("0")
    assert "kernel" in page.locator("#view .bar").inner_text() and "copy" in page.locator("#view .bar").inner_text()
    page.wait_for_timeout(300)
    painted = """() => {
        const c = document.getElementById('chart'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const seen = new Set();
        for (let k = 0; k < d.length; k += 4) seen.add(d[k] << 16 | d[k + 1] << 8 | d[k + 2]);
        return seen.size; }"""
    assert page.evaluate(painted) > 10
    shot(page, "timeline")


def test_ten_thousand_nodes_are_never_drawn_at_once(deep: Path, open_page: Any) -> None:
    """The number of drawn nodes is bounded for a graph of any size, so that the page opens and responds quickly."""
    nodes = max(len(p["nodes"]) for p in json.loads(deep.read_text())["programs"])
    assert nodes > 10_000
    page = open_page(deep)
    drawn = [_drawn(page)]

    def click(act: Any) -> None:
        act()
        drawn.append(_drawn(page))

    page.wait_for_timeout(300)
    click(lambda: page.click("#programs .program >> nth=-1"))
    assert 2 <= page.locator("g.box").count() <= 80
    for _ in range(3):  # into a part, a block, a line
        click(lambda: page.locator("g.box:not(.outside)").last.dispatch_event("dblclick"))
    for step in [*STEPS, "timeline", "graph"]:
        click(lambda step=step: page.click(f"button[data-tab='{step}']"))
    shot(page, "deep")
    took = page.evaluate("document.body.dataset.took")
    print(f"opened in {page.evaluate('document.body.dataset.opened')} ms; the last click took {took} ms")
    assert max(drawn) < MOST_DRAWN, drawn


def _drawn(page: Any) -> int:
    """Return the number of elements of the page."""
    return int(page.evaluate("document.getElementsByTagName('*').length"))
