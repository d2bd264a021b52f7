"""The report's page in a real browser: plots, zoom, hover, colours, keys, and hostile texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bench.report import week
from resilience.app.bundles import Sources, check_sources, read_sources
from resilience.app.page_file import write_page
from resilience.app.plan import plan
from resilience.app.reporting import run, run_over
from resilience.model import Labels, labels_of
from resilience.sources.recording import Recording, RecordingMeta, write
from resilience.sources.store import Group, MemoryStore

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Open = Callable[..., "Page"]

START_MS = 1_700_000_000_000
HOSTILE = (
    "</script><script>alert(1)</script>", "\"'><img src=x onerror=alert(2)>", "<!--<script>",
    "日本語 \u202e right to left", "\u2028\u2029", "{{ $labels }} ${x} \\u003c", "long " * 600,
)
POLICY = """apiVersion: resilience/v1
kind: Policy
metadata:
  name: queue
  annotations: {summary: "</p></article><script>alert(3)</script>"}
spec:
  interval: 1s
  on_missing_metric: warn
  trigger:
    expr: queue > 10
    for: 5s
    resolve: {expr: queue < 5, for: 5s}
    on_no_data: hold
  actions: [{type: throttle, tier: best-effort, max_concurrency: 4, lease: 30s}]
---
apiVersion: resilience/v1
kind: Policy
metadata: {name: still}
spec:
  interval: 1s
  trigger: {expr: 'queue > 1000 and queue{pod!="</style>"} < 5', on_no_data: hold}
  actions: [{type: throttle, tier: best-effort, max_concurrency: 2, lease: 30s}]
"""


def _recording(labels: tuple[Labels, ...]) -> Recording:
    """A queue of 0 that is 40 from second 100 to 200 and has no samples from 300 to 400."""
    row = np.zeros(600)
    row[100:200] = 40
    values = np.tile(row, (len(labels), 1))
    times = START_MS + np.arange(600, dtype=np.int64) * 1_000
    keep = np.r_[0:300, 400:600]
    group = Group(times[keep], np.arange(1, len(keep) + 1), labels, values[:, keep].copy())
    meta = RecordingMeta(
        "test", scrape_interval_ms=1_000, start_ms=START_MS, end_ms=int(times[-1])
    )
    return Recording(MemoryStore.from_groups([group]), (), meta)


def _write(path: Path, pods: tuple[str, ...], name: str = "run.parquet") -> Path:
    labels = tuple(labels_of({"__name__": "queue", "job": "vllm", "pod": pod}) for pod in pods)
    bundle = check_sources(Sources((("queue.yaml", POLICY.encode()),))).bundle
    write_page(path, run_over(bundle, _recording(labels), name, plots=True).report)
    return path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("page") / "report.html", ("a", "b"))


def _plot(page: Page) -> tuple[Locator, dict[str, float]]:
    canvas = page.locator("canvas").first
    canvas.scroll_into_view_if_needed()
    box: Any = canvas.bounding_box()
    return canvas, box


def _rest_at(page: Page, share: float) -> None:
    """Move the pointer over the first plot, to a share of the time."""
    _, box = _plot(page)
    left, right = 64, 10
    x = box["x"] + left + (box["width"] - left - right) * share
    page.mouse.move(x - 3, box["y"] + 50)
    page.mouse.move(x, box["y"] + 50)


def _range(page: Page) -> str:
    return page.locator("#range").inner_text()


def test_hover_shows_value_threshold_state_and_claims(small: Path, open_page: Open) -> None:
    page = open_page(small)
    _rest_at(page, 150 / 600)
    tip = page.locator("#tip").inner_text()
    assert 'queue{job="vllm", pod="a"}: 40' in tip
    assert "threshold > 10" in tip
    assert "resolves < 5" in tip
    assert "state: firing" in tip
    assert 'claims throttle.max_concurrency{tier="best-effort"} = 4' in tip
    _rest_at(page, 350 / 600)
    assert "no data" in page.locator("#tip").inner_text()
    assert "blind" in page.locator("#tip").inner_text()
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()


def test_the_plot_is_drawn(small: Path, open_page: Open) -> None:
    page = open_page(small)
    canvas, _ = _plot(page)
    colours = canvas.evaluate("""async (c) => {
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        const found = new Set();
        const pixels = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        for (let i = 0; i < pixels.length; i += 4)
            if (pixels[i + 3] === 255) found.add([...pixels.slice(i, i + 3)].join());
        return [...found];
    }""")
    firing, claim, line = "207,34,46", "9,105,218", "188,76,0"
    assert {firing, claim, line} <= set(colours)


def test_wheel_drag_and_buttons_zoom_the_time_of_all_plots(small: Path, open_page: Open) -> None:
    page = open_page(small)
    whole = _range(page)
    assert whole.endswith(" UTC, 10m")
    _rest_at(page, 0.25)
    page.mouse.wheel(0, -200)
    page.wait_for_function("text => document.getElementById('range').textContent !== text",
                           arg=whole)
    assert _range(page).endswith("UTC, 8m")
    page.get_by_role("button", name="Whole time").click()
    assert _range(page) == whole
    _rest_at(page, 0.2)
    page.mouse.down()
    _, box = _plot(page)
    page.mouse.move(box["x"] + 64 + (box["width"] - 74) * 0.4, box["y"] + 60, steps=4)
    page.mouse.up()
    assert re.search(r"UTC, (2m|1m59s)", _range(page))
    page.get_by_role("button", name="Zoom in").click()
    assert re.search(r"UTC, (1m|59s)", _range(page))
    page.locator("canvas").first.dblclick(position={"x": 300, "y": 40})
    assert _range(page) == whole


def test_the_wheel_scrolls_a_page_under_a_resting_pointer(small: Path, open_page: Open) -> None:
    page = open_page(small, viewport={"width": 1000, "height": 500})
    page.mouse.move(500, 300)
    before = _range(page)
    for _ in range(6):
        page.mouse.wheel(0, 120)
    page.wait_for_function("() => scrollY > 200")
    assert _range(page) == before


def test_keys_move_zoom_and_tell_the_reader(small: Path, open_page: Open) -> None:
    page = open_page(small)
    whole = _range(page)
    canvas, _ = _plot(page)
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert "state:" in page.locator("#readout").inner_text()
    first = page.locator("#readout").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#readout").inner_text() != first
    page.keyboard.press("+")
    assert _range(page).endswith("UTC, 5m")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("-")
    page.keyboard.press("0")
    assert _range(page) == whole
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_every_plot_has_a_name_and_a_place_in_the_order_of_keys(
    small: Path, open_page: Open
) -> None:
    page = open_page(small)
    plots = page.get_by_role("img")
    assert plots.count() == 2
    assert "queue over time: 2 firings" in (plots.first.get_attribute("aria-label") or "")
    page.get_by_role("link", name="still").focus()
    reached: list[str] = []
    for _ in range(2):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.ariaLabel"))
    assert [text.partition(" over")[0] for text in reached] == ["Plot of queue", "Plot of still"]


BACK = "getComputedStyle(document.body).backgroundColor"
DARK, LIGHT = "rgb(13, 17, 23)", "rgb(255, 255, 255)"


@pytest.mark.parametrize(("scheme", "first", "second"), [
    ("light", LIGHT, DARK), ("dark", DARK, LIGHT),
])
def test_colours_follow_the_system_and_the_button(
    small: Path, open_page: Open, scheme: str, first: str, second: str
) -> None:
    page = open_page(small, color_scheme=scheme)
    assert page.evaluate(BACK) == first
    page.locator("#theme").click()
    assert page.evaluate(BACK) == second
    page.locator("#theme").click()
    assert page.evaluate(BACK) == first


def test_a_change_of_the_system_shows_at_once(small: Path, open_page: Open) -> None:
    page = open_page(small, color_scheme="light")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(BACK) == DARK


def test_without_scripts_the_figures_are_there(small: Path, open_page: Open) -> None:
    page = open_page(small, java_script_enabled=False)
    rows = page.get_by_role("row")
    assert rows.nth(1).inner_text().split("\t")[:2] == ["queue", "2"]
    assert page.locator("#controls").is_hidden()
    assert "fired 2023-11-14 22:15:05Z" in page.locator("#policy-0").inner_text()


def test_hostile_texts_stay_texts(tmp_path: Path, open_page: Open) -> None:
    name = "</title><script>alert(4)</script>.parquet"
    path = _write(tmp_path / "hostile.html", HOSTILE, name)
    page = open_page(path)
    assert page.locator("script").count() == 2
    assert page.locator("img[src]").count() == 0
    assert page.title() == f"Dry run over {name}"
    _rest_at(page, 0.25)
    tip = page.locator("#tip").inner_text()
    assert "</script><script>alert(1)</script>" in tip
    assert "日本語" in tip
    assert page.locator("article").count() == 2
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert width <= 0


def test_a_plan_shows_both_sides_and_what_changes(tmp_path: Path, open_page: Open) -> None:
    """A trigger that must be true for two minutes never fires; before it fired after 5 s."""
    hostile = "</script><b>x</b>"
    before = check_sources(Sources((("queue.yaml", POLICY.encode()),))).bundle
    text = POLICY.replace("for: 5s\n    resolve", "for: 2m\n    resolve")
    text = text.replace("summary: \"", f"summary: \"{hostile}")
    after = check_sources(Sources((("queue.yaml", text.encode()),))).bundle
    recorded = _recording((labels_of({"__name__": "queue", "pod": "a"}),))
    recording = tmp_path / "run.parquet"
    write(recording, recorded.store, [], recorded.meta)
    found = plan(before, after, hostile, recording, plots=True)
    assert found.report is not None and found.report.compared is not None
    write_page(tmp_path / "plan.html", found.report)
    page = open_page(tmp_path / "plan.html")
    assert page.title() == f"Plan over {recording}"
    assert page.locator("script").count() == 2 and page.locator("b").count() == 0
    changes = page.locator("section", has_text="Against").inner_text()
    assert f"Against {hostile}." in changes and "spec.trigger.for: 5s -> 2m" in changes
    page.get_by_text("The decisions that differ").click()
    assert page.locator("details tbody tr").count() == found.report.compared.decisions.differ
    assert "1 -> 0" in page.locator("table", has_text="Firings").inner_text()
    _rest_at(page, 150 / 600)
    tip = page.locator("#tip").inner_text()
    assert "before: firing" in tip and "state: pending" in tip


def test_no_script_of_anybody_else_may_run(small: Path, open_page: Open) -> None:
    page = open_page(small)
    policy = page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("width", [340, 700])
def test_narrow_screens_scroll_down_only(small: Path, open_page: Open, width: int) -> None:
    page = open_page(small, viewport={"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    _rest_at(page, 0.25)
    assert "state: firing" in page.locator("#tip").inner_text()


def test_policies_that_did_nothing_can_be_hidden(tmp_path: Path, open_page: Open) -> None:
    page = open_page(_write(tmp_path / "report.html", ("a",)))
    quiet = page.locator("article[data-quiet]").count()
    page.get_by_label("hide policies that did nothing").check()
    assert page.locator("article:visible").count() == 2 - quiet


def test_a_week_of_a_hundred_policies_loads_and_answers(tmp_path: Path, open_page: Open) -> None:
    week.recording(tmp_path / "week.parquet")
    week.rules(tmp_path / "rules", 100, "2m")
    bundle = check_sources(read_sources(tmp_path / "rules")).bundle
    size = write_page(
        tmp_path / "week.html", run(bundle, tmp_path / "week.parquet", plots=True).report
    )
    assert size < 8_000_000
    page = open_page(tmp_path / "week.html")
    assert page.locator("article").count() == 100
    assert "thinned" in page.locator("header").inner_text()
    whole = _range(page)
    page.locator("canvas").nth(90).scroll_into_view_if_needed()
    page.locator("canvas").first.scroll_into_view_if_needed()
    _rest_at(page, 0.3)
    assert "threshold" in page.locator("#tip").inner_text()
    page.mouse.wheel(0, -300)
    page.wait_for_function("text => document.getElementById('range').textContent !== text",
                           arg=whole)
    drawn = page.evaluate("[...document.querySelectorAll('canvas')].filter(c => c.width).length")
    assert 0 < drawn < 20
