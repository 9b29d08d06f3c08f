"""The tables of the data card, each from the manifests of the configs that it lists (name -> manifest), in their order."""

from __future__ import annotations


def family_of(manifest) -> str:
    """`grammar` or `recall`; manifests written before there were recall tasks do not say."""
    return manifest["card"].get("family", "grammar")


def _table(head, rows) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def configs_table(manifests) -> str:
    rows = []
    for name, m in manifests.items():
        card = m["card"]
        sizes = ", ".join(f"{split} {s['num_sequences']:,}" for split, s in m["splits"].items())
        steps = sorted({card["max_steps"][split] for split in m["splits"]})
        rows.append(
            [
                f"`{name}`",
                card["level"],
                f"{card['states']:,}",
                card["symbols"],
                card["items"],
                f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}",
                sizes,
            ]
        )
    return _table(
        ["config", "level", "states (classes)", "symbols", "items a sequence", "longest sequence, steps", "sequences"],
        rows,
    )


def recall_table(manifests) -> str:
    rows = []
    for name, m in manifests.items():
        card = m["card"]
        sizes = ", ".join(f"{split} {s['num_sequences']:,}" for split, s in m["splits"].items())
        steps = max(card["max_steps"][split] for split in m["splits"])
        chance = " / ".join(f"{share:.2%}" for share in card["chance"].values())
        law = "-" if card["kind"] == "copy" else f"alpha {card['alpha']:g}, filler {card['filler']}"
        rows.append(
            [
                f"`{name}`",
                card["description"].partition("(")[2][:-1],
                law,
                f"{card['symbols']:,}",
                f"{steps:,}",
                chance,
                sizes,
            ]
        )
    return _table(
        ["config", "task", "law", "symbols V", "longest sequence, steps", "chance: guess / any value", "sequences"],
        rows,
    )


RUNGS = (1, 2, 3, 4, 6, 8)  # of the ladder, in a card


def ceilings_table(manifests) -> str:
    """The exact filter, k95 and the first rungs of the ladder of each config whose manifest has them, and why where there are none."""
    percent = lambda share: "-" if share is None else f"{share:.2%}"
    rows, lines = [], []
    for name, m in manifests.items():
        best = m["card"].get("ceiling") or {"accuracy": None, "ladder": None, "why": None}
        rungs = best["ladder"] or []
        k95 = "-" if not rungs else best["k95"] or "none"
        # a ladder that ended early had reached its limit
        worth = [percent(rungs[min(k, len(rungs)) - 1] if rungs else None) for k in RUNGS]
        rows.append([f"`{name}`", percent(best["accuracy"]), k95, *worth])
        if best["why"]:
            lines.append(f"- `{name}`: {best['why']}.")
    table = _table(["config", "exact filter", "k95", *(f"last {k}" for k in RUNGS)], rows)
    return table + ("\n\n" + "\n".join(lines) if lines else "")


def columns_table(manifests) -> str:
    first = next(iter(manifests.values()))
    columns = first["card"]["column_types"]
    kinds = {
        c: sorted({m["card"]["column_types"][c] for m in manifests.values()}, key=lambda t: (len(t), t))
        for c in columns
    }
    says = {
        "example_id": "number of the sequence in its split, from 0",
        "input_ids": "symbol at each step: `#` = 0, letters from 1, and the number of symbols (last column of ids) for a blank step",
        "labels": "grammar state at each step; a blank step or distractor carries the state of the item it follows",
        "item_ids": "0-based number of the item that the step belongs to",
    }
    if family_of(first) == "recall":
        says["input_ids"] = "symbol at each step"
        says["labels"] = (
            "the symbol asked for at this step, -100 where nothing is asked; signed, so that it can be -100"
        )
    return _table(
        ["column", "type", "content"],
        [[f"`{c}`", " or ".join(kinds[c]) + ("" if c == "example_id" else ", one a step"), says[c]] for c in columns],
    )


def fingerprints_table(manifests) -> str:
    return _table(
        ["config", "data version", "fingerprint (SHA-256)"],
        [[f"`{name}`", m["data_version"], f"`{m['fingerprint']}`"] for name, m in manifests.items()],
    )


def hashes_table(manifests) -> str:
    rows = [
        [
            f"`{name}`" if i == 0 else "",
            split,
            f"{s['num_sequences']:,}",
            f"`{s['fingerprint'][:16]}`",
            f"`{s['content_hash']}`",
        ]
        for name, m in manifests.items()
        for i, (split, s) in enumerate(m["splits"].items())
    ]
    return _table(
        ["config", "split", "sequences", "fingerprint of the split (first 16)", "content hash (SHA-256)"], rows
    )
