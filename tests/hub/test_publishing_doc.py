"""docs/publishing.md run as written: one shell, every block but the slow ones, what it prints held against what stands below it."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/publishing.md").read_text(encoding="utf-8")
# (marked slow, shell, what it prints)
BLOCKS = re.findall(r"(<!-- slow -->\n)?```sh\n(.*?)```\n(?:```text\n(.*?)```)?", TEXT, re.S)


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: numbers, hashes, the width of columns."""
    text = re.sub(r"\b[0-9a-f]{8,}\b", "#", text)
    text = re.sub(r"no connection to the Hub \([^)]*\)", "no connection to the Hub (#)", text)  # the system's words
    text = re.sub(r"-?\d[\d,.]*", "#", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip()]


def test_the_page_is_run_as_written(tmp_path, environment):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shell = [sh.replace("8811", str(port)) for slow, sh, _ in BLOCKS if not slow]
    shown = [text for slow, _, text in BLOCKS if not slow]
    assert len(shell) >= 9 and sum(map(bool, shown)) >= 7
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "selectivbench"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m selectivbench_hf.cli "$@"\n')
    command.chmod(0o755)
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # the page is written for the root of a checkout
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = environment(PATH=path, HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="0", OMP_NUM_THREADS="1")
    env["PYTHONPATH"] = str(ROOT)
    process = subprocess.Popen(
        ["bash", "-c", "set -e\n" + "".join(f"{sh}\necho '@@ end of block'\n" for sh in shell)],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=400)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # the server, where the shell did not come to its end
        except ProcessLookupError:
            pass
    printed = out.split("@@ end of block\n")
    assert process.returncode == 0 and len(printed) == len(shell) + 1, (out, err)
    for sh, wanted, got in zip(shell, shown, printed):
        assert plain(wanted.replace("8811", str(port))) == plain(got), (sh, got)
