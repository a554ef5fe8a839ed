"""The page in headless Chromium: on a phone, in the dark, alive, without JavaScript."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.capabilities.dashboard.conftest import PRODUCT, configs, trial
from tilesmith.records import Database
from tilesmith.search_space.hardware.target import Target

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.extra,
    pytest.mark.skipif(DRIVER is None, reason="no chromedriver: Chromium is not installed"),
]

pytest.importorskip("uvicorn", reason="the live page's libraries are not installed")
pytest.importorskip("selenium", reason="selenium is not installed")

MISSING = "/jobs/77"

PAGES = ("/", *(f"/jobs/1?show={s}" for s in ("convergence", "tasks", "failures", "about")),
         "/jobs/2?show=workers", "/workers", "/schedules", "/records/1?code=program",
         "/compare?a=1&b=2", "/jobs/1/report", MISSING)  # fmt: skip

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update",
             "--disable-sync")  # fmt: skip

CONTRASTS = """
// Texts whose contrast with their ground is below WCAG AA, and what it is.
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
function rgba(text) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function light([r, g, b]) {
  const part = [r / 255, g / 255, b / 255].map(
    (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
}
function ground(node) {
  for (let at = node; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour[3] > 250) return colour;
  }
  return [255, 255, 255, 255];
}
const found = [];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const node = walk.currentNode.parentElement;
  if (!walk.currentNode.data.trim() || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const ink = light(rgba(node instanceof SVGElement ? style.fill : style.color));
  const pair = [ink, light(ground(node))].sort((a, b) => b - a);
  const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (ratio < 4.5) found.push(walk.currentNode.data.trim().slice(0, 40) + ": " + ratio.toFixed(2));
}
return found;
"""


class Browser:
    """Chromium, and what it asked for and complained about."""

    def __init__(self, folder: Path) -> None:
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        for argument in (*ARGUMENTS, f"--user-data-dir={folder}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        assert DRIVER is not None
        self.driver: Chrome = Chrome(options=options, service=Service(DRIVER))

    def look_like(self, width: int, *, dark: bool, script: bool = True) -> None:
        """A screen of that width, a scheme of colours, JavaScript or none."""
        size = {"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})

    def run(self, script: str, *values: object) -> Any:
        """Run a function's body in the page."""
        return self.driver.execute_script(script, *values)

    def until(self, script: str) -> Any:
        """Wait for an expression to be true."""
        for _ in range(400):
            found = self.run(f"return {script}")
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}")

    def asked(self) -> set[str]:
        """Addresses it asked for since it was last asked this."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return {
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        }

    def complaints(self) -> list[str]:
        """Messages of the console, but for the page that is asked for and not there."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]
        return [message for message in found if MISSING not in message]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium with a profile of its own."""
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.driver.quit()


Start = Callable[[Path], str]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Serve a database as `tilesmith dashboard` does, but looking three times a second."""
    import uvicorn

    from tilesmith.capabilities.dashboard.application import Dashboard
    from tilesmith.capabilities.dashboard.guard import AccessRules, Guard, known_hosts
    from tilesmith.capabilities.dashboard.server import ServerPlace, configuration, listening

    running: list[tuple[uvicorn.Server, threading.Thread, Dashboard]] = []

    def make(file: Path) -> str:
        dashboard = Dashboard(str(file), busy_s=0.3, idle_s=0.3)
        guard = Guard(dashboard.application(), AccessRules(None, known_hosts([]), str))
        socket = listening(ServerPlace("127.0.0.1", 0))
        server = uvicorn.Server(configuration(guard))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        running.append((server, thread, dashboard))
        return f"http://127.0.0.1:{socket.getsockname()[1]}"

    yield make
    for server, thread, dashboard in running:
        server.should_exit = True
        thread.join(10)
        dashboard.access.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone_nothing_scrolls_sideways_and_every_text_can_be_read(
    browser: Browser, start: Start, file: Path, dark: bool
) -> None:
    base = start(file)
    browser.look_like(320, dark=dark)
    browser.asked(), browser.complaints()
    for page in PAGES:
        browser.driver.get(base + page)
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= 320, f"{page} is {wide} pixels wide"
        assert browser.run(CONTRASTS) == [], page
        dim = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (int(dim[4:].split(",")[0]) < 64) == dark
    assert browser.complaints() == []
    assert all(url.startswith("http://127.0.0.1:") for url in browser.asked())


def test_a_page_follows_a_job_and_keeps_its_place(
    browser: Browser, start: Start, tmp_path: Path, cpu: Target
) -> None:
    place = tmp_path / "live.db"
    offered = configs(cpu, PRODUCT, 3)
    browser.look_like(400, dark=False)
    with Database.open(str(place)) as database:
        job = database.start_job("tilesmith tune a.onnx", seed=0, strategy="random", targets=[cpu])
        database.add([trial(cpu, PRODUCT, offered[0], 8.0)], job=job)
        browser.driver.get(f"{start(place)}/jobs/1")
        browser.run("document.querySelector('.chart details').open = true")
        browser.run("document.querySelector('.tabs a').focus({preventScroll: true})")
        browser.run("scrollTo(0, 333)")
        at = browser.run("return scrollY")
        assert at > 0
        database.add([trial(cpu, PRODUCT, offered[1], 4.0)], job=job)
        browser.until("document.querySelector('.facts dd').textContent.trim() === '2'")
        assert "2.00×" in browser.run("return document.querySelector('.facts').textContent")
        assert browser.run("return document.querySelector('.chart details').open")
        assert browser.run("return document.activeElement.closest('.tabs') !== null")
        assert browser.run("return scrollY") == at
        rows = "[...document.querySelectorAll('.chart tbody tr')].map((row) => row.innerText)"
        assert [row.split() for row in browser.run(f"return {rows}")] == [["1", "8"], ["2", "4"]]
        browser.run("document.getElementById('pause').click()")
        database.add([trial(cpu, PRODUCT, offered[2], 2.0)], job=job)
        time.sleep(1.5)
        assert browser.run("return document.querySelector('.facts dd').textContent.trim()") == "2"
        browser.run("document.getElementById('pause').click()")
        browser.until("document.querySelector('.facts dd').textContent.trim() === '3'")
    assert browser.complaints() == []
    place.rename(tmp_path / "away.db")
    assert "does not exist" in browser.until(
        "!document.getElementById('notice').hidden && document.getElementById('notice').textContent"
    )
    assert browser.run("return document.querySelector('.facts dd').textContent.trim()") == "3"
    (tmp_path / "away.db").rename(place)
    browser.until("document.getElementById('notice').hidden")


def test_without_javascript_a_page_is_whole_and_reloads_itself(
    browser: Browser, start: Start, file: Path
) -> None:
    browser.look_like(900, dark=False, script=False)
    try:
        browser.driver.get(f"{start(file)}/jobs/1")
        source = browser.driver.page_source
    finally:
        browser.look_like(900, dark=False)
    assert source.count("<polyline") == 2
    assert '<meta http-equiv="refresh" content="10">' in source
    assert 'id="live" hidden' in source, "nothing that needs the script is offered"


def test_the_keyboard_reaches_everything_and_shows_where_it_is(
    browser: Browser, start: Start, file: Path
) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.look_like(900, dark=False)
    browser.driver.get(f"{start(file)}/")
    seen = []
    for _ in range(12):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        seen.append(
            browser.run(
                "const e = document.activeElement;"
                "return [e.textContent.trim() || e.name, getComputedStyle(e).outlineStyle]"
            )
        )
    names = [name for name, _ in seen]
    assert names[0] == "Skip to content"
    for name in ("Jobs", "Workers", "Schedules", "Compare", "q", "Show"):
        assert name in names
    assert all(outline != "none" for _, outline in seen)
    assert browser.run("return document.querySelectorAll('main, nav, header, footer').length") >= 4
    assert browser.run("return document.documentElement.lang") == "en"
