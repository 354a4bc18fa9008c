"""Pictures of graphs: what the page is told, and that a browser draws it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import rlx
from rlx.cli import main
from rlx.device.policy import DevicePolicy
from rlx.ir.cost import cost_of
from rlx.ir.graph import Graph, Value
from rlx.ir.op import REGISTRY
from rlx.ir.picture import FAMILIES, data_of, page
from rlx.ir.serial import save_graph
from rlx.runtime.graph_devices import GraphDevices

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TEMPLATE = Path(str(rlx.__file__)).parent / "ir" / "picture.html"


def block(x: Value, w: Value, name: str) -> Value:
    for op, value in (("mm", x @ (w * 2.0)), ("act", None)):
        x = rlx.tanh(x) if value is None else value
        x.node.source = f"/model/{name}/{op}"
    return x


def layered(blocks: int) -> Graph:
    graph = Graph("layers")
    x, w = graph.input("x", ("n", 4)), graph.param("w", (4, 4))
    for i in range(blocks):
        x = block(x, w, f"layer.{i}")
    graph.output(x, name="y")
    return graph


def boxes(graph: Graph, **sizes: int) -> dict[str, dict[str, Any]]:
    return {box["name"]: box for box in data_of(graph, sizes, lambda node: cost_of(node).flops)["boxes"]}


def test_boxes_have_scope_family_sizes_weights_and_work() -> None:
    drawn = boxes(layered(2), n=3)
    product = drawn["/model/layer.1/mm"]
    assert product["scope"] == ["model", "layer.1"] and product["op"] == "matmul" and product["family"] == "product"
    assert product["type"] == "f32[3, 4]" and product["flops"] == 2 * 3 * 4 * 4
    assert any("f32[4, 4]" in weight for weight in product["weights"]), "what weights alone make is told as a weight"
    assert drawn["/model/layer.0/act"]["family"] == "elementwise"
    assert [box["op"] for box in drawn.values()][:1] == ["input"] and list(drawn)[-1] == "y"
    order = list(drawn)
    assert [order[i] for i in product["from"]] == ["/model/layer.0/act"]


def test_without_sizes_dims_have_their_names_and_long_ones_are_cut() -> None:
    graph = Graph()
    x = graph.input("x", ("height_of_the_image", "width_of_the_image"))
    graph.output(x.reshape((x.shape[0] * x.shape[1],)), name="y")
    (drawn,) = [box for box in boxes(graph).values() if box["op"] == "reshape"]
    assert drawn["type"].endswith("…]") and "flops" not in drawn
    assert boxes(graph)["x"]["type"] == "f32[height_of_the_image, width_of_the_image]"


def test_bodies_are_scopes_of_their_node() -> None:
    sides = []
    for factor in (2.0, 3.0):
        side = Graph()
        side.output(rlx.exp(side.input("x", (4,)) * factor), name="y")
        sides.append(side)
    graph = Graph()
    flag, x = graph.input("flag", (), "bool"), graph.input("x", (4,))
    result = graph.add(rlx.ops.control.If(), flag, rlx.tanh(x), regions=sides, source="/m/If")
    graph.output(result[0], name="y")  # type: ignore[index]  # of one result
    drawn = data_of(graph, {})["boxes"]
    inner = [box for box in drawn if box["op"] == "exp"]
    assert [box["scope"][:3] for box in inner] == [["m", "If", "then"], ["m", "If", "else"]]
    (control,) = [i for i, box in enumerate(drawn) if box["op"] == "if"]
    tanh = next(i for i, box in enumerate(drawn) if box["op"] == "tanh")
    assert tanh in next(box for box in drawn if box["op"] == "mul")["from"]
    assert set(drawn[control]["from"]) >= {drawn.index(box) for box in inner}


def test_every_family_has_a_colour_in_light_and_dark() -> None:
    modules = {kind.__module__.rpartition(".")[2] for kind in REGISTRY.values()}
    assert FAMILIES.keys() <= modules, "modules that define ops"
    style = TEMPLATE.read_text("utf-8")
    for family in {*FAMILIES.values(), "other", "input", "output"}:
        assert len(re.findall(rf"--{family}: #", style)) == 2, family


def test_names_cannot_leave_the_data_of_the_page() -> None:
    graph = Graph("</script><script>alert(1)</script>")
    graph.output(rlx.relu(graph.input("<b>$x", (3,))), name="</script>")
    document = page(graph)
    assert document.count("<script") == 2 and document.count("</script>") == 2 and "<b>" not in document
    assert json.loads(document.split('id="data">')[1].split("</script>")[0])["boxes"][0]["name"] == "<b>$x"
    assert "http:" not in document and "https:" not in document


def test_notebooks_show_graphs_models_and_explanations(tmp_path: Path) -> None:
    graph = layered(2)
    graph.data = {}
    save_graph(graph, tmp_path / "m.rlx")
    explanation = GraphDevices(graph, DevicePolicy(strategy="cost_model").only("null:0")).explain()
    for shown in (graph, rlx.load(tmp_path / "m.rlx", device="cpu"), explanation):
        frame = shown._repr_html_()
        assert frame.startswith("<iframe srcdoc=") and "</script>" not in frame
        assert "</html>" in html.unescape(frame)


def drawn_by_browser(document: str, folder: Path, script: str = "") -> str:
    """The page after its scripts ran, or a skip."""
    if BROWSER is None:
        pytest.skip("no Chromium is installed: it draws the page")
    (folder / "page.html").write_text(document.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    argv = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
    ]
    url = (folder / "page.html").as_uri()
    return subprocess.run([*argv, url], capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_browser_draws_scopes_closed_and_opens_them(tmp_path: Path) -> None:
    document = page(layered(30), sizes={"n": 3})
    assert 'data-ready="32 of 62"' in drawn_by_browser(document, tmp_path)
    opened = drawn_by_browser(document, tmp_path, '$("all").click()')
    assert opened.count('class="node"') == 62 and opened.count('class="group"') == 0
    one = drawn_by_browser(
        document, tmp_path, "document.querySelector('.group').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert one.count('class="group"') == 29 and "× model/layer.0" in one


@pytest.mark.parametrize("taps, groups", [(1, 30), (2, 29)])
def test_a_finger_reads_a_box_before_it_opens_it(tmp_path: Path, taps: int, groups: int) -> None:
    tap = (
        "for (const kind of ['pointerover', 'pointerdown', 'click']) document.querySelector('.group').dispatchEvent("
        "new PointerEvent(kind, {bubbles: true, pointerType: 'touch'}));"
    )
    drawn = drawn_by_browser(page(layered(30), sizes={"n": 3}), tmp_path, tap * taps)
    assert drawn.count('class="group') == groups and "<dd>model/layer.0</dd>" in drawn


def test_a_browser_draws_a_large_graph_whole(tmp_path: Path) -> None:
    document = page(layered(1250))
    opened = drawn_by_browser(document, tmp_path, '$("all").click()')
    assert opened.count('class="node"') == 2502


def test_the_command_draws_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_graph(layered(2), tmp_path / "m.rlx")
    assert main(["inspect", str(tmp_path / "m.rlx"), "--html", str(tmp_path / "m.html")]) == 0
    assert "picture written to" in capsys.readouterr().out
    text = (tmp_path / "m.html").read_text("utf-8")
    assert "<title>m.rlx</title>" in text and '"sizes":{"n":1}' in text
