"""The words of the page that are no data: the status line, how to submit, about."""

from __future__ import annotations

from .page_html import text


def status(board) -> str:
    """Where the board comes from, when it was read, and what was left out, as HTML."""
    what = f"{text(board.source)}, read {text(board.read_at)} UTC: {len(board.lines):,} lines"
    what += f" from {len(board.rows):,} runs." if board.rows else "."
    if not board.notices:
        return f"<p>{what}</p>"
    notices = "".join(f"<li>{text(n)}</li>" for n in board.notices)
    return f"<p>{what}</p><details><summary>Notices ({len(board.notices):,}): what was left out or counted once</summary><ul>{notices}</ul></details>"


SUBMIT = """
## How to submit

Train a model of the package, or any model of your own, then:

```sh
selectivbench submit runs/gla --repo YOU/gla-te3 --dataset OWNER/selectivbench --dry-run   # scores it again, shows what would be sent
selectivbench submit runs/gla --repo YOU/gla-te3 --dataset OWNER/selectivbench             # weights, record, model card, results: one commit
selectivbench results push YOU/gla-te3 --results OWNER/selectivbench-results               # its rows, which this page reads
```

A model of another framework is submitted by its predictions: `selectivbench submit --predictions FILE.safetensors --model_file WEIGHTS --task TASK`.

### What is checked

- **Sealed test.** The official score is on a test whose sample seed is the SHA-256 of the submitted weights. Nobody knows it before the weights are
  fixed, and anybody can draw it again: `selectivbench sealed model.safetensors --task te3_noisy_gaps`.
- **Trust.** `predictions`: predictions were sent, and scored by the package. `weights`: the weights were scored again. `replayed`: somebody else trained
  it again from the recorded command and came to the same scores (`selectivbench replay OWNER/model`).
- **Doubts** are shown beside a score and never hidden: a score above what the exact filter reaches, a gap between the published and the sealed test,
  other data.

### Tracks

- **Closed**: the published training split once, batch 64, at most 2 M, 10 M or 50 M parameters, no use of the grammar, the whole grid of learning rates
  reported, grammar seeds 1 to 4 with two model seeds or more each, sealed scores, and a replay on a sealed grammar.
- **Open**: anything, described. Results of different major data versions are never ranked together.

A model's page says which rules keep it out of the closed track. Rows that are partial, double or in conflict are shown, and never averaged.
"""

ABOUT = """
## About

SelectivBench asks what a gate, a decay or a delta rule buys a sequence model. Random artificial grammars emit symbols, gaps and noise get in the way, and
the model says at every item which hidden state the grammar is in. The score is the share of items named right, in per cent.

- **rank**: among official entries of one task, one track and one major data version, by sealed accuracy; ties by published accuracy, then by name.
- **sealed, published**: mean over grammar seeds of the means over model seeds on the split `test`, on the sealed and the published test.
- **95 % interval**: Student's t over grammar seeds; over model seeds where there is one grammar; for a single run a bootstrap over test sequences.
- **doubts**: how many sentences say what is doubtful; the sentences stand in the last column and on the model's page.
- **context**: how many of the last items an exact observer would need for the same accuracy.
- **state**: numbers of recurrent state a sequence; *grows* where it is as long as the sequence, as in softmax attention.
- **decay, write rule, channel mixing**: what the recurrence is; read off the model's code, not claimed by the submitter.

The task is that of *Dissecting Linear Recurrent Models: How Different Gating Strategies Drive Selectivity and Generalization*
([arXiv 2601.12598](https://arxiv.org/abs/2601.12598)); the recall tasks are those of
[arXiv 2508.19029](https://arxiv.org/abs/2508.19029). This page loads nothing from elsewhere and counts no visitors.
"""
