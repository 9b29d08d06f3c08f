"""What one more step costs, by how many came before: time and memory of decoding through each mixer's cache.

    python benchmarks/decoding.py [--mixers gla,mamba2,transformer] [--contexts 64,256,1024,4096,8192] [--json] [--output docs/decoding]

A model of every mixer (2 layers of width 256, random weights, batch 1) reads that many steps in one pass and then goes on in single
steps. Rounds visit every mixer at every length in a random order, take two steps there and time the second; a time is the shortest of
the rounds, because other processes only make a step longer. Times of one run compare with each other and with nothing else.
Memory is what the cache holds after so many steps: recurrent states, keys and values, and the last inputs of short convolutions.

A linear recurrent model keeps and computes the same whatever came before; attention keeps every step and reads all of it again.
--output writes decoding.json and, where matplotlib is installed, figure.png into that folder.
"""

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

SYMBOLS, STATES = 27, 677  # of te3


def prepare(mixer: str, contexts: list[int], options):
    """The model, and for every context its cache after so many steps and the seconds that reading them took."""
    from selectivbench_hf.models import SelectivBenchConfig, SelectivBenchForStateClassification

    torch.manual_seed(0)
    config = SelectivBenchConfig(
        mixer=mixer,
        hidden_size=options.hidden_size,
        num_hidden_layers=options.num_hidden_layers,
        num_symbols=SYMBOLS,
        num_states=STATES,
        max_position_embeddings=max(contexts) + 2 * options.rounds,
    )
    model = SelectivBenchForStateClassification(config).eval()
    caches = {}
    for steps in contexts:
        ids = torch.randint(0, SYMBOLS, (1, steps))
        begun = time.perf_counter()
        caches[steps] = model(input_ids=ids, use_cache=True).cache
        print(f"{mixer}: read {steps:,} steps in {time.perf_counter() - begun:.2f} s", file=sys.stderr)
    return model, caches


def measure(options) -> list[dict]:
    """One row a mixer: kilobytes kept and seconds of a step, by context."""
    from selectivbench_hf.models import MIXERS

    names = options.mixers.split(",") if options.mixers else list(MIXERS)
    contexts = sorted({int(word) for word in options.contexts.split(",")})
    with torch.no_grad():
        prepared = {name: prepare(name, contexts, options) for name in names}
        kept = {name: {c: 4 * cache.numbers() for c, cache in prepared[name][1].items()} for name in names}  # float32
        seconds = {name: {c: [] for c in contexts} for name in names}
        step = torch.zeros(1, 1, dtype=torch.long)
        pairs = [(name, context) for name in names for context in contexts]
        for turn in range(options.rounds):
            random.Random(turn).shuffle(pairs)
            for name, context in pairs:
                model, caches = prepared[name]
                for _ in range(2):  # the first step brings weights and cache near the processor
                    begun = time.perf_counter()
                    model(input_ids=step, cache=caches[context], use_cache=True)
                    took = time.perf_counter() - begun
                seconds[name][context].append(took)
            print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
    return [
        {
            "name": name,
            "bytes": {str(c): kept[name][c] for c in contexts},
            "milliseconds": {str(c): round(min(seconds[name][c]) * 1e3, 3) for c in contexts},
        }
        for name in names
    ]


def table(rows: list[dict]) -> str:
    """Time of a step against the same mixer's at the shortest context, and kilobytes."""
    contexts = list(rows[0]["bytes"])
    first, last = contexts[0], contexts[-1]
    quickest = min(row["milliseconds"][first] for row in rows)
    lines = [
        f"{'':<20}{'step at ' + first:>14}   {'a step, times that at ' + first + ' steps':<{8 * len(contexts[1:])}}   kept, KB",
        f"{'mixer':<20}{'/ quickest':>14}   "
        + "".join(f"{c:>8}" for c in contexts[1:])
        + "   "
        + "".join(f"{c:>9}" for c in contexts),
    ]
    for row in sorted(rows, key=lambda row: (row["bytes"][last] / row["bytes"][first], row["name"])):
        times, kept = row["milliseconds"], row["bytes"]
        lines.append(
            f"{row['name']:<20}{times[first] / quickest:>14.2f}   "
            + "".join(f"{times[c] / times[first]:>8.2f}" for c in contexts[1:])
            + "   "
            + "".join(f"{kept[c] / 1024:>9,.0f}" for c in contexts)
        )
    return "\n".join(lines)


def draw(rows: list[dict], file: Path, what: str) -> None:
    """Time and memory against context; the mixers that keep every step in colour, those of a fixed state in grey."""
    from selectivbench_hf.plots import FAINT, INK, LETTER_COLOURS, require_matplotlib

    plt = require_matplotlib()
    contexts = [int(c) for c in rows[0]["bytes"]]
    growing = [row for row in rows if row["bytes"][str(contexts[-1])] > row["bytes"][str(contexts[0])]]
    colours = {row["name"]: LETTER_COLOURS[i % len(LETTER_COLOURS)] for i, row in enumerate(growing)}
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4))
    for panel, key, scale, title in (
        (panels[0], "milliseconds", 1, "time of one step, ms"),
        (panels[1], "bytes", 1024, "kept between steps, KB"),
    ):
        for row in sorted(rows, key=lambda row: row["name"] in colours):
            values = [row[key][str(c)] / scale for c in contexts]
            fixed = row["name"] not in colours
            panel.plot(
                contexts,
                values,
                color=FAINT if fixed else colours[row["name"]],
                linewidth=1 if fixed else 2,
                marker=None if fixed else "o",
                markersize=4,
                label=None if fixed else row["name"],
            )
        panel.plot([], [], color=FAINT, linewidth=1, label=f"{len(rows) - len(growing)} with a state of fixed size")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        if scale == 1:  # little more than a decade
            panel.yaxis.set_major_locator(plt.matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:,g}")
        panel.yaxis.set_minor_formatter("")
        panel.set_xticks(contexts, [f"{c:,}" for c in contexts])
        panel.set_xlabel("steps before it")
        panel.set_title(title, loc="left", color=INK)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=9)
    figure.suptitle(what, x=0.01, ha="left", color=INK, fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=130)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--mixers", help="comma-separated (default: all)")
    parser.add_argument("--contexts", default="64,256,1024,4096,8192", help="comma-separated numbers of steps")
    parser.add_argument("--rounds", type=int, default=41, help="timed steps at every length")
    parser.add_argument("--hidden_size", type=int, default=256)
    parser.add_argument("--num_hidden_layers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--output", type=Path, help="folder for decoding.json and figure.png")
    options = parser.parse_args(argv)
    rows = measure(options)
    what = (
        f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), batch 1, {options.num_hidden_layers} layers of width "
        f"{options.hidden_size}, shortest of {options.rounds} steps"
    )
    print(json.dumps(rows) if options.json else f"{what}\n{table(rows)}")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"what": what, "rows": rows}, indent=1)
        (options.output / "decoding.json").write_text(text + "\n", encoding="utf-8")
        try:
            draw(rows, options.output / "figure.png", what)
        except ValueError as error:  # no matplotlib
            print(f"no figure: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
