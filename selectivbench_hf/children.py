"""Processes that others start for us (the pools of `datasets`) leave when the process that started them is killed.

A pool's worker waits for its next job for ever once its parent is gone, and what it still writes lands in files that the next attempt uses.
"""

import contextlib
import os
import threading
import time

_depth = 0


@contextlib.contextmanager
def children_leave_with_us():
    """Within this block, a forked child watches this process and exits soon after its end."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def leave_with_parent(every: float = 0.2, code: int = 1) -> None:
    """Watch the parent process from a thread, `every` so many seconds, and exit with `code` when it has gone."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(every)
        os._exit(code)

    threading.Thread(target=watch, daemon=True, name="leave-with-parent").start()


def _after_fork():
    global _depth
    if _depth:
        _depth = 0  # grandchildren are not ours
        leave_with_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
