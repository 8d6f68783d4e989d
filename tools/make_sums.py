#!/usr/bin/env python3
"""Makes small sums as chat prompts, for an instruction model (recipes/smollm2.toml). Python's standard library only; the same arguments
give the same bytes.

make_sums.py OUT [--val N] [--seed N]

OUT/train.jsonl and OUT/val.jsonl hold {"prompt": [messages], "answer": "12", "data_source": "sums"}: each of the 171 sums of a number
below 20 and a digit, in one of the two files.
"""
import argparse
import json
import os

from make_arithmetic import Lcg, shuffled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--val", type=int, default=43)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sums = shuffled(((a, b) for a in range(1, 20) for b in range(1, 10)), Lcg(args.seed))
    if not 0 < args.val < len(sums):
        parser.error(f"--val must be from 1 to {len(sums) - 1}")
    os.makedirs(args.out, exist_ok=True)
    for name, part in (("val", sums[:args.val]), ("train", sums[args.val:])):
        with open(os.path.join(args.out, name + ".jsonl"), "w", encoding="utf-8", newline="\n") as file:
            for a, b in part:
                messages = [{"role": "system", "content": "Answer with the sum."}, {"role": "user", "content": f"{a} + {b} = ?"}]
                file.write(json.dumps({"prompt": messages, "answer": str(a + b), "data_source": "sums"}) + "\n")


if __name__ == "__main__":
    main()
