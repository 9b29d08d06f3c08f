"""`selectivbench verify OWNER/NAME --revision vX.Y.Z`, or of a folder: any difference is named, exit code 1."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from ...console import number, path_of, print_table
from .. import data_files, verify


def flags(parser) -> None:
    parser.add_argument(
        "data",
        type=path_of("OWNER/NAME or a folder"),
        metavar="OWNER/NAME|FOLDER",
        help="a data set on the Hub, or a folder that `build` or a download made",
    )
    parser.add_argument("--revision", metavar="REV", help="tag, branch or commit on the Hub (default main)")
    parser.add_argument("--tasks", nargs="+", metavar="CONFIG", help="the configs to check (default: all)")
    parser.add_argument(
        "--sample",
        type=_sample,
        default=verify.SAMPLE,
        metavar="N|all",
        help=f"sequences of each split that are drawn again and compared (default {verify.SAMPLE})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON array of objects, each with `name` and `differences`"
    )


def _sample(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return number(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or 'all'") from None


def run(arguments) -> int:
    say = lambda sentence: print(sentence, file=sys.stderr, flush=True)
    files = data_files.find(arguments.data, arguments.revision)
    say(f"checking {files.where}: {len(files.listing):,} files, {files.bytes:,} bytes")
    rows = verify.verify(files, arguments.tasks, arguments.sample, progress=not arguments.json)
    found = [difference for row in rows for difference in row["differences"]]
    if arguments.json:
        rows = [row | {"differences": [asdict(d) for d in row["differences"]]} for row in rows]
        print(json.dumps(rows, indent=2, allow_nan=False))
    else:
        _show(rows, found, files.where)
    return 1 if found else 0


def _show(rows, found, where) -> None:
    heads = ("name", "splits", "sequences", "files", "bytes", "drawn_again", "differences")
    counted = [row | {"differences": len(row["differences"])} for row in rows[1:]]
    print_table(counted, {head: head.replace("_", " ") for head in heads})
    for row in rows:
        if row["changed"]:
            print(f"{row['name']} is not the catalogue's task of that name: {row['changed']}")
    for difference in found:
        print(f"difference: {difference}")
    configs = "1 config" if len(rows) == 2 else f"{len(rows) - 1} configs"
    if found:
        print(
            f"{where}: {len(found):,} {'difference' if len(found) == 1 else 'differences'} in {configs} and what belongs to them"
        )
    else:
        drawn = sum(row["drawn_again"] for row in rows)
        print(
            f"{where}: {configs} as stated: files, card, content hashes, disjoint splits, and {drawn:,} sequences as the generator draws them"
        )
