"""How bad input is reported: one sentence that says what, where, and what is allowed; a command turns it into exit code 2."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input from the user. Its text is one clear sentence; commands print it after `error: ` and exit with 2."""


def nearest(name: str, allowed: Iterable[str], most: int = 3) -> list[str]:
    """The allowed names closest to `name`, best first (none when nothing is similar)."""
    allowed = [str(a) for a in allowed]
    folded = {a.lower(): a for a in allowed}
    return [folded[m] for m in difflib.get_close_matches(str(name).lower(), list(folded), n=most, cutoff=0.5)]


def unknown(kind: str, name: object, allowed: Iterable[str], where: str = "") -> InputError:
    """The error for a name that does not exist: names the nearest ones, and all of them where they are few."""
    allowed = [str(a) for a in allowed]
    close = nearest(str(name), allowed)
    text = f"unknown {kind} {str(name)!r}" + (f" in {where}" if where else "")
    if close:
        text += "; did you mean " + " or ".join(repr(c) for c in close) + "?"
    if not close or len(allowed) <= 12:
        text += (";" if not close else "") + " Allowed: " + ", ".join(allowed)
    return InputError(text)


class KernelMismatch(RuntimeError):
    """The kernels of a device compute something else than the CPU's; the text is one sentence."""


class HubFailure(RuntimeError):
    """The Hub could not be reached or failed; nothing is wrong with the request. Its text is one sentence; commands exit with 1."""
