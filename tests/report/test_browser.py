"""The report in headless Chromium: nothing fails, nothing overflows, all is legible, narrow or wide, light or dark."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.evidence.training_comparison import compare
from coterie.report import training_page
from coterie.report.fit_page import write_report
from coterie.report.page import page, write_page
from coterie.report.tables import Table
from tests.results import factory
from tests.runs.test_training import config

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NETS = ["fedavg", "ditto", "found-groups"]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium or chromedriver is not installed"),
]

# What a reader sees of every element with text of its own: colour, the background behind it, size.
TEXTS = """
const solid = e => {
  for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor;
    if (!/rgba\\(.*, 0\\)|transparent/.test(c)) return c;
  }
  return 'rgb(255, 255, 255)';
};
return [...document.querySelectorAll('body *')].filter(e =>
  [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) && !e.closest('style, title')
).map(e => {
  const s = getComputedStyle(e), b = e.getBoundingClientRect();
  const svg = e.ownerSVGElement, scale = svg ? svg.getScreenCTM().a : 1;
  return {text: e.textContent.trim().slice(0, 40), color: svg ? s.fill : s.color, behind: solid(e),
          size: parseFloat(s.fontSize) * scale, width: b.width};
});
"""
PICTURES = """
return [...document.querySelectorAll('svg')].map(e => {
  const b = e.getBoundingClientRect();
  return {width: b.width, height: b.height, parts: e.querySelectorAll('path, circle, rect').length,
          colors: [...new Set([...e.querySelectorAll('.area, .dot, .cell, .pull, .zero')].map(p => {
            const s = getComputedStyle(p); return p.matches('.pull, .zero') ? s.stroke : s.fill; }))],
          behind: getComputedStyle(document.body).backgroundColor};
});
"""
# Texts that are cut, lie outside of their picture or cell, or upon each other; tables may scroll in their boxes.
MISPLACED = """
document.querySelectorAll('details').forEach(e => { e.open = true; });
const width = document.documentElement.clientWidth, found = new Set(), lines = [];
const inside = (b, c, slack) => b.left >= c.left - slack && b.right <= c.right + slack;
for (const e of document.querySelectorAll('body *')) {
  if (e.closest('style, title, script')) continue;
  const name = `${e.tagName} ${e.textContent.trim().slice(0, 40)}`, box = e.getBoundingClientRect();
  if ((!e.closest('.scroll') || e.matches('.scroll')) && box.width && !inside(box, {left: 0, right: width}, 0.5))
    found.add(`beyond the page: ${name}`);
  for (const n of e.childNodes) {
    if (n.nodeType !== 3 || !n.textContent.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(n);
    for (const b of range.getClientRects()) if (b.width) lines.push([b, e, name]);
  }
}
lines.forEach(([b, e, name], i) => {
  const around = e.ownerSVGElement ?? e.closest('td, th, dd');
  if (around && !inside(b, around.getBoundingClientRect(), 1)) found.add(`outside: ${name}`);
  if (e.closest('th:first-child, caption')) return;  // held while the others scroll beneath
  for (const [c, f, other] of lines.slice(i + 1)) {
    if (e === f || f.closest('th:first-child, caption') || [e, f].some(t => t.hasAttribute('transform'))) continue;
    const across = Math.min(b.right, c.right) - Math.max(b.left, c.left);
    if (across > 1 && Math.min(b.bottom, c.bottom) - Math.max(b.top, c.top) > 3) found.add(`${name} upon ${other}`);
  }
});
return [...found];
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[tuple[str, list[str]]]:
    """Reports behind a web server, so that a request for anything else would be seen."""
    folder = tmp_path_factory.mktemp("reports")
    evil = np.array([f'<script>alert({i})</script> "Schule" Nº {i} 学校' for i in range(500)], dtype=object)
    write_report(factory.world(clients=160, levels=(2,), D=np.diag([6.0, 0.3])).result, folder / "usual.html")
    write_report(factory.world(clients=500, levels=(60, 5), labels=evil).result, folder / "evil.html")
    plain = factory.world(clients=30, levels=(), family="binomial", loss="log loss").result
    write_report(replace(plain, local_coefficients=None), folder / "plain.html")
    write_report(factory.world(clients=1, levels=()).result, folder / "one.html")
    training_page.write_report(compare(config(run={"rounds": 2, "seeds": 2}), NETS), folder / "nets.html")
    ties = {"space": "model", "k": 3, "lam": 0.1}
    table = factory.world(clients=20, levels=()).table
    tied = coterie.fit(table, "y ~ x", "school", method="similarity-network", network=ties, splits=0)
    tied.report(folder / "tied.html")
    runs = tuple((f"{'fit' * i}-{i}", "finished", "", "12,345", "1", "2", "2026-01-01") for i in range(12))
    tables = [
        Table(
            "Sites", ("site", "connection", "key"), (("basel", "online", ""), (evil[1], "offline", evil[2])), texts=3
        ),
        Table("Runs", ("run", "state", "missing", "exchanges", "down, kB", "up, kB", "last exchange"), runs, texts=3),
    ]
    values = {"facts": ["over nvflare"], "alarms": [f"{evil[3]} is missing"], "tables": tables}
    federation = page("status.html", headline="Federation heart: 1 alarm", question="coordinator", **values)
    write_page(federation, folder / "federation.html")
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, directory=str(folder), **options)

        def end_headers(self) -> None:
            self.send_header("Cache-Control", "no-store")  # else a page may come from the cache, unseen
            super().end_headers()

        def log_message(self, *_: Any) -> None:
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def channels(color: str) -> np.ndarray:
    return np.array([float(v) for v in color[color.index("(") + 1 : -1].split(",")[:3]]) / 255


def contrast(a: str, b: str) -> float:
    """The ratio of WCAG 2.2."""
    light = []
    for color in (a, b):
        c = channels(color)
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        light.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_the_contrast_formula() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgba(255, 255, 255, 1)") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("page, many", {"usual": 6, "evil": 6, "plain": 6, "one": 4, "tied": 5, "nets": 5}.items())
def test_the_page_reads_well(page, many, width, scheme, browser, site) -> None:
    address, asked = site
    asked.clear()
    assert len(read_well(browser, f"{address}/{page}.html", width, scheme)) > 100
    assert asked == [f"/{page}.html"]

    pictures = browser.execute_script(PICTURES)
    assert len(pictures) == many
    for picture in pictures:
        assert picture["width"] >= 0.75 * min(width - 40, 440)
        assert picture["height"] > 150
        assert picture["parts"] > 8
        assert all(contrast(c, picture["behind"]) >= 3 for c in picture["colors"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_of_a_federation_reads_well(width, scheme, browser, site) -> None:
    address, asked = site
    asked.clear()
    texts = read_well(browser, f"{address}/federation.html", width, scheme)
    assert asked == ["/federation.html"]
    assert {"Federation heart: 1 alarm", "basel", "12,345"} <= {text["text"] for text in texts}
    assert browser.execute_script("return document.querySelectorAll('form, button, input, a, script').length") == 0


def read_well(browser, address, width, scheme) -> list[dict[str, Any]]:
    """The texts of a page, none of which overflows, is too small or too faint."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(address)

    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    assert browser.execute_script(MISPLACED) == []

    behind = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (channels(behind).mean() > 0.5) == (scheme == "light")
    texts = [t for t in browser.execute_script(TEXTS) if t["width"] > 0]
    assert [t for t in texts if contrast(t["color"], t["behind"]) < 4.5] == []
    assert [t for t in texts if t["size"] < 9.5] == []
    return texts


def test_names_of_methods_are_broken_at_hyphens_alone(browser, site) -> None:
    browser.set_window_size(390, 900)
    browser.get(f"{site[0]}/usual.html")
    lines = browser.execute_script(
        "return [...document.querySelector('.scroll').querySelectorAll('tbody th')].map(th => {"
        "  const range = document.createRange(); range.selectNodeContents(th.firstChild);"
        "  return [th.firstChild.textContent.trim(), new Set([...range.getClientRects()].map(r => r.top)).size]; })"
    )
    assert {"hierarchical", "own-intercept"} <= {name for name, _ in lines}
    assert all(count <= 1 + name.count("-") for name, count in lines), lines


def test_a_wide_table_scrolls_inside_its_box(browser, site) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    )
    browser.get(f"{site[0]}/usual.html")
    moved = browser.execute_script(
        "const b = document.querySelector('.scroll'); b.scrollLeft = 99; return [b.scrollLeft, window.scrollX]"
    )
    assert moved == [99, 0]


def test_a_point_says_whose_it_is_to_the_pointer_and_to_keys(browser, site) -> None:
    from selenium.webdriver import ActionChains, Keys

    browser.get(f"{site[0]}/usual.html")
    point = browser.find_elements("css selector", ".hover")[-1]
    said = browser.execute_script("return arguments[0].dataset.said", point)
    tip = browser.find_element("css selector", ".tip")
    assert not tip.is_displayed()
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
    ActionChains(browser).move_to_element(point).perform()
    assert tip.text == said
    picture = point.find_element("xpath", "..")
    browser.execute_script("arguments[0].focus()", picture)
    seen = [picture.send_keys(Keys.ARROW_RIGHT) or tip.text for _ in range(3)]
    assert len(set(seen)) == 3 and all(": " in text for text in seen)
    picture.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_only_the_pages_own_script_runs(browser, site) -> None:
    browser.get(f"{site[0]}/evil.html")
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    assert browser.execute_script("return window.ran ?? 0") == 0
    browser.get_log("browser")


def test_it_prints_on_paper(browser, site) -> None:
    browser.get(f"{site[0]}/usual.html")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.execute_script("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_it_opens_from_a_file(browser, tmp_path: Path) -> None:
    write_report(factory.world().result, tmp_path / "ein Bericht.html")
    browser.get((tmp_path / "ein Bericht.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.title.startswith("The hierarchical model predicts best")
