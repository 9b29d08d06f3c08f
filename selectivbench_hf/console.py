"""What commands need from a console: a parser that reports through InputError, types of flags, tables, SIGTERM, and outputs that fail."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import signal
import sys
from collections.abc import Sequence

from .errors import InputError, unknown


class Parser(argparse.ArgumentParser):
    """argparse that reports through InputError, names the nearest flag, and abbreviates nothing."""

    def __init__(self, **keywords):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **keywords)

    def error(self, message):
        raise InputError(f"{self.prog}: {message}")

    def parse_args(self, argv):
        known, rest = self.parse_known_args(argv)
        self.refuse(rest)
        return known

    def refuse(self, rest: Sequence[str]) -> None:
        """InputError where arguments are left over."""
        if rest:
            name = rest[0].split("=")[0]
            if name.startswith("-"):
                raise unknown(
                    "flag", name, [o for a in self._actions for o in a.option_strings if o.startswith("--")], self.prog
                )
            raise InputError(f"{self.prog}: unexpected argument {rest[0]!r}")


def number(text: str) -> int:
    """argparse's type of a count."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def seed(text: str) -> int:
    """argparse's type of a seed."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,17}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")
    return int(text)


def path_of(what: str):
    """argparse's type of a path: any text but an empty one."""

    def path(text: str) -> str:
        if not text.strip():
            raise argparse.ArgumentTypeError(f"needs {what}, got {text!r}")
        return text

    return path


def duration(seconds: float) -> str:
    """`90 s`, `15 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_table(rows: Sequence[dict], columns: dict[str, str]) -> None:
    """Print rows (dicts) as aligned columns; `columns` maps keys to heads. Numbers stand right, None is a dash."""

    def show(value):
        return (
            "-"
            if value is None
            else f"{value:,}"
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else str(value)
        )

    cells = [[show(row.get(key)) for key in columns] for row in rows]
    right = [all(isinstance(row.get(key), (int, float, type(None))) for row in rows) for key in columns]
    widths = [max(map(len, column)) for column in zip(columns.values(), *cells, strict=True)]
    for line in [list(columns.values()), *cells]:
        print("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)).rstrip())


# a path that cannot be used as asked: bad input
BAD_PATH = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST)  # fmt: skip


def drop_output():
    """Keep the interpreter's last flush of an output that cannot be written from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Terminated(BaseException):
    """SIGTERM, as an exception, so that a command cleans up as after Ctrl-C."""


@contextlib.contextmanager
def terminable():
    """Raise Terminated on SIGTERM meanwhile."""

    def stop(number, frame):
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: nothing to set
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def prepare() -> bool:
    """Make stdout and stderr safe to print to; False where there is no stdout, which is said."""
    if sys.stderr is None:  # closed by the caller
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
    if sys.stdout is None:
        print("error: the standard output is closed, so nothing could be shown", file=sys.stderr)
        return False
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a letter that the terminal lacks must not end a command
            stream.reconfigure(errors="backslashreplace")
    return True
