"""GRAPH, JITGRAPH and tensor.graph(): graphs as SVG and DOT."""
from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from tinsmith import Tensor, viz
from tinsmith.viz.drawing import Box, Drawing, draw
from tinsmith.viz.fold import Folding, functions

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [t.text or "" for t in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_tensors_graph_shows_data_what_is_stored_fused_and_seen() -> None:
    x = Tensor(np.ones((4, 6), np.float32)).realize()
    picture = (x.T @ x).relu().sum().graph()
    states = {box.lines[0]: box.state for box in picture.boxes}
    assert states["BUFFER buffer 0 on CPU"] == "realized" and states["PERMUTE"] == "view" and states["MUL"] == "fused"
    assert "stored" in {b.state for b in picture.boxes}
    assert any("test_drawing.py:" in b.title for b in picture.boxes)
    assert picture._repr_svg_() == picture.svg()
    assert repr(picture) == f"<Drawing of {len(picture.boxes)} nodes; svg() and dot() return its text>"


def test_a_graph_is_drawn_and_not_computed() -> None:
    t = Tensor([1.0, 2.0]) + 1
    t.graph()
    assert t.uop.base.op.name != "BUFFER"
    assert Tensor([1.0]).realize().graph().boxes[0].state == "realized"


def test_our_layout_puts_every_node_below_its_sources_and_nothing_overlaps() -> None:
    rng = np.random.default_rng(0)
    boxes = [Box([f"n{n}" * (n % 3 + 1)], "fused") for n in range(40)]
    arrows = sorted({(int(rng.integers(0, n)), n) for n in range(1, 40) for _ in range(2)})
    drawing = Drawing(boxes, arrows)
    svg = drawing.own_svg()
    for a, b in arrows:
        assert boxes[a].y + boxes[a].height / 2 < boxes[b].y - boxes[b].height / 2
    for n, a in enumerate(boxes):
        for b in boxes[n + 1 :]:
            assert abs(a.x - b.x) >= (a.width + b.width) / 2 or abs(a.y - b.y) >= (a.height + b.height) / 2
    root = ET.fromstring(svg)
    wide, high = float(root.get("width", 0)), float(root.get("height", 0))
    assert all(b.width / 2 <= b.x <= wide - b.width / 2 and b.height / 2 <= b.y <= high for b in boxes)


def test_graphviz_reads_our_dot() -> None:
    graphviz = pytest.importorskip("graphviz", reason="pip install 'tinsmith[graphviz]'")
    dot = Drawing([Box(['a "b" \\c'], "constant"), Box(["NEG"], "view")], [(0, 1)]).dot()
    try:
        assert "NEG" in graphviz.Source(dot).pipe("svg", encoding="utf-8")
    except graphviz.ExecutableNotFound:
        pytest.skip("the program dot is not installed: apt-get install graphviz")


def test_a_run_draws_its_graphs_and_those_that_were_captured(four: Path) -> None:
    graph, captured = ((four.parent / f"program.{name}.svg").read_text() for name in ("graph", "jitgraph"))
    assert "REDUCE (ADD, (0,))" in texts(graph)
    assert {"REDUCE (ADD, (0,))"} - set(texts(captured)) and "step" in " ".join(texts(captured))
    for name in ("graph", "jitgraph"):
        dot = (four.parent / f"program.{name}.dot").read_text()
        assert dot.startswith("digraph {") and dot.endswith("}") and " -> " in dot


def test_a_picture_has_a_title_a_legend_and_headings(four: Path) -> None:
    found = texts((four.parent / "program.graph.svg").read_text())
    assert any(t.startswith("program.py: ") and " programs, " in t and " kernels, " in t for t in found)
    assert {"in memory", "written by a kernel or copy", "computed inside a kernel", "view, costs nothing"} <= set(found)
    assert any(t.startswith("program 0, program.py:4, 1 kernel") for t in found)
    assert any(", captured by TinyJit from step" in t for t in found)
    parts = viz.page.read_trace(four)
    picture = draw(parts, parts["programs"][:2], "two")
    own = texts(picture.own_svg())
    assert picture.title in own and picture.title.startswith("two: 2 programs, 2 kernels, ") and "in memory" in own
    assert all(heading in own for heading, *_ in picture.parts)
    tops = [min(b.y for b in picture.boxes[first:last]) for _, first, last in picture.parts]
    assert tops[1] > max(b.y for b in picture.boxes[: picture.parts[0][2]])  # the programs stand below each other


def test_constants_stand_in_the_box_that_reads_them() -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    lines = [box.lines[0] for box in ((x * 0.25 + 3).exp() - 1).graph().boxes]
    assert {"MUL(·, 0.25)", "ADD(·, 3)"} <= set(lines) or "MULADD(·, 0.25, 3)" in lines
    assert not any(line.startswith("CONST") or line == "RESHAPE" for line in lines)
    alone = Tensor.full((2, 3), 5.0).contiguous().graph()  # a constant that nothing else reads is drawn
    assert alone.boxes and alone.title


def test_functions_of_a_file() -> None:
    text = "def f():\n  def g():\n    pass\n  return g\nclass A:\n  def __call__(self): pass\n"
    assert functions(text) == [(1, 4, "f"), (2, 3, "f.g"), (6, 6, "A.__call__")]
    assert functions("def (") == []


def test_folding_gives_a_group_per_turn_of_a_loop() -> None:
    """A chain of 40 blocks of three lines: each loop iteration is a group with a subgroup or node per line."""
    nodes: list[list[object]] = [["BUFFER", "float", [4], "", [], -1, "realized", []]]
    for _ in range(40):
        for line in range(3):
            weight = len(nodes)
            nodes.append(["BUFFER", "float", [4], "", [], -1, "realized", []])
            nodes.append(["MUL", "float", [4], "", [weight - 1, weight], line, "fused", []])
    text = "class Block:\n  def __call__(self, x):\n    x = x * 1\n    x = x * 2\n    return x * 3\n"
    folding = Folding(nodes, [("mul", "f.py", 3), ("mul", "f.py", 4), ("mul", "f.py", 5)], {"f.py": text})
    labels = [g["label"] for g in folding.groups]
    assert [label for label in labels if label.startswith("Block")] == ["Block.__call__"] + [
        f"Block.__call__ ({n})" for n in range(2, 41)]
    turn = folding.groups[labels.index("Block.__call__ (7)")]
    assert [folding.groups[-1 - k]["label"] for k in turn["kids"]] == ["mul f.py:3", "mul f.py:4", "mul f.py:5"]
    assert all(len(g["kids"]) <= 48 for g in folding.groups)
    seen = [k for g in folding.groups for k in g["kids"]]
    assert sorted(k for k in seen if k >= 0) == list(range(len(nodes))) and len(seen) == len(set(seen))


def test_graphviz_lays_out_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphviz draws the same boxes and arrows; without its program the built-in layout is used."""
    graphviz = pytest.importorskip("graphviz", reason="pip install 'tinsmith[graphviz]'")
    if shutil.which("dot") is None:
        pytest.skip("Graphviz's program dot is not installed")
    picture = (Tensor([[1.0, 2.0]]).realize() @ Tensor([[3.0], [4.0]]).realize()).relu().graph()
    drawn = picture.svg()
    assert "Generated by graphviz" in drawn and "Generated by graphviz" not in picture.own_svg()
    root = ET.fromstring(drawn)
    kinds = [g.get("class") for g in root.iter(f"{SVG}g")]
    assert kinds.count("node") == len(picture.boxes) and kinds.count("edge") == len(picture.arrows)
    assert {line for box in picture.boxes for line in box.lines} <= set(texts(drawn))
    monkeypatch.setattr(graphviz.backend.dot_command, "DOT_BINARY", Path("no-such-program"))
    assert picture.svg() == picture.own_svg()


def test_folding_goes_by_layers_first() -> None:
    """Two blocks of two layers in sequence; a block's own operations are grouped by the user's function."""
    layers = ["encoder.0.q", "encoder.0.out", "encoder.0", "encoder.1.q", "encoder.1.out", "encoder.1", ""]
    nodes: list[list[object]] = [["BUFFER", "float", [4], "", [], -1, "realized", []]]
    for origin in range(len(layers)):
        for _ in range(12):
            nodes.append(["NEG", "float", [4], "", [len(nodes) - 1], origin, "fused", []])
    text = "class Block:\n  def __call__(self, x):\n    return self.out(self.q(x)) + x\n"
    origins = [("Linear", "f.py", 3), ("Linear", "f.py", 3), ("add", "f.py", 3)] * 2 + [("neg", "f.py", 9)]
    folding = Folding(nodes, origins, {"f.py": text}, layers)

    def labels(group: int) -> list[str]:
        return [folding.groups[-1 - k]["label"] for k in folding.groups[group]["kids"] if k < 0]

    assert labels(-1) == ["encoder.0", "encoder.1", "f.py"]
    named = [f"{'grad of ' * (n % 2)}{path} Linear" if path.count(".") == 2 else path for n, path in enumerate(layers)]
    folding_named = Folding(nodes, origins, {"f.py": text}, named)
    assert {"encoder.0.q Linear", "grad of encoder.0.out Linear"} <= {g["label"] for g in folding_named.groups}
    block = next(n for n, g in enumerate(folding.groups) if g["label"] == "encoder.1")
    assert labels(block) == ["encoder.1.q", "encoder.1.out", "Block.__call__"]
    assert all(label.startswith("Block") or label == "f.py" for label in (
        g["label"] for g in Folding(nodes, origins, {"f.py": text}).groups[:-1]) if ":" not in label)
