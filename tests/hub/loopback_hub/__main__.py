"""`python -m loopback_hub`: the server until Ctrl-C."""

import argparse
import contextlib
import threading

from .server import PART_SIZE, LoopbackHub


def main() -> None:
    parser = argparse.ArgumentParser(prog="loopback_hub", description="a stand-in for the Hugging Face Hub")
    parser.add_argument("--root", required=True, help="the folder it keeps everything in")
    parser.add_argument("--port", type=int, default=8811)
    parser.add_argument("--org", action="append", default=[], metavar="ORG=USER,USER")
    parser.add_argument("--part-size", type=int, default=PART_SIZE, help="bytes; larger files are sent in parts")
    arguments = parser.parse_args()
    orgs = {org: users.split(",") for org, _, users in (o.partition("=") for o in arguments.org)}
    with LoopbackHub(arguments.root, arguments.port, orgs, arguments.part_size) as hub:
        print(f"loopback hub on {hub.url}, root {arguments.root}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


main()
