"""HTML of the page's own: what submitters wrote is text in it and nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

_TEMPLATES = str.maketrans(
    {sign: f"&#{ord(sign)};" for sign in "{}$`"}
)  # the HTML component fills in ${...} and {{...}}


def text(value: object) -> str:
    """`value` as text inside HTML."""
    return html.escape(str(value), quote=True).translate(_TEMPLATES)


def untranslated(words: str) -> str:
    """Words that Gradio shows as they are: it translates what is a key of its own ("common.submit") or holds its mark, so these get an invisible sign."""
    words = words.replace("__i18n__", "_\u2060_i18n__")
    return f"{words}\u2060" if re.fullmatch(r"\w+(\.\w+)+", words) else words


def choices(words: Iterable[str]) -> list[tuple[str, str]]:
    """What a dropdown offers: (what is shown, the value)."""
    return [(untranslated(word), word) for word in words]


def link(url: str | None, words: str) -> str:
    """A link to an http(s) address, which tells nobody where it was followed from; of any other, or one that looks like another's, the words alone."""
    try:
        parts = urlsplit(url or "")
    except ValueError:  # no address at all
        return text(words)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc or not url.isprintable():
        return text(words)
    return f'<a href="{text(url)}" target="_blank" rel="noopener noreferrer nofollow">{text(words)}</a>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; the first cell of a row is its head."""
    top = "".join(f'<th scope="col">{text(h)}</th>' for h in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{c}</td>" for c in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="sb-scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )
