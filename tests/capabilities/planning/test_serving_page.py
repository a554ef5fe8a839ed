"""The page of a sweep and of a load: whole, escaped, loading nothing, readable everywhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.capabilities.planning.test_architectures import PUBLISHED, read
from tilesmith.capabilities.planning.serving.job import Outputs, ServingLoad, plan_load, plan_sweep
from tilesmith.capabilities.planning.sizing.answer import ReplicaOptions
from tilesmith.capabilities.planning.sizing.demand import Bounds
from tilesmith.capabilities.planning.sweeps.grid import ALL, Grid
from tilesmith.search_space.meshes.mesh import load_mesh

LLAMA = read(PUBLISHED["Llama 3 8B"][0])
GRID = Grid((load_mesh("trn1.32xlarge"), load_mesh("trn1.2xlarge")), pipeline=ALL, batches=(1, 8))


class Page(HTMLParser):
    """Tags must close; what is loaded from elsewhere is collected."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loaded += [value or "" for key, value in attributes if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: folder / f"{name}.html" for name in ("sweep", "load")}
    command = "tilesmith plan <config>"
    plan_sweep(LLAMA, GRID, Outputs(page=found["sweep"], command=command))
    load = ServingLoad(
        10.0, input_spread=0.5, output_spread=0.5, requests=300,
        bounds=Bounds(ttft_p99=800, tpot_p99=40),
        options=ReplicaOptions(policies=("prefill_first",)),
    )  # fmt: skip
    one = Grid(GRID.meshes[:1], tensor=(8,))
    plan_load(LLAMA, one, load, Outputs(page=found["load"], command=command))
    return found


@pytest.mark.parametrize("name", ["sweep", "load"])
def test_a_page_is_whole_and_needs_nothing_else(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text()
    page = Page(text)
    assert page.open == [] and page.loaded == [] and "script" not in page.seen
    assert {"svg", "polyline"} <= set(page.seen)
    assert "tilesmith plan &lt;config&gt;" in text and "http" not in text
    assert "21.5" in text, "the price of an hour"
    assert page.seen.count("svg") == {"sweep": 3, "load": 4}[name]


DRIVER = shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One Chromium, where there is one."""
    if DRIVER is None:
        pytest.skip("no chromedriver: Chromium is not installed")
    pytest.importorskip("selenium", reason="selenium is not installed")
    pytest.importorskip("uvicorn", reason="the live page's libraries are not installed")
    from tests.capabilities.dashboard.test_browser import Browser

    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.driver.quit()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_on_a_phone_and_in_the_dark(
    pages: dict[str, Path], browser: object, dark: bool
) -> None:
    from tests.capabilities.dashboard.test_browser import CONTRASTS, Browser

    assert isinstance(browser, Browser)
    browser.look_like(320, dark=dark)
    browser.asked(), browser.complaints()
    for name, file in pages.items():
        browser.driver.get(f"file://{file}")
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= 320, f"{name} is {wide} pixels wide"
        assert browser.run(CONTRASTS) == [], name
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (int(ground[4:].split(",")[0]) < 64) == dark
    assert browser.complaints() == []
    assert all(url.startswith("file://") for url in browser.asked())
