"""The pictures of docs/leaderboard, made again: the page with results that lie here, opened in a headless Chromium.

    python benchmarks/leaderboard_pictures.py

`--rows`: results with whole rows, for the table and the page of `--model`; `--summaries`: those of the plots, scored at several gap lengths.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PORT = 7874


def shoot(
    browser,
    name: str,
    folder: Path,
    tab: str | None = None,
    model: str | None = None,
    dark: bool = False,
    phone: bool = False,
    whole: bool = False,
):
    """One picture; `whole`: the page to its end."""
    size = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 860}
    context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", device_scale_factor=1)
    try:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{PORT}/")
        page.get_by_role("gridcell").first.wait_for(state="visible")
        if tab:
            page.get_by_role("tab", name=tab).click()
        if tab == "Plots":
            page.locator(".sb-plot svg").first.wait_for(state="visible")
        if model:
            page.get_by_label("Model", exact=True).click()
            page.get_by_role("option", name=model).click()
            page.get_by_role("heading", name=model).wait_for()
        page.wait_for_timeout(1500)
        page.screenshot(path=folder / f"{name}.png", full_page=whole)
        print(folder / f"{name}.png")
    finally:
        context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="docs/leaderboard")
    parser.add_argument("--summaries", default="docs/every_mixer/results.jsonl")
    parser.add_argument("--model", default="gla-lite")
    parser.add_argument("--output", type=Path, default=Path("docs/leaderboard"))
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from selectivbench_hf.hub import board, page
    from tests.hub.browser import find

    arguments.output.mkdir(parents=True, exist_ok=True)
    pictures = {
        arguments.rows: [
            {"name": "table_light"},
            {"name": "table_dark", "dark": True},
            {"name": "table_phone", "phone": True},
            {"name": "model", "tab": "Model", "model": arguments.model, "whole": True},
            {"name": "model_phone", "tab": "Model", "model": arguments.model, "phone": True, "whole": True},
        ],
        arguments.summaries: [
            {"name": "plots", "tab": "Plots", "whole": True},
            {"name": "plots_phone_dark", "tab": "Plots", "phone": True, "dark": True, "whole": True},
        ],
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
        for source, wanted in pictures.items():
            served = page.serve(board.Kept(lambda source=source: board.read(source)), port=PORT, browser=False)
            try:
                for picture in wanted:
                    shoot(browser, folder=arguments.output, **picture)
            finally:
                served.close(verbose=False)
        browser.close()


if __name__ == "__main__":
    main()
