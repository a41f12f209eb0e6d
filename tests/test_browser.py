"""The page in a browser: Debian's chromium and chromium-driver; skipped where they are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakbench.comparing import compare
from leakbench.loading import load
from leakbench.records import Run, encode

webdriver = pytest.importorskip("selenium.webdriver")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromium-driver here"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, pictured_run: Path) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(load(pictured_run).report("html"), encoding="utf-8")
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


def shown(driver: Any, within: str) -> list[str]:
    """Addresses of the pictures in the first part of a page that a selector finds."""
    found: list[str] = driver.execute_script(
        "return [...document.querySelector(arguments[0]).querySelectorAll('td img, .seen img.hit')]"
        ".map((image) => image.src)",
        within,
    )
    return found


def test_a_slider_moves_all_pictures_of_its_data_set(opened: Any) -> None:
    slider = opened.find_element("css selector", ".of-steps input[type=range]")
    said = opened.find_element("css selector", ".of-steps output")
    end = shown(opened, ".of-steps")
    assert said.text == "returned" and len(end) == 20 * 16
    assert all(source.startswith("data:image/webp;base64,") for source in end)
    slider.send_keys("\ue011")  # Home
    start = shown(opened, ".of-steps")
    assert said.text == "start" and len(set(start)) == 1
    slider.send_keys("\ue014")  # right
    assert said.text == slider.get_attribute("aria-valuetext") == "step 1"
    first = shown(opened, ".of-steps")
    assert start[0] in first and len(set(first)) > 10
    wrong = opened.execute_script(
        "return [...document.images].filter((i) => i.src && !i.naturalWidth).length"
    )
    assert wrong == 0


def test_a_picture_opens_its_victim_and_escape_leads_back(opened: Any) -> None:
    opened.find_element("css selector", ".of-steps input[type=range]").send_keys("\ue011")
    picture = opened.find_elements("css selector", ".of-steps td")[2]
    picture.click()
    (dialog,) = opened.find_elements("css selector", "dialog[open]")
    assert dialog.get_attribute("id") == picture.get_attribute("data-opens")
    assert dialog.find_element("css selector", "output").text == "start"  # as outside
    names = [head.text for head in dialog.find_elements("css selector", "h4")]
    assert names[0] == "non-private, naive: recovered" and len(names) == 20
    before = shown(opened, "dialog[open]")
    dialog.find_element("css selector", "input[type=range]").send_keys("\ue010")  # End
    assert shown(opened, "dialog[open]") != before
    assert dialog.find_elements("css selector", "svg polyline")
    dialog.send_keys("\ue00c")  # Escape
    assert not opened.find_elements("css selector", "dialog[open]")


def test_victims_open_by_the_keyboard_alone(opened: Any) -> None:
    button = opened.find_element("css selector", "button[data-opens]")
    opened.execute_script("arguments[0].focus()", button)
    button.send_keys("\ue007")  # Enter
    (dialog,) = opened.find_elements("css selector", "dialog[open]")
    inside = "return document.querySelector('dialog[open]').contains(document.activeElement)"
    assert opened.execute_script(inside)
    opened.switch_to.active_element.send_keys("\ue00c")
    assert opened.execute_script("return document.activeElement") == button
    button.send_keys("\ue007")
    dialog.find_element("css selector", "form button").click()
    assert not dialog.is_displayed()


@pytest.mark.parametrize("width", [400, 1400])
def test_an_open_victim_fits_the_screen(opened: Any, width: int) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    opened.execute_script("document.querySelector('[data-opens]').click()")
    opened.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    wide, room = opened.execute_script(
        "const d = document.querySelector('dialog[open]'); return [d.scrollWidth, d.clientWidth]"
    )
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= room <= width


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
    opened.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
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


@pytest.mark.parametrize("width", [400, 1400])
def test_two_runs_stand_side_by_side(
    browser: Any, pictured_run: Path, tmp_path: Path, width: int
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(pictured_run, folder)
    run = Run.existing(folder)
    records = [
        record | ({"mse_clamped": 0.5, "rank": 9} if record["victim"] % 2 else {})
        for record in run.records().values()
    ]
    run.packed.unlink()
    run.path.write_bytes(b"".join(map(encode, records)))
    path = tmp_path / "two.html"
    path.write_text(compare(pictured_run, folder).page(), encoding="utf-8")
    browser.get(path.as_uri())
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    first = rows(browser)[0]
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.pair img')].filter((i) => i.naturalWidth).length"
    )
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= width and shown == 3 * 24
    assert first[0] == "non-private" and first[1][:4] == "1.00" and first[2][:4] == "0.50"
    assert browser.get_log("browser") == []
