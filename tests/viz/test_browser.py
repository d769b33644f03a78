"""The page in headless Chromium: every step of four programs is clicked through, and of 10,000 nodes few are drawn.

Needs ``pip install 'tinsmith[viz-test]'`` and Chromium (``apt-get install chromium``). ``VIZ_SHOTS=FOLDER`` keeps
pictures.
"""
from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tinsmith import viz
from tinsmith.viz.page import Server, times

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
    """Return a function that opens the page of a trace from a server; at the end no script may have failed,
    warned or made a request."""
    problems: list[str] = []
    servers: list[Server] = []
    context = browser.new_context(viewport={"width": 1400, "height": 850}, offline=False)

    def opened(trace: Path) -> Any:
        server = Server(viz.page.page(viz.page.read_trace(trace)))
        servers.append(server)
        local = (server.url.split("?")[0], "data:")
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(local) else None)
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
    page.click("[data-program='0']")
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
    for theme in ("light", "dark"):
        assert page.evaluate("document.documentElement.dataset.theme || 'light'") == theme
        colors = page.evaluate(PAINTED)
        back, *others = sorted(colors, key=colors.__getitem__, reverse=True)
        assert len(others) > 10
        assert (_luminance(back) < 0.05) == (theme == "dark")
        assert max(_contrast(back, c) for c in others) > 7  # the texts
        assert all(_contrast(back, c) > 3 for c in page.evaluate(
            f"Object.values(KINDS).map((c) => c[{int(theme == 'dark')}].slice(1))"))
        shot(page, f"timeline-{theme}")
        page.keyboard.press("t")
        page.wait_for_timeout(100)


# How many pixels of the timeline have each color.
PAINTED = """() => {
    const c = document.getElementById('chart'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
    const seen = {};
    for (let k = 0; k < d.length; k += 4) {
        const color = (d[k] << 16 | d[k + 1] << 8 | d[k + 2]).toString(16).padStart(6, '0');
        seen[color] = (seen[color] || 0) + 1;
    }
    return seen; }"""


def _luminance(color: str) -> float:
    """Return the relative luminance of a color like ``1c2128`` (WCAG 2)."""
    parts = [int(color[n : n + 2], 16) / 255 for n in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(a: str, b: str) -> float:
    dark, light = sorted((_luminance(a), _luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_the_timeline_has_round_ticks_and_is_zoomed_moved_and_clicked(four: Path, open_page: Any) -> None:
    page = open_page(four)
    assert page.evaluate("[3e-5, 0.07, 0.2, 0.21, 1].map(roundStep)") == pytest.approx([5e-5, 0.1, 0.2, 0.5, 1])
    ticks = {(0, 0.5): "0 s", (1.5, 0.5): "1.5 s", (0.25, 0.05): "250 ms", (3e-6, 1e-6): "3 µs", (-1e-9, 0.2): "0 s"}
    assert [page.evaluate("(p) => tickText(...p)", list(p)) for p in ticks] == list(ticks.values())
    page.keyboard.press("0")
    step_now = "Number(document.getElementById('chart').dataset.step)"
    ranges, steps = [page.evaluate("chart.range()")], [page.evaluate(step_now)]
    chart = page.locator("#chart").bounding_box()
    page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + 10)
    for _ in range(4):
        page.mouse.wheel(0, -500)
        page.wait_for_timeout(80)
        ranges.append(page.evaluate("chart.range()"))
        steps.append(page.evaluate(step_now))
    assert all(b - a > d - c for (a, b), (c, d) in itertools.pairwise(ranges))
    assert all(f"{step:e}"[0] in "125" and float(f"{step:.0e}") == pytest.approx(step) for step in steps)
    assert steps[-1] < steps[0]
    page.mouse.down()
    page.mouse.move(chart["x"] + chart["width"] / 2 + 60, chart["y"] + 10)
    page.mouse.up()
    assert page.evaluate("chart.range()")[0] < ranges[-1][0]
    page.keyboard.press("f")
    assert page.evaluate("chart.range()") == pytest.approx(ranges[0])
    page.click("#view .bar button:has-text('kernels')")
    page.wait_for_timeout(100)
    longest = "chart.bars.filter((b) => b.kind === 'kernel').sort((a, b) => b.end - b.start - a.end + a.start)[0]"
    bar = page.evaluate(f"chart.placeOf({longest})")
    page.mouse.move(chart["x"] + bar["x"], chart["y"] + bar["y"])
    assert "kernel, " in page.locator("#tip").inner_text()
    page.mouse.down()
    page.mouse.up()
    assert "kernel on CPU" in page.locator("#details").inner_text()


def test_the_page_opens_on_the_costliest_program_and_its_slowest_kernel(four: Path, open_page: Any) -> None:
    found = times(viz.page.read_trace(four))
    page = open_page(four)
    on = page.locator("#programs .program.on").get_attribute("data-program")
    assert found[int(on)]["measured"] == max(t["measured"] for t in found)
    item = int(page.locator("#programs .item.on").get_attribute("data-item"))
    slowest = max(m for m, _, predicted in found[int(on)]["items"] if m is not None and predicted is not None)
    assert found[int(on)]["items"][item][0] == slowest


def test_steps_are_listed_under_their_layers(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click(f"[data-program='{program_of(four, '.backward(')}']")  # any program may be the costliest
    assert page.locator("#programs .layer:has-text('conv')").count() >= 1


@pytest.mark.parametrize("width", [900, 1280, 1920])
def test_everything_fits(width: int, four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.set_viewport_size({"width": width, "height": 800})
    for number in ("0", "3", "4"):
        page.click(f"[data-program='{number}']")
        for step in [*STEPS, "timeline"]:
            page.click(f"button[data-tab='{step}']")
            beyond = page.evaluate("[document.body.scrollWidth - innerWidth, document.body.scrollHeight - innerHeight, "
                                   "...['view', 'details'].map((id) => $(id).scrollWidth - $(id).clientWidth)]")
            assert beyond == [0, 0, 0, 0], (number, step)
    page.click("button[data-tab='schedule']")
    table = page.locator("#view .scroll")
    assert table.evaluate("(s) => s.scrollWidth - s.clientWidth") == 0
    assert table.locator("td i.meter").count() > 10
    shot(page, f"schedule-{width}")


def test_measured_and_predicted_times_are_apart(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click(f"[data-program='{program_of(four, '.backward(')}']")
    page.click("button[data-tab='schedule']")
    row = page.locator("#view tr.on")
    assert row.locator(".time.measured i.meter.measured").count() == 1
    assert row.locator(".time.predicted i.meter.predicted").count() == 1
    looks = {kind: page.evaluate(f"getComputedStyle(document.querySelector('.meter.{kind}')).backgroundImage")
             for kind in ("measured", "predicted")}
    assert looks["measured"] == "none" and "gradient" in looks["predicted"]
    assert page.locator("#view .key").inner_text().split(" runs")[0].startswith("measured, mean of ")
    page.click("button[data-tab='opts']")
    assert page.locator("#view td:text-matches('^measured')").count() >= 1
    assert page.locator("#view td:text-is('predicted')").count() == 1


def test_panes_are_resized_and_keep_their_size(four: Path, open_page: Any) -> None:
    page = open_page(four)

    def width(pane: str) -> float:
        return float(page.locator(pane).bounding_box()["width"])

    for pane, name, sign in (("#programs", "programs", 1), ("#side", "side", -1)):
        before, bar = width(pane), page.locator(f".splitter[data-pane='{name}']")
        place = bar.bounding_box()
        page.mouse.move(place["x"] + 2, place["y"] + 200)
        page.mouse.down()
        page.mouse.move(place["x"] + 2 + sign * 70, place["y"] + 200, steps=4)
        page.mouse.up()
        assert width(pane) == pytest.approx(before + 70, abs=2)
        page.reload()
        page.wait_for_selector("body[data-opened]")
        assert width(pane) == pytest.approx(before + 70, abs=2)
        bar.focus()
        page.keyboard.press("ArrowLeft")
        assert width(pane) == pytest.approx(before + 70 - sign * 20, abs=2)
        bar.dblclick(position={"x": 2, "y": 300})
        assert width(pane) == pytest.approx(before, abs=2)
    page.click("button[data-tab='source']")
    left = page.locator(".pair > div").first
    before = left.bounding_box()["width"]
    page.locator(".splitter[data-pane='source']").focus()
    page.keyboard.press("ArrowRight")
    assert left.bounding_box()["width"] == pytest.approx(before + 20, abs=2)


def test_search_counts_its_hits_and_goes_through_them(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click(f"[data-program='{program_of(four, 'a @ b')}']")
    page.click("button[data-tab='uops']")
    kernel = page.evaluate("kernel().uops.map((r) => r[0])")
    expected = sum("load" in text.lower() for text in kernel)
    page.keyboard.press("/")
    page.keyboard.type("load")
    hits = page.locator("#hits")
    assert expected > 1 and hits.inner_text() == f"1 of {expected}"
    page.keyboard.press("Enter")
    assert hits.inner_text() == f"2 of {expected}" and "LOAD" in page.locator("#view .row.current").inner_text()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    assert hits.inner_text() == f"{expected} of {expected}"
    page.fill("#search", "no such text")
    assert hits.inner_text() == "no hit"
    page.fill("#search", "reduce")
    page.click("button[data-tab='graph']")
    nodes = page.evaluate("program().nodes.filter((n) => n[0] === 'REDUCE').length")
    assert hits.inner_text() == f"{nodes} hit{'s' * (nodes != 1)}"
    assert page.locator("g.box.found").count() >= 1
    page.focus("#search")
    page.keyboard.press("Enter")
    assert hits.inner_text() == f"1 of {nodes}" and "REDUCE" in page.locator("g.box.on").inner_html()
    page.click("button[data-tab='schedule']")
    page.fill("#search", "matmul")
    assert hits.inner_text() == "1 of 1" and page.locator("#view tr.found").count() == 1
    page.fill("#search", "")
    assert hits.inner_text() == ""


def test_graphs_are_zoomed_to_fit(four: Path, open_page: Any) -> None:
    page = open_page(four)
    outside = """() => {
        const rect = (e) => e.getBoundingClientRect(), v = rect(document.querySelector('svg.graph'));
        const out = (r) => r.left < v.left - 1 || r.right > v.right + 1 || r.top < v.top - 1 || r.bottom > v.bottom + 1;
        return [...document.querySelectorAll('g.box, path.edge')].map(rect).filter(out).length; }"""
    for number in ("1", "3", "4"):
        page.click(f"[data-program='{number}']")
        page.wait_for_timeout(60)
        assert page.evaluate(outside) == 0, number
    page.locator("g.box:not(.outside)").last.dispatch_event("dblclick")
    assert page.evaluate(outside) == 0
    page.set_viewport_size({"width": 1000, "height": 600})
    page.wait_for_timeout(150)
    assert page.evaluate(outside) == 0
    page.keyboard.press("+")
    zoomed = page.locator("svg.graph > g").get_attribute("transform")
    page.keyboard.press("f")
    assert page.locator("svg.graph > g").get_attribute("transform") != zoomed and page.evaluate(outside) == 0


def test_texts_are_highlighted_and_stay_what_they_are(four: Path, open_page: Any) -> None:
    page = open_page(four)
    page.click(f"[data-program='{program_of(four, 'a @ b')}']")
    assert page.locator("#code .hljs-keyword:text-is('import')").count() >= 1
    for step, words in (("source", ("for", "define")), ("assembly", ("ret",)), ("uops", ("UOps.RANGE",))):
        page.click(f"button[data-tab='{step}']")
        whole = page.evaluate("shown.map((rows) => rows.rows.map((r) => r[0]))")
        drawn = page.evaluate("""() => {
            const text = (r) => [...r.childNodes].filter((c) => c.className !== 'number').map((c) => c.textContent);
            const row = (r) => [Number(r.dataset.row), text(r).join('')];
            const rows = (box) => [...box.querySelectorAll('.row')].map(row);
            return shown.map(rows); }""")
        for rows, text in zip(drawn, whole, strict=True):
            assert len(rows) > 5 and all(text[n] == row for n, row in rows), step
        for word in words:
            texts = page.evaluate("shown.flatMap((rows) => coloredRows(rows.rows, rows.language) || [])")
            assert any(f'<span class="hljs-keyword">{word}' in text for text in texts), (step, word)


def test_languages_of_devices_are_recognized(four: Path, open_page: Any) -> None:
    page = open_page(four)
    texts = {"cuda": "__global__ void f(float* data0) { int i = blockIdx.x; /* a\n b */ __syncthreads(); }",
             "llvm": "define void @f(ptr %args) {\n  ret void\n}",
             "rust": "@compute @workgroup_size(8) fn main() { let a = 1u; }",
             "cpp": "kernel void f(device float* data0) { float x = 1.0; }"}
    for language, text in texts.items():
        assert page.evaluate("(t) => languageOf(t)", text) == language
        lines = page.evaluate("([t, l]) => coloredLines(t, l)", [text, language])
        assert len(lines) == text.count("\n") + 1 and any("hljs-" in line for line in lines)
        assert all(line.count("<span") == line.count("</span>") for line in lines)
    ptx = ("ld.global.v4.f32 {%f1, %f2}, [%rd4+16]; // loads\n@%p1 bra $L__BB0_2;\n$L__BB0_2:\n"
           "\tfma.rn.f32 %f3, %f1, 0f3F800000, %f2;")
    lines = page.evaluate("(t) => coloredLines(t, 'assembly')", ptx)
    assert '<span class="hljs-keyword">ld.global.v4.f32</span>' in lines[0] and 'hljs-comment">// loads' in lines[0]
    assert '<span class="hljs-keyword">bra</span>' in lines[1] and 'hljs-variable">@%p1' in lines[1]
    assert 'hljs-symbol">$L__BB0_2' in lines[2] and 'hljs-number">0f3F800000' in lines[3]
    assert page.evaluate("(t) => languageOf(t)", "nothing known") is None
    said = "REDUCE dtypes.float (4,) is stored: a reduction's result\nOR dtypes.bool (2,) is stored: output"
    lines = page.evaluate("(t) => coloredLines(t, 'uops')", said)
    assert all('hljs-title">' in line and 'hljs-type">dtypes.' in line for line in lines)


def test_empty_views_say_what_to_do(tmp_path: Path, four: Path, open_page: Any) -> None:
    document = json.loads(four.read_text())
    empty = {**document, "programs": [], "kernels": {}, "events": [], "origins": [], "layers": [], "files": {}}
    (tmp_path / "empty.json").write_text(json.dumps(empty))
    page = open_page(tmp_path / "empty.json")
    text = page.locator("#view").inner_text()
    assert "The trace holds no program" in text and ".numpy()" in text and "VIZ=1 python script.py" in text
    page.click("button[data-tab='timeline']")
    assert "VIZ=1 python script.py" in page.locator("#view").inner_text()
    shot(page, "empty")
    program = {**document["programs"][0], "nodes": [], "passes": [],
               "items": [{**document["programs"][0]["items"][0], "kernel": None, "name": "copy 8, CPU <- NPY"}]}
    (tmp_path / "copy.json").write_text(json.dumps({**document, "programs": [program], "events": []}))
    page = open_page(tmp_path / "copy.json")
    for step, words in (("graph", "Choose another program"), ("tree", "is a copy"), ("source", "no kernel"),
                        ("passes", "VIZ=1"), ("schedule", "To measure")):
        page.click(f"button[data-tab='{step}']")
        assert words in page.locator("#view").inner_text(), step


def test_hints_tell_what_the_mouse_does(four: Path, open_page: Any) -> None:
    page = open_page(four)
    seen = {}
    for step in [*STEPS, "timeline"]:
        page.click(f"button[data-tab='{step}']")
        seen[step] = page.locator("#hint").inner_text()
    assert all("click" in text for text in seen.values()) and len(set(seen.values())) >= 6
    assert "wheel zooms" in seen["graph"] and "drag moves" in seen["timeline"]
    page.click("#help")
    assert "double click" in page.locator("dialog").inner_text()


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
