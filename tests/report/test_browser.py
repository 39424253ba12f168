"""The page in a real browser: no errors, no requests, drawings in both colour schemes, on paper and on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autosparse.report import read_run
from autosparse.report.page import build_page

Maker = Callable[..., Path]
CHROMIUM = shutil.which("chromium")
EVIL = "<script>window.hacked = 1</script><img src=x onerror=window.hacked=1>"
# Series of visible charts that have some extent in either direction.
DRAWN = """() => [...document.querySelectorAll("figure.chart")].filter(figure => figure.checkVisibility()).map(figure => {
  const series = [...figure.querySelectorAll("g[data-series]")].filter(mark => {
    const box = mark.getBoundingClientRect();
    return box.width + box.height > 1;
  });
  const marks = new Set(series.map(mark => mark.dataset.series)).size;
  return {key: figure.dataset.key, marks, width: figure.querySelector(".area").clientWidth};
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page; whatever the console says or the page asks for fails the test at its end."""
    troubles: list[str] = []
    contexts: list[Any] = []

    def opened(page: Path, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1240, "height": 900}, **options})
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: troubles.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        tab.on("request", lambda asked: None if asked.url == page.as_uri() else troubles.append(f"request: {asked.url}"))
        tab.goto(page.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


def written(folders: list[Path], out: Path) -> Path:
    """The page of these runs as a file, without PNGs."""
    path = out / "report.html"
    path.write_text(build_page([read_run(folder) for folder in folders]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written([trained["target"]], tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def compared(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(list(trained.values()), tmp_path_factory.mktemp("several"))


def colours(tab: Any) -> tuple[str, str]:
    curve = "document.querySelector('g[data-series] path')"
    return tab.evaluate(f"[getComputedStyle(document.body).backgroundColor, getComputedStyle({curve}).stroke]")


def test_every_figure_is_drawn_in_light_and_in_dark(visit: Callable[..., Any], page: Path) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        tab = visit(page, color_scheme=scheme)
        drawn = tab.evaluate(DRAWN)
        assert len(drawn) == 14
        assert all(figure["marks"] >= 1 and figure["width"] > 200 for figure in drawn), drawn
        assert {figure["key"]: figure["marks"] for figure in drawn}["layer-sparsity-over-time"] == 7
        seen[scheme] = colours(tab)
    assert seen["light"][0] != seen["dark"][0]
    assert seen["light"][1] != seen["dark"][1]


def test_paper_is_white_and_shows_what_is_folded(visit: Callable[..., Any], page: Path) -> None:
    tab = visit(page, color_scheme="dark")
    recipe = tab.locator("pre")
    assert not recipe.is_visible()
    tab.emulate_media(media="print")
    assert colours(tab)[0] == "rgb(255, 255, 255)"
    assert recipe.is_visible()
    assert "target_sparsity" in recipe.inner_text()
    printed = tab.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") <= 8


def test_a_phone_scrolls_down_only(visit: Callable[..., Any], page: Path, compared: Path) -> None:
    for file in (page, compared):
        tab = visit(file, viewport={"width": 360, "height": 740})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        assert all(figure["marks"] for figure in tab.evaluate(DRAWN))


def test_hovering_tells_the_values_of_an_epoch(visit: Callable[..., Any], page: Path, trained: dict[str, Path]) -> None:
    tab = visit(page)
    area = tab.locator("figure[data-key=accuracy] .area")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    tab.mouse.move(box["x"] + box["width"] - 2, box["y"] + 40)
    shown = tab.locator(".tip").inner_text()
    run = read_run(trained["target"])
    assert "epoch 3" in shown
    assert f"{100 * run.metrics[-1]['accuracy']:.2f} %" in shown
    rows = tab.locator("figure[data-key=layer-sparsity] .area")
    rows.scroll_into_view_if_needed()
    rows.hover(position={"x": 5, "y": 5})
    assert run.layers[0]["name"] in tab.locator(".tip").inner_text()
    tab.mouse.move(1, 1)
    assert not tab.locator(".tip").is_visible()


def test_a_legend_hides_and_shows_its_series(visit: Callable[..., Any], page: Path) -> None:
    tab = visit(page)
    keys, curves = (tab.locator(f"figure[data-key=accuracy] {name}") for name in (".key", "g[data-series]"))
    assert keys.count() == curves.count() == 2

    def shown() -> list[bool]:
        # not is_visible: a flat curve has no height
        found: list[bool] = curves.evaluate_all("all => all.map(one => getComputedStyle(one).display !== 'none')")
        return found

    keys.nth(0).click()
    assert shown() == [False, True]
    assert keys.nth(0).get_attribute("aria-pressed") == "false"
    keys.nth(0).click()
    assert shown() == [True, True]
    keys.nth(1).dblclick()
    assert shown() == [False, True]
    keys.nth(1).dblclick()
    assert shown() == [True, True]


def test_several_runs_have_a_frontier_and_their_own_parts(visit: Callable[..., Any], compared: Path) -> None:
    tab = visit(compared)
    drawn = {figure["key"]: figure["marks"] for figure in tab.evaluate(DRAWN)}
    assert drawn["frontier"] == 2
    dot = tab.locator("figure[data-key=frontier] g[data-series] use").last
    dot.scroll_into_view_if_needed()
    box = dot.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "digits-rigl" in tab.locator(".tip").inner_text()
    colour = tab.locator(".tip i").first.evaluate("one => getComputedStyle(one).backgroundColor")
    assert colour == dot.evaluate("one => getComputedStyle(one).fill")
    before = len(tab.evaluate(DRAWN))
    tab.locator("details.run > summary").first.click()
    assert len(tab.evaluate(DRAWN)) > before


def test_hostile_texts_do_not_run(visit: Callable[..., Any], make_run: Maker, tmp_path: Path) -> None:
    layers = [{"name": f"{EVIL}{place}", "weights": 4, "zeros": 2, "sparsity": 0.5, "macs": 10} for place in (1, 2)]
    folder = make_run(
        name=EVIL, recipe={"description": EVIL}, result={"layers": layers, "macs": {EVIL + "1": 10}, "events": [EVIL]}
    )
    tab = visit(written([folder], tmp_path))
    assert tab.locator("h1").inner_text() == EVIL
    tab.locator("figure[data-key=layer-sparsity] .area").hover(position={"x": 5, "y": 5})
    assert EVIL in tab.locator(".tip").inner_text()
    assert tab.evaluate("window.hacked") is None
