"""The data card of a published data set: what `build` says, loaded from the Hub, with a place for text written by hand.

Text between `<!-- notes -->` and `<!-- /notes -->` is kept at the next push. The line above carries a hash of all the rest, so that a card which
somebody has edited elsewhere is recognised and not overwritten.
"""

from __future__ import annotations

import hashlib
import re

from .. import resources
from ..datacard import Source, body, fill, front_matter, in_order
from ..errors import InputError

START, END = "<!-- notes -->", "<!-- /notes -->"
_NO_HASH = "0" * 64


def _mark(digest: str) -> str:
    return (
        f"<!-- Made by `selectivbench push` (sha256 {digest} without the notes). Write between the two marks called notes; "
        "a card edited elsewhere is not replaced. -->"
    )


_MARK = re.compile(re.escape(_mark("HASH")).replace("HASH", "([0-9a-f]{64})"))


def render(manifests: dict[str, dict], repo: str, tag: str, notes: str = "\n") -> str:
    """The card of `repo` at `tag` for its configs (name -> manifest); `notes`: all that stands between the marks of notes."""
    manifests = in_order(manifests)
    text = body(manifests, Source(repo, tag), notes=f"\n{START}{notes}{END}\n")
    text += fill(resources.text("dataset_cards/published.md"), {"repo": repo, "tag": tag})
    card = f"---\n{front_matter(manifests)}---\n{_mark(_NO_HASH)}\n\n{text}"
    return card.replace(_mark(_NO_HASH), _mark(_digest(card)), 1)


def notes_of(card: str, where: str, replace: bool = False) -> str:
    """What a published card holds between the marks of notes; an InputError where it was edited anywhere else, or is none of ours.

    replace: the rest may be lost, so that nothing is an error; a card without the two marks then has no notes.
    """
    card = card.replace("\r\n", "\n")
    marks = _MARK.findall(card)
    marked = card.count(START) == card.count(END) == 1 and card.index(START) < card.index(END)
    if not replace and (len(marks) != 1 or not marked):
        why = "lacks the marks of its notes, or has them twice" if marks else "was not written by `selectivbench push`"
        raise InputError(f"{where} {why} and would be replaced; --replace_card does that")
    if not replace and marks[0] != _digest(card):
        raise InputError(
            f"{where} was edited outside of its notes, and the edit would be lost; move the text between {START} and {END}, "
            "or replace the card by --replace_card"
        )
    return card.split(START)[1].split(END)[0] if marked else "\n"


def edited(card: str) -> bool:
    """Whether a card that `selectivbench push` wrote was changed outside of its notes; False for a card that it did not write."""
    card = card.replace("\r\n", "\n")
    marks = _MARK.findall(card)
    return bool(marks) and (len(marks) > 1 or marks[0] != _digest(card))


def _digest(card: str) -> str:
    """SHA-256 of a card without its notes and without the hash itself."""
    head, _, rest = card.partition(START)
    bare = _MARK.sub(_mark(_NO_HASH), head) + rest.partition(END)[2]
    return hashlib.sha256(bare.encode()).hexdigest()
