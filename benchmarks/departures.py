"""What our departures from the public reference change, measured on our own data (protocol section 4; the README quotes the output).

    python benchmarks/departures.py [--level te3]

No code of the reference runs here. Where it does something else, that something is stated in a line and simulated.
"""

import argparse

import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="te3")
    args = parser.parse_args()

    import selectivbench_hf as sb
    from selectivbench_hf.layout import held_out_hashes, load_split, sequence_hashes
    from selectivbench_hf.sampling import string_law

    task = sb.get_task(args.level)
    print(task.describe())

    train = load_split(task, "train")
    held_out = held_out_hashes(task)
    meet = int(np.isin(sequence_hashes(train.items), held_out).sum())
    print(
        f"1. disjoint splits: {meet} of {len(train):,} training sequences stand among the {held_out.size:,} held-out ones "
        f"(there, test sequence i is training sequence i: all of them)"
    )

    products = [seed * index for seed in range(1, 5) for index in range(200_000)]
    print(
        f"2. independent streams: seed x index for 4 seeds and 200,000 indices gives {len(set(products)):,} different streams of "
        f"{len(products):,}; ours gives one for each by construction"
    )

    entropies = [sb.get_task(args.level, grammar_seed=s).grammar.topological_entropy() for s in range(1, 5)]
    print(
        "3. four seeds: entropies of our grammars at seeds 1 to 4: "
        + ", ".join(f"{e:.3f}" for e in entropies)
        + " nats"
    )

    variant = load_split(sb.get_task(f"{task.level}_nongrammatical_gaps", num_train=50_000), "train")
    shown = variant.distractors != variant.blank_id
    after_end = shown & (variant.states == 0)
    starts = len(set(task.grammar.symbol_of[list(task.grammar.start_states)]))
    share = after_end.sum() / shown.sum()
    print(
        f"4. distractors after `#`: {share:.2%} of all distractors; were the start symbols allowed there, {starts} of {task.num_symbols} of "
        f"those would be grammatical: {share * starts / task.num_symbols:.3%} of all distractors"
    )

    items, steps = (
        200,
        sb.get_task(f"{task.level}_noisy_gaps").max_steps("test_gap_100") if task.level != "lite" else 20_200,
    )
    print(
        f"5. scoring: a dense items x steps mask of one sequence of test_gap_100 takes {items * steps / 1e6:.1f} MB as bytes; "
        f"segment ids take {steps * 1 / 1e6:.2f} MB"
    )

    law = string_law(task.grammar, task.max_string_length)
    kept = law.survival[1, list(task.grammar.start_states)].mean() / 2**40
    lengths = law.length_probabilities()
    print(
        f"6. sampling: a walk ends within {task.max_string_length} items with probability {kept:.3f}; strings kept have "
        f"{(lengths * np.arange(lengths.size)).sum():.1f} items on average. None is drawn in vain"
    )


if __name__ == "__main__":
    main()
