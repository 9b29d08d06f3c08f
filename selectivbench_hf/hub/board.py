"""What the leaderboard shows: results from the Hub or from a local folder, checked, ranked, and as lines (board_lines).

Whatever is read comes from outside. What is not sound is left out with a sentence, and the rest is shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import HubFailure, InputError
from . import board_lines, client
from .eval_yaml import HEADLINE

READ_AGAIN = 600  # seconds after which a visit has the source read again


@dataclass(frozen=True)
class Board:
    """What one reading of a source gave.

    source    where from, the beginning of a sentence
    lines     of board_lines, in the order of the ranking
    rows      the checked rows behind them; empty where the source has only scores
    notices   what was left out, kept apart or counted once, sentences
    read_at   UTC, "2026-11-30 12:00"
    """

    source: str
    lines: Sequence[dict]
    rows: Sequence[dict]
    notices: Sequence[str]
    read_at: str

    def tables(self) -> list[str]:
        """The tables to choose from: the headline task first, then in the order of the catalogue."""
        from ..tasks import task_names

        places = {name: place for place, name in enumerate(task_names())}
        found = {
            line["table"]: (line["table"] != HEADLINE, places.get(line["task"], len(places)), line["table"])
            for line in self.lines
        }
        return sorted(found, key=found.get)

    def models(self) -> list[str]:
        """The models to choose from, sorted."""
        return sorted({line["model"] for line in self.lines}, key=str.lower)

    def of_model(self, model: str | None) -> tuple[list[dict], list[dict]]:
        """(the lines of a model, the rows of its runs), both in the order of the board."""
        lines = [line for line in self.lines if line["model"] == model]
        ids = [row_id for line in lines for row_id in line["row_ids"]]
        by_id = {row["row_id"]: row for row in self.rows}
        return lines, [by_id[i] for i in dict.fromkeys(ids) if i in by_id]


def from_rows(
    rows: Sequence[dict], source: str, notices: Sequence[str] = (), withdrawn: Mapping[str, str] | None = None
) -> Board:
    """The board of checked rows. withdrawn: row_id -> why."""
    from .ranking import rank

    ranking = rank(rows, withdrawn)
    lines = board_lines.from_ranking(ranking, rows)
    apart = (
        [f"{len(ranking.apart):,} rows are kept apart and in no mean: their lines say why"] if ranking.apart else []
    )
    return Board(source, lines, list(rows), [*notices, *ranking.notes, *apart], now())


def from_hub(dataset: str) -> Board:
    """The board of a published data set's own leaderboard on the Hub: one score a model, of the first task in its eval.yaml."""
    client.repo_id(dataset, "--dataset")
    head = client.head(dataset, "dataset")
    if head is None:
        raise InputError(f"there is no data set {dataset} on the Hub, or the token may not see it")
    task = _first_task(dataset, head)
    with client.told("read the leaderboard of", dataset):
        found = client.api().get_dataset_leaderboard(dataset, base_model_only=False)
    lines, left_out = board_lines.from_hub(found, task)
    stated = "the scores are what the models' repositories state; nothing of them was checked here"
    return Board(f"The Hub's leaderboard of {dataset}, task {task}", lines, [], [stated, *left_out], now())


def _first_task(dataset: str, revision: str) -> str:
    from .eval_yaml import check
    from .untrusted import read_bytes

    path = client.fetch(dataset, "dataset", "eval.yaml", revision, limit=1 << 20)
    return check(read_bytes(path, 1 << 20), f"eval.yaml of {dataset}")["tasks"][0]["id"]


def read(source: str | None = None, dataset: str | None = None) -> Board:
    """The board of a source.

    Args:
        source: OWNER/NAME of a results data set on the Hub, or a folder or file of results here; a path that exists is taken as such.
        dataset: OWNER/NAME of a published data set, whose leaderboard the Hub keeps; instead of `source`.
    """
    if dataset is not None:
        return from_hub(dataset)
    if Path(source).exists():
        from . import board_local

        return board_local.read(Path(source))
    from . import results_data

    sha, found = results_data.pull(
        client.repo_id(source, "--source, if no file or folder here,"), results_data.cache_folder(source)
    )
    notices = [*(f"{path} {why}" for path, why in found.faults.items()), *found.notes]
    if not found.files:  # so it may be another kind of data set
        notices.append(f"{source} holds no file of rows, data/rows-*.parquet; published data are read by --dataset")
    return from_rows(found.rows, f"Results of {source} at {sha[:12]}", notices, found.withdrawn)


class Kept:
    """A board that is read again when it is old and somebody looks; where that fails the old one stays, with a notice.

    board, number: the board, and how often it was read.
    """

    def __init__(self, read: Callable[[], Board], again: float = READ_AGAIN):
        self._read, self._again, self._lock = read, again, threading.Lock()
        self.board = self._good = read()
        self.number, self._at = 1, time.monotonic()

    def look(self) -> tuple[Board, int]:
        """(board, number), read again first where it is older than `again` seconds."""
        with self._lock:
            if time.monotonic() - self._at > self._again:
                self._at = time.monotonic()
                try:
                    self.board = self._good = self._read()
                except (InputError, HubFailure, OSError) as error:
                    notice = f"it could not be read again at {now()} UTC, so this is what was read before: {error}"
                    self.board = replace(self._good, notices=[notice, *self._good.notices])
                self.number += 1
            return self.board, self.number


def now() -> str:
    """The time of a reading, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime())
