"""Take screenshots of every kind of page on several screens, and check axe-core, size and largest paint.

python -m tools.screenshots OUT                    a page of every kind of record, from the samples that tests use
python -m tools.screenshots OUT --pages FOLDER     the pages that commands wrote there (`make demo`, say)
python -m tools.screenshots OUT --only survey,view --screens phone,dark

Needs Chromium, and npm for axe-core (a pinned version, kept in OUT). If firefox-esr is installed, it also draws each
page on a laptop and on a wide screen, as soon as it has loaded (the small maps of a view come a moment later).
Exits with 1 if axe-core finds a violation, a page other than a view is larger than 2 MB, or its largest paint comes
after more than a second. Look at the pictures too: no number detects ugliness.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

import attnscope
from tests.commands.samples import ALL, sample
from tests.reports.conftest import FLAGS

AXE = "axe-core@4.14.0"
LARGEST_MB, LATEST_MS = 2.0, 1000.0
MAY_BE_LARGER = "view"


@dataclass(frozen=True)
class Screen:
    width: int
    scheme: Literal["light", "dark"] = "light"
    medium: Literal["screen", "print"] = "screen"


SCREENS: Mapping[str, Screen] = {
    "phone": Screen(390),
    "laptop": Screen(1440),
    "wide": Screen(2560),
    "dark": Screen(1440, scheme="dark"),
    "print": Screen(690, medium="print"),  # A4 without its margins
}
IN_FIREFOX = ("laptop", "wide")
PAINT = """() => new Promise(done => {
  new PerformanceObserver(list => done(Math.max(...list.getEntries().map(entry => entry.startTime))))
    .observe({type: "largest-contentful-paint", buffered: true});
  setTimeout(() => done(null), 3000);
})"""


def axe_core(folder: Path) -> str:
    """Return the axe-core script, which is fetched once."""
    kept = folder / "axe.min.js"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(["npm", "pack", "--silent", AXE], cwd=place, check=True, capture_output=True)
            (packed,) = Path(place).glob("*.tgz")
            with tarfile.open(packed) as archive:
                script = archive.extractfile("package/axe.min.js")
                kept.write_bytes(script.read() if script else b"")
    return kept.read_text("utf-8")


def sample_pages(folder: Path, only: set[str]) -> list[Path]:
    """Write a page of every kind of record, or of the named kinds."""
    folder.mkdir(parents=True, exist_ok=True)
    return [attnscope.report(sample(kind), folder / f"{kind}.html") for kind in ALL if not only or kind in only]


def violations(page: Page, axe: str) -> Iterator[str]:
    page.evaluate(axe)
    found: dict[str, Any] = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    for one in found["violations"]:
        places = ", ".join(str(node["target"][0]) for node in one["nodes"][:3])
        yield f"{one['id']} ({one['impact']}, {len(one['nodes'])} places): {one['help']}: {places}"


def look_at(browser: Browser, path: Path, out: Path, screens: Mapping[str, Screen], axe: str) -> list[str]:
    """Take pictures of one page, and return its problems."""
    wrong: list[str] = []
    size = path.stat().st_size / 1e6
    if size > LARGEST_MB and not path.stem.startswith(MAY_BE_LARGER):
        wrong.append(f"{size:.1f} MB, more than {LARGEST_MB:g}")
    painted: list[float] = []
    for name, screen in screens.items():
        context = browser.new_context(
            viewport={"width": screen.width, "height": 900}, color_scheme=screen.scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.goto(path.as_uri())
        if screen.medium == "print":
            page.emulate_media(media="print")
        elif (paint := page.evaluate(PAINT)) is not None:
            painted.append(float(paint))
        page.screenshot(path=out / f"{path.stem}-{name}.png", full_page=True)
        if screen.medium == "screen":
            wrong += [f"{name}: {one}" for one in violations(page, axe)]
        context.close()
    if painted and min(painted) > LATEST_MS:
        wrong.append(f"largest paint after {min(painted):.0f} ms")
    paint = f"largest paint {min(painted):.0f} ms" if painted else "paint not measured"
    print(f"{path.stem}: {size:.2f} MB, {paint}, {len(wrong)} complaints", flush=True)
    return wrong


def in_firefox(firefox: str, path: Path, out: Path, screens: Mapping[str, Screen]) -> None:
    """Take one picture per width in Firefox, with a temporary profile."""
    for name in set(IN_FIREFOX) & set(screens):
        with tempfile.TemporaryDirectory() as profile:
            picture = out / f"{path.stem}-{name}-firefox.png"
            size = f"{screens[name].width},2400"
            words = ["--headless", "--profile", profile, "--window-size", size, "--screenshot", str(picture)]
            subprocess.run([firefox, *words, path.as_uri()], check=True, capture_output=True, timeout=120)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("out", type=Path)
    words.add_argument("--pages", type=Path, help="a folder with pages, in it or below")
    words.add_argument("--only", default="", help="names of pages, with commas")
    words.add_argument("--screens", default=",".join(SCREENS), help="names of screens, with commas")
    options = words.parse_args()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    only = set(filter(None, options.only.split(",")))
    pages = sorted(options.pages.resolve().rglob("*.html")) if options.pages else sample_pages(out / "pages", only)
    screens = {name: SCREENS[name] for name in options.screens.split(",")}
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    axe = axe_core(out)
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for path in pages:
            if only and path.stem not in only:
                continue
            complaints += [f"{path.stem}: {one}" for one in look_at(browser, path, out, screens, axe)]
            if firefox is not None:
                in_firefox(firefox, path, out, screens)
        browser.close()
    print(*complaints, sep="\n")
    if firefox is None:
        print("firefox-esr is not installed: Chromium alone drew them.")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
