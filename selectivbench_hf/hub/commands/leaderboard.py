"""`selectivbench leaderboard`: the leaderboard as a page, or its lines as JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading

from ...console import path_of, terminable
from ...errors import InputError

RESULTS = "SELECTIVBENCH_RESULTS"


def flags(parser):
    parser.add_argument(
        "--source",
        type=path_of("OWNER/NAME of a results data set, or a folder of results"),
        metavar="RESULTS",
        help=f"OWNER/selectivbench-results on the Hub, or a folder or file of results: pulled rows, runs, submissions (default: {RESULTS})",
    )
    parser.add_argument(
        "--dataset",
        type=path_of("OWNER/NAME of the published data set"),
        metavar="OWNER/NAME",
        help="instead: the Hub's own leaderboard of a published data set, one score a model",
    )
    parser.add_argument("--port", type=_port, default=7860, metavar="N", help="port of the page (default 7860)")
    parser.add_argument(
        "--host",
        type=path_of("an address"),
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to serve on (default 127.0.0.1: this machine alone can see it)",
    )
    parser.add_argument("--no_browser", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--json", action="store_true", help="print the lines of the board, best first, and serve nothing"
    )


def run(arguments) -> int:
    from .. import board

    if arguments.source and arguments.dataset:
        raise InputError("--source and --dataset are two places to read from; give one")
    source = arguments.source or (None if arguments.dataset else os.environ.get(RESULTS))
    if not source and not arguments.dataset:
        raise InputError(
            f"say where the results are: --source OWNER/selectivbench-results (or {RESULTS}), --source FOLDER, or --dataset OWNER/selectivbench"
        )
    if not arguments.json:
        from .. import page

        page.require_gradio()  # before the results are fetched
        page.check_port(arguments.host, arguments.port)
    kept = board.Kept(lambda: board.read(source, arguments.dataset))
    for notice in kept.board.notices:
        print(f"notice: {notice}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(kept.board.lines, indent=2, allow_nan=False))
        return 0
    shown = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"{kept.board.source}: http://{shown}:{arguments.port}/ (Ctrl-C ends it)", flush=True)
    with terminable():
        served = page.serve(kept, arguments.host, arguments.port, browser=not arguments.no_browser)
        try:
            threading.Event().wait()  # until Ctrl-C or SIGTERM
        finally:
            served.close(verbose=False)
    return 0


def _port(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port, 1 to 65535, got {text!r}")
    return int(text)
