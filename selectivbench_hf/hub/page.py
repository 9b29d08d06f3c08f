"""The leaderboard as a page: plain Gradio components over the lines of a board. It loads nothing from elsewhere and tells nobody that it runs."""

import errno
import itertools
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import InputError
from . import page_model, page_plots, page_table, page_text
from .board import Board, Kept
from .page_html import choices, untranslated

CSS = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
REQUESTS = {
    "queue": False,
    "show_progress": "hidden",
    "api_visibility": "private",
}  # of events: they take milliseconds
LINES = {"200": 200, "1,000": 1000, "all": None}  # of the table at once: a browser takes seconds over thousands
DOWNLOADS = 50  # files that are kept here; Gradio has a copy of each as soon as it was made


def require_gradio():
    """gradio, with its reports home switched off; InputError where it is not installed."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read at import and at launch
    try:
        import gradio
    except ImportError:
        raise InputError("the page needs gradio: pip install 'selectivbench_hf[leaderboard]'") from None
    return gradio


def build(kept: Kept):
    """The page over a board that is read again from time to time: a gradio.Blocks, not yet served."""
    gr = require_gradio()
    files = TemporaryDirectory(prefix="selectivbench-")  # of downloads; gone with the page
    with gr.Blocks(
        title="SelectivBench leaderboard", analytics_enabled=False, fill_width=True, delete_cache=(3600, 3600)
    ) as page:
        page.files = files
        gr.Markdown("# SelectivBench leaderboard", elem_id="sb-title")
        status = gr.HTML(page_text.status(kept.board), js_on_load=None, apply_default_css=False, elem_id="sb-status")
        with gr.Tabs() as tabs:
            with gr.Tab("Table", id="table"):
                table = _Table(gr, kept, Path(files.name))
            with gr.Tab("Plots", id="plots") as tab:
                plots = _plots(gr, kept, tab)
            with gr.Tab("Model", id="model"):
                model, one, render = _model(gr, kept)
            with gr.Tab("How to submit", id="submit"):
                gr.Markdown(page_text.SUBMIT, sanitize_html=True)
            with gr.Tab("About", id="about"):
                gr.Markdown(page_text.ABOUT, sanitize_html=True)
        table.open.click(lambda name: (gr.Tabs(selected="model"), name), table.name, [tabs, model], **REQUESTS)
        menus = [*table.menus, *plots, _Menu(model, lambda board: board.models(), _first_model)]
        seen, built = gr.State(kept.number), kept.board

        def look_again(seen, *values):
            board, number = kept.look()
            if number == seen:  # what the page was built with is still the news
                return [gr.skip()] * (3 + len(table.outputs) + len(menus))
            wanted, now = values[: len(table.inputs)], values[len(table.inputs) :]
            chosen = [menu.chosen(value, built, board) for menu, value in zip(menus, now)]
            task, name = chosen[0], chosen[-1]
            offered = [gr.Dropdown(choices=choices(menu.of(board)), value=value) for menu, value in zip(menus, chosen)]
            return [number, page_text.status(board), *table.shown(task, *wanted[1:]), render(name), *offered]

        dropdowns = [menu.dropdown for menu in menus]
        page.load(
            look_again,
            [seen, *table.inputs, *dropdowns],
            [seen, status, *table.outputs, one, *dropdowns],
            **REQUESTS,
        )
    return page


@dataclass
class _Menu:
    """A dropdown whose choices are the board's: what a board offers there, and what is chosen before a visitor chooses."""

    dropdown: object
    of: Callable[[Board], list[str]]
    first: Callable[[Board], object] = lambda board: []

    def chosen(self, now, built: Board, board: Board):
        """What it shows when the board was read again: what a visitor has chosen meanwhile, if it is still there, else the first."""
        there = set(now if isinstance(now, list) else [now]) <= set(self.of(board))
        return now if there and now != self.first(built) else self.first(board)


def _first_table(board: Board) -> str | None:
    return next(iter(board.tables()), None)


def _first_model(board: Board) -> str | None:
    return next(iter(board.models()), None)


class _Table:
    """The first tab: filters, the table, its download, and the chosen model.

    inputs, outputs  what the table depends on, and what `shown` gives values for
    menus            the task's and those of the filters
    name, open       the chosen model, and the button that opens its page
    """

    def __init__(self, gr, kept: Kept, folder: Path):
        self.kept, self.folder, self.number = kept, folder, itertools.count()
        lines = kept.board.lines
        with gr.Row():
            task = gr.Dropdown(
                kept.board.tables(), value=_first_table(kept.board), label="Task", elem_id="sb-task", min_width=220
            )
            search = gr.Textbox(
                label="Search", placeholder="model or mixer", max_lines=1, elem_id="sb-search", min_width=160
            )
            by = gr.Dropdown(list(page_table.SORTS), value="rank", label="Sort by", elem_id="sb-sort", min_width=150)
            most = gr.Dropdown(list(LINES), value=next(iter(LINES)), label="Lines", elem_id="sb-lines", min_width=100)
            reverse = gr.Checkbox(label="Reversed", elem_id="sb-reverse", min_width=100)
        with gr.Accordion("Filters", open=False, elem_id="sb-filters"), gr.Row():
            filters = [
                gr.Dropdown(choices(page_table.choices(lines, field)), value=[], label=label[0].upper() + label[1:], multiselect=True,
                            elem_id=f"sb-filter-{field}", min_width=200)
                for field, label in page_table.FILTERS.items()
            ]  # fmt: skip
        self.inputs = [task, search, by, reverse, most, *filters]
        self.menus = [_Menu(task, lambda board: board.tables(), _first_table)]
        self.menus += [
            _Menu(menu, lambda board, f=f: page_table.choices(board.lines, f))
            for f, menu in zip(page_table.FILTERS, filters)
        ]
        rows, told, file = self.shown(*(c.value for c in self.inputs))
        summary = gr.Markdown(told, elem_id="sb-summary")
        heads, kinds = list(page_table.COLUMNS), [kind for kind, _ in page_table.COLUMNS.values()]
        frame = gr.Dataframe(rows, headers=heads, datatype=kinds, interactive=False, max_height=620, elem_id="sb-table", label="Entries",
                             show_label=False, column_widths=[f"{width}px" for _, width in page_table.COLUMNS.values()], buttons=[])  # fmt: skip
        with gr.Row():
            self.open = gr.Button(
                "Choose a model by a cell of its line", interactive=False, elem_id="sb-open", size="sm"
            )
            download = gr.DownloadButton("Download these lines as CSV", file, elem_id="sb-csv", size="sm")
        self.outputs = [frame, summary, download]
        self.name = gr.State(None)
        # one event of many triggers, so that an answer never overtakes a later one
        gr.on(
            [c.change for c in self.inputs],
            self.shown,
            self.inputs,
            self.outputs,
            trigger_mode="always_last",
            **REQUESTS,
        )

        def choose(event: gr.SelectData):
            model = event.row_value[list(page_table.COLUMNS).index("model")]
            return model, gr.Button(f"Open the page of {untranslated(model)}", interactive=True)

        frame.select(choose, None, [self.name, self.open], **REQUESTS)

    def shown(self, task, search, by, reverse, most, *filters):
        """Values of `outputs` for values of `inputs`."""
        wanted = dict(zip(page_table.FILTERS, filters))
        lines = page_table.sort(page_table.select(self.kept.board.lines, task, search or "", **wanted), by, reverse)
        every = sum(line["table"] == task for line in self.kept.board.lines)
        official = sum(line["official"] for line in lines)
        told = f"{len(lines):,} of {every:,} lines of this task, {official:,} of them official (sealed scores)."
        shown = lines[: LINES[most]]
        told += f" The first {len(shown):,} are shown." if len(shown) < len(lines) else ""
        return [page_table.cells(line) for line in shown], told, self._file(lines)

    def _file(self, lines) -> str:
        """The lines as a CSV file in a folder of its own; the oldest such folder goes."""
        number = next(self.number)
        shutil.rmtree(self.folder / str(number - DOWNLOADS), ignore_errors=True)
        file = self.folder / str(number) / "selectivbench.csv"
        file.parent.mkdir()
        file.write_text(page_table.to_csv(lines), encoding="utf-8")
        return str(file)


def _plots(gr, kept: Kept, tab) -> list[_Menu]:
    """The second tab; returns its menus."""
    board = kept.board
    picked = lambda board: page_plots.default_models(board.lines, _first_table(board))
    with gr.Row():
        task = gr.Dropdown(
            board.tables(), value=_first_table(board), label="Task", elem_id="sb-plot-task", min_width=200
        )
        models = gr.Dropdown(choices(board.models()), value=picked(board), multiselect=True, label="Models",
                             max_choices=page_plots.MOST_PICKED, elem_id="sb-plot-models", scale=3)  # fmt: skip
    shown = gr.HTML("", js_on_load=None, apply_default_css=False, elem_id="sb-plots")
    draw = lambda task, models: page_plots.render(kept.board.lines, task, models or [])
    tab.select(draw, [task, models], shown, **REQUESTS)  # not before somebody looks
    task.change(lambda task: page_plots.default_models(kept.board.lines, task), task, models, **REQUESTS).then(
        draw, [task, models], shown, **REQUESTS
    )
    models.change(draw, [task, models], shown, **REQUESTS)
    return [
        _Menu(task, lambda board: board.tables(), _first_table),
        _Menu(models, lambda board: board.models(), picked),
    ]


def _model(gr, kept: Kept):
    """The third tab; returns the choice of the model, what shows it, and name -> what is shown."""
    first = _first_model(kept.board)
    model = gr.Dropdown(choices(kept.board.models()), value=first, label="Model", elem_id="sb-model-name")
    render = lambda name: page_model.render(*kept.board.of_model(name))
    shown = gr.HTML(render(first), js_on_load=None, apply_default_css=False, elem_id="sb-model")
    model.change(render, model, shown, **REQUESTS)
    return model, shown, render


def serve(kept: Kept, host: str = "127.0.0.1", port: int = 7860, browser: bool = True):
    """Start the server of the page; returns the running gradio.Blocks, whose `close()` ends it. InputError where the port is taken."""
    gr = require_gradio()
    check_port(host, port)
    theme = gr.themes.Default(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )  # no font is fetched
    page = build(kept)
    _without_proxy("localhost", host)  # Gradio asks its own server whether it runs
    name = f"[{host}]" if ":" in host else host  # as an address of IPv6 stands in a URL
    page.launch(server_name=name, server_port=port, share=False, inbrowser=browser, ssr_mode=False, prevent_thread_lock=True, quiet=True,
                theme=theme, css=CSS, footer_links=[], enable_monitoring=False, run_history=False, show_error=False,
                max_file_size=1)  # fmt: skip
    return page


def _without_proxy(*hosts: str) -> None:
    """Have this process reach hosts directly, whatever proxy the environment names for others."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ["no_proxy"] = ",".join([*([known] if known else []), *hosts])


def check_port(host: str, port: int) -> None:
    """InputError where nothing can be served there, which Gradio would say only after the page is built."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise InputError(
            f"cannot serve on port {port} of {host} ({error.strerror}); choose another with {other}"
        ) from None
