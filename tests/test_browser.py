"""The page in a browser: Debian's chromium and chromium-driver; skipped where they are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakbench.loading import load

webdriver = pytest.importorskip("selenium.webdriver")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromium-driver here"),
]

RUN = Path(__file__).parent.parent / "results" / "tifs_table3-quick"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(load(RUN).report("html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--force-color-profile=srgb",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The page anew, wide, with what it copies kept aside."""
    browser.set_window_size(1400, 1000)
    browser.get(page.as_uri())
    browser.execute_script(
        "window.copied = [];"
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) =>"
        " { window.copied.push(text); }}});"
    )
    yield browser
    assert browser.get_log("browser") == []


def rows(driver: Any, table: int = 0) -> list[list[str]]:
    """Shown rows of a table, as text."""
    found: list[list[str]] = driver.execute_script(
        "return [...document.querySelectorAll('table')[arguments[0]].tBodies[0].rows]"
        ".filter((row) => !row.hidden).map((row) => [...row.cells].map((c) => c.innerText))",
        table,
    )
    return found


def test_a_column_of_rates_sorts_by_number(opened: Any) -> None:
    before = rows(opened)
    head = opened.find_elements("css selector", "table.sortable th")[1]
    head.click()
    first = [float(row[1].split()[0]) for row in rows(opened)]
    head.click()
    second = [float(row[1].split()[0]) for row in rows(opened)]
    assert sorted(first) in (first, first[::-1]) and second == first[::-1]
    assert sorted(map(tuple, before)) == sorted(map(tuple, rows(opened)))
    assert head.get_attribute("aria-sort") in ("ascending", "descending")


def test_the_keyboard_sorts_as_well(opened: Any) -> None:
    head = opened.find_elements("css selector", "table.sortable th")[0]
    head.send_keys("\ue007")  # Enter
    names = [row[0].lower() for row in rows(opened)]
    assert names in (sorted(names), sorted(names, reverse=True))


def test_a_filter_hides_rows_and_copies_hold_what_is_shown(opened: Any) -> None:
    opened.find_element("css selector", ".bar input").send_keys("noise on the")
    assert [row[0] for row in rows(opened)] == [
        "DP-baseline, noise on the mean", "DP-baseline, noise on the sum",
    ]  # fmt: skip
    csv, markdown = opened.find_elements("css selector", ".bar")[0].find_elements(
        "tag name", "button"
    )
    csv.click()
    markdown.click()
    comma, bars = opened.execute_script("return window.copied")
    assert comma.splitlines()[1].startswith('"DP-baseline, noise on the mean",')
    assert len(comma.splitlines()) == 3 and len(bars.splitlines()) == 4
    assert bars.splitlines()[0].startswith("| method | recovered | named |")


def test_links_lead_to_rows(opened: Any) -> None:
    opened.find_element("css selector", "ul.answer a").click()
    target = opened.execute_script("return document.querySelector(':target').innerText")
    assert target.startswith("non-private")
    broken = opened.execute_script(
        "return [...document.querySelectorAll('a[href^=\"#\"]')]"
        ".filter((a) => !document.getElementById(a.hash.slice(1))).length"
    )
    assert broken == 0


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_cut_off(opened: Any, width: int) -> None:
    """The page itself never scrolls sideways; tables do, in boxes of their own."""
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    opened.execute_script("document.querySelector('details').open = true")
    wide = opened.execute_script("return document.documentElement.scrollWidth")
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= width


def test_a_dark_screen_gets_a_dark_page(opened: Any) -> None:
    shade = "return getComputedStyle(document.body).backgroundColor"
    light = opened.execute_script(shade)
    opened.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    dark = opened.execute_script(shade)
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    channels = [json.loads(f"[{colour[4:-1]}]") for colour in (light, dark)]
    assert min(channels[0]) > 200 and max(channels[1]) < 60
