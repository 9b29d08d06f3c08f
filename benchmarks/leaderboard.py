"""How long the leaderboard's page takes to show with many runs.

    python benchmarks/leaderboard.py [--rows 2000] [--repeats 5]

Makes rows of made-up runs, each of a model of its own and all on one task, which is the longest table that so many rows can give; serves the page
from this process and opens it in a headless Chromium with an empty cache, on this machine. Printed are medians over the repeats, in seconds: from
the request to the first paint, to the first row of the table on the screen, from a changed order to the table in that order, and what the server
needs before: to check and rank the rows, and to start.
"""

import argparse
import hashlib
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from selectivbench_hf.hub.row_making import make_row
from selectivbench_hf.tasks import get_task

TASK = "te3_noisy_gaps"
MIXERS = (("gla", "learned vector", "additive", "no"), ("mamba2", "learned scalar", "additive", "no"),
          ("gated_delta_net", "learned scalar", "delta rule", "rank 1"), ("transformer", None, None, None))  # fmt: skip


def made_up_rows(count: int) -> list[dict]:
    """Rows of runs that never were: `count` models with one run each."""
    task, draw, rows = get_task(TASK), random.Random(1), []
    for number in range(count):
        mixer, decay, write_rule, mixing = MIXERS[number % len(MIXERS)]
        accuracy = draw.betavariate(5, 2)
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        scores = {split: _score(min(1.0, accuracy + draw.gauss(0, 0.02)), task) for split in task.test_splits}
        rows.append(
            make_row(
                task, scores=scores, sealed_scores=scores, sealed_seed=digest, weights_sha256=digest, run_id=digest[:16],
                name=f"{mixer}-{number:04d}", repo=f"made-up/{mixer}-{number:04d}", repo_revision=digest[:40], submitter="made-up", trust="weights",
                model_seed=1, data_seed=1, mixer=mixer, decay=decay, write_rule=write_rule, channel_mixing=mixing, nonlinear="no",
                state_grows=mixer == "transformer", state_size=None if mixer == "transformer" else 2 ** draw.randint(11, 18),
                parameters=int(10 ** draw.uniform(5, 7.9)), train_sequences=200_000, epochs_of_train=1.0, batch_size=64, learning_rate=1e-3,
                command="accelerate launch -m selectivbench_hf.training --task te3_noisy_gaps", date="2026-11-30",
            )
        )  # fmt: skip
    return rows


def _score(accuracy: float, task) -> dict:
    total = task.num_test * task.num_items
    correct = max(0, round(accuracy * total))
    share = correct / total
    counts = {"correct": correct, "total": total, "sequences": task.num_test}
    return counts | {"accuracy": share, "low": max(0.0, share - 0.01), "high": min(1.0, share + 0.01)}


def visit(browser, address: str, best: str, worst: str) -> dict:
    """Seconds of one visit with an empty cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        start = time.perf_counter()
        page.goto(address)
        page.get_by_role("gridcell", name=best, exact=True).first.wait_for()
        table = time.perf_counter() - start
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        page.wait_for_timeout(1000)  # until the page has settled
        start = time.perf_counter()
        page.get_by_label("Reversed").check()
        page.get_by_role("gridcell", name=worst, exact=True).first.wait_for()
        return {"first paint": paint, "first row of the table": table, "another order": time.perf_counter() - start}
    finally:
        context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--port", type=int, default=7873)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from selectivbench_hf.hub import board, page
    from selectivbench_hf.hub.rows import check_rows
    from tests.hub.browser import find

    rows = made_up_rows(arguments.rows)
    start = time.perf_counter()
    shown = board.from_rows(check_rows(rows, "made-up rows"), "Made-up rows")
    ranked = time.perf_counter() - start
    start = time.perf_counter()
    served = page.serve(board.Kept(lambda: shown), port=arguments.port, browser=False)
    started = time.perf_counter() - start
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"])
            visits = [
                visit(
                    browser, f"http://127.0.0.1:{arguments.port}/", shown.lines[0]["model"], shown.lines[-1]["model"]
                )
                for _ in range(arguments.repeats)
            ]
            print(
                f"{len(rows):,} rows, {len(shown.lines):,} lines of one table; median of {arguments.repeats} visits by Chromium {browser.version}"
            )
            browser.close()
    finally:
        served.close(verbose=False)
    print(f"{'check and rank the rows':<26}{ranked:6.2f} s, once")
    print(f"{'start the server':<26}{started:6.2f} s, once")
    for name in visits[0]:
        times = [v[name] for v in visits]
        print(f"{name:<26}{statistics.median(times):6.2f} s  ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
