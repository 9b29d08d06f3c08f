"""What the card and eval.yaml of a data set say, held against its manifests: `load_dataset` and the Hub go by the card alone."""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import InputError
from . import untrusted
from .data_files import DataFiles
from .verify_split import Difference

CARD, EVAL = "README.md", "eval.yaml"
MOST_CARD = 4 << 20  # bytes
MOST_FRONT, MOST_NODES = 1 << 20, 50_000  # bytes and values of the front matter; 33 configs take 27 kB and 2,900


def _text(files, path, limit) -> bytes:
    if path not in files.listing:
        raise InputError("it is missing")
    if files.listing[path]["size"] > limit:
        raise InputError(f"it has {files.listing[path]['size']:,} bytes; at most {limit:,} are read")
    return untrusted.read_bytes(files.path(path), limit)


def card_differences(files: DataFiles, manifests: dict[str, dict], names: list[str] | None) -> list[Difference]:
    """Where the card's front matter, by which `load_dataset` loads, does not say what the manifests say.

    manifests: of the configs to look at, with the card's facts as the generator gives them ({} where it gives none); names: all configs that there
    are, None where others may be.
    """
    import yaml

    from ..datacard import front_matter
    from . import cards

    try:
        text = _text(files, CARD, MOST_CARD)
        stated = _front_matter(text)
    except InputError as error:
        return [Difference(str(error), file=CARD)]
    made = {name: m for name, m in manifests.items() if m["card"]}
    wanted = yaml.safe_load(front_matter(made)) if made else {}
    out = []
    if cards.edited(text.decode("utf-8", errors="replace")):  # readers run the code that is printed in it
        out.append(Difference("it was edited outside of its notes since `selectivbench push` wrote it", file=CARD))
    for key in ("configs", "dataset_info"):
        own = wanted.get(key, [])
        own = {entry["config_name"]: entry for entry in (own if isinstance(own, list) else [own])}
        try:
            here = _by_config(stated.get(key), key)
        except InputError as error:
            out.append(Difference(str(error), file=CARD))
            continue
        for name, entry in own.items():
            if name not in here:
                out.append(Difference(f"{key} of the front matter lacks it", config=name, file=CARD))
            elif here[name] != entry:
                out += [replace(d, config=name, file=CARD) for d in _unlike(here[name], entry, key)]
        for name in sorted(set(here) - set(names)) if names is not None else ():
            out.append(
                Difference(f"{key} of the front matter lists {untrusted.shown(name)}, which is not there", file=CARD)
            )
    return out


def _front_matter(text: bytes) -> dict:
    found = re.match(rb"---\r?\n(.*?\n)---[ \t]*\r?\n", text, re.S)
    if not found:
        raise InputError("it has no front matter")
    data = untrusted.strict_yaml(found[1], "the front matter", MOST_FRONT, MOST_NODES)
    if not isinstance(data, dict):
        raise InputError("its front matter is no mapping")
    return data


def _by_config(entries, key) -> dict[str, dict]:
    entries = [entries] if isinstance(entries, dict) else entries  # the Hub's short form of a single config
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("config_name"), str) for e in entries
    ):
        raise InputError(f"{key} of the front matter must be a list of mappings with config_name")
    names = [entry["config_name"] for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{key} of the front matter names {untrusted.shown(name)} twice")
    return dict(zip(names, entries))


def _unlike(here: dict, wanted: dict, key: str) -> list[Difference]:
    """The parts of a config's entry in the card that differ, by name; a split's by split."""
    out = []
    for part in sorted(set(here) | set(wanted)):
        if here.get(part) == wanted.get(part):
            continue
        named = "name" if key == "dataset_info" else "split"
        if part in ("splits", "data_files") and isinstance(here.get(part), list):
            own = {str(e.get(named)): e for e in here[part] if isinstance(e, dict)}
            for entry in wanted[part]:
                if own.get(entry[named]) != entry:
                    what = f"{part} of {key} says {_short(own.get(entry[named]))}, the manifest {_short(entry)}"
                    out.append(Difference(what, split=entry[named]))
            more = [split for split in own if split not in [e[named] for e in wanted[part]]]
            out += [
                Difference(f"{part} of {key} has the split {untrusted.shown(s)}, the manifest has not") for s in more
            ]
        else:
            what = f"{untrusted.shown(part)[1:-1]} of {key} is {_short(here.get(part))}, by the manifest {_short(wanted.get(part))}"
            out.append(Difference(what))
    return out or [Difference(f"{key} of the front matter lists other entries than the manifest, or in another order")]


def _short(value) -> str:
    text = ascii(value)
    return text if len(text) <= 160 else text[:157] + "..."


def eval_differences(files: DataFiles, manifests: dict[str, dict] | None) -> list[Difference]:
    """eval.yaml, where there is one: a folder that `build` made has none. manifests: of all configs, whose splits its tasks must name; None: any."""
    from .eval_yaml import LIMIT, check

    if EVAL not in files.listing:
        return []
    configs = None if manifests is None else {name: list(m["splits"]) for name, m in manifests.items()}
    try:
        check(_text(files, EVAL, LIMIT), "it", configs)
    except InputError as error:
        return [Difference(str(error), file=EVAL)]
    return []
