"""One model's page as HTML: what it is, its scores, every run behind them with a link to its record, and the command that trains it again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from urllib.parse import quote

from .page_html import link, table, text
from .page_table import interval, state


def repo_url(repo: str | None, revision: str | None = None, path: str = "") -> str | None:
    """Where a model repository, or a folder of it, is seen on the Hub; None without a repository."""
    if repo is None:
        return None
    place = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{quote(repo)}"
    if revision is None and not path:
        return place
    return f"{place}/tree/{quote(revision or 'main', safe='')}" + (f"/{quote(path)}" if path else "")


def render(lines: Sequence[dict], rows: Sequence[dict]) -> str:
    """The page of one model.

    Args:
        lines: its lines of the board (board_lines).
        rows: the rows of its runs; none where the source has only scores.
    """
    if not lines:
        return "<p>There is no model to show.</p>"
    parts = [_head(lines), "<h4>Scores</h4>", _scores(lines), _remarks(lines)]
    if rows:
        parts += ["<h4>Runs</h4>", _runs(rows), _commands(rows)]
    else:
        parts.append("<p>The source of this board holds scores only; the runs stand in the model's repository.</p>")
    return f'<div class="sb-model">{"".join(parts)}</div>'


def _head(lines) -> str:
    first = lines[0]
    facts = [
        (
            "repository",
            link(repo_url(first["repo"], first["repo_revision"]), first["repo"]) if first["repo"] else None,
        ),
        ("source", first["source_url"] and link(first["source_url"], first["source_url"])),
        ("submitted by", first["submitter"] and text(first["submitter"])),
        ("mixer", first["mixer"] and text(first["mixer"])),
        ("decay", first["decay"] and text(first["decay"])),
        ("write rule", first["write_rule"] and text(first["write_rule"])),
        ("channel mixing", first["channel_mixing"] and text(first["channel_mixing"])),
        ("nonlinear", first["nonlinear"] and text(first["nonlinear"])),
        ("parameters", None if first["parameters"] is None else f"{first['parameters']:,}"),
        ("recurrent state", text(state(first)) or None),
    ]
    known = "".join(f"<dt>{text(k)}</dt><dd>{v}</dd>" for k, v in facts if v)
    return f"<h3>{text(first['model'])}</h3><dl>{known}</dl>"


def _scores(lines) -> str:
    heads = ("task", "track", "rank", "sealed, %", "published, %", "95 % interval", "over", "deviation (grammars)",
             "deviation (trainings)", "runs", "trust", "context", "exact filter, %", "sealed grammar, %")  # fmt: skip
    rows = []
    for line in lines:
        which = "sealed" if line["sealed"] is not None else "published"
        rows.append(
            [
                text(line["table"]),
                text(line["track"]),
                _or_dash(line["rank"]),
                _number(line["sealed"]),
                _number(line["published"]),
                text(interval(line[f"{which}_low"], line[f"{which}_high"]) or "-"),
                text(line["over"] or "-"),
                _number(line["between_grammars"]),
                _number(line["between_models"]),
                _or_dash(line["runs"]),
                text(line["trust"] or "-")
                + (f", replayed by {text(line['replayed_by'])}" if line["replayed_by"] else ""),
                _number(line["effective_context"]),
                _number(line["ceiling"]),
                _number(line["sealed_grammar"]),
            ]
        )
    splits = [_splits(line) for line in lines if len(line["splits"]) > 1]
    return table(heads, rows) + "".join(splits)


def _splits(line) -> str:
    rows = [
        [text(split), _number(found["sealed"]), _number(found["published"])] for split, found in line["splits"].items()
    ]
    shown = table(("split", "sealed, %", "published, %"), rows)
    return f"<details><summary>All test splits of {text(line['table'])}</summary>{shown}</details>"


def _remarks(lines) -> str:
    """Doubts first, never folded away; then notes and what keeps an entry out of the closed track."""
    doubts = [f"{line['table']}: {flag}" for line in lines for flag in line["flags"]]
    notes = [f"{line['table']}: {note}" for line in lines for note in line["notes"]]
    out = f'<div class="sb-doubts"><h4>What is doubtful</h4>{_list(doubts)}</div>' if doubts else ""
    out += f"<h4>Notes</h4>{_list(notes)}" if notes else ""
    for line in lines:
        if line["faults"]:
            summary = f"Why {text(line['table'])} is not in the closed track ({len(line['faults'])})"
            out += f"<details><summary>{summary}</summary>{_list(line['faults'])}</details>"
    return out


def _list(sentences) -> str:
    return f"<ul>{''.join(f'<li>{text(s)}</li>' for s in sentences)}</ul>"


def _runs(rows) -> str:
    heads = ("run", "task", "grammar, model, data seed", "learning rate", "sealed, %", "published, %", "gap in standard errors", "validation, %",
             "computed by", "weights", "date", "source")  # fmt: skip
    out = []
    for row in rows:
        record = repo_url(row["repo"], row["repo_revision"], f"runs/{row['run_id']}")
        seeds = ", ".join("-" if row[k] is None else str(row[k]) for k in ("grammar_seed", "model_seed", "data_seed"))
        by = ", ".join(str(row[k]) for k in ("kernel_backend", "device", "precision") if row[k])
        out.append(
            [
                link(record, row["run_id"][:12]),
                text(row["task"]),
                text(seeds),
                "-" if row["learning_rate"] is None else f"{row['learning_rate']:g}",
                _share(row, "sealed_accuracy", "sealed"),
                _share(row, "accuracy", "accuracy"),
                _number(row["gap_in_se"]),
                _number(None if row["validation_accuracy"] is None else 100 * row["validation_accuracy"]),
                text(by or "-"),
                text((row["weights_sha256"] or "-")[:12]),
                text(row["date"]),
                link(row["source_url"], "source") if row["source_url"] else "-",
            ]
        )
    return table(heads, out)


def _commands(rows) -> str:
    commands = list(dict.fromkeys(row["command"] for row in rows if row["command"]))
    if not commands:
        return "<p>The rows hold no command that trains it again.</p>"
    shown = "".join(f"<pre><code>{text(c)}</code></pre>" for c in commands[:1])
    more = "".join(f"<pre><code>{text(c)}</code></pre>" for c in commands[1:])
    more = (
        f"<details><summary>The commands of the other runs ({len(commands) - 1})</summary>{more}</details>"
        if more
        else ""
    )
    return f"<h4>To train it again</h4>{shown}{more}{_environment(rows[0])}"


def _environment(row) -> str:
    if not row["versions"]:
        return ""
    known = ", ".join(f"{name} {version}" for name, version in json.loads(row["versions"]).items() if version)
    return f"<p>Versions: {text(known)}.</p>"


def _share(row, key, interval_of) -> str:
    if row[key] is None:
        return "-"
    between = interval(
        *(
            None if row[f"{interval_of}_{end}"] is None else 100 * row[f"{interval_of}_{end}"]
            for end in ("low", "high")
        )
    )
    return f"{100 * row[key]:.2f}" + (f" ({between})" if between else "")


def _number(value) -> str:
    return "-" if value is None else f"{value:.2f}"


def _or_dash(value) -> str:
    return "-" if value is None else text(value)
