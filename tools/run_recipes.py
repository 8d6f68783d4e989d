#!/usr/bin/env python3
"""Runs every recipe of a folder (recipes/algorithms, recipes/meshes) on the shipped model and prints a table: greedy accuracy on held-out prompts before and after.
Python's standard library only. Exit code 1 where a run fails, or trainer and rollout differ by a bit.

run_recipes.py WEFT [--folder recipes/algorithms] [--steps N] [--out DIR] [--only NAME,NAME]
"""
import argparse
import json
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def accuracy(row):
    """The mean over the held-out files' sources."""
    values = [v for k, v in row.items() if k.startswith("val/") and k.endswith("/exact_match/mean@1")]
    return sum(values) / len(values) if values else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft")
    parser.add_argument("--folder", default="recipes/algorithms")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="runs/algorithms")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    weft, out = os.path.abspath(args.weft), os.path.abspath(args.out)
    folder = os.path.join(ROOT, args.folder)
    names = [n[:-5] for n in sorted(os.listdir(folder)) if n.endswith(".toml")]
    names.sort(key=lambda n: (n != "grpo", n == "distillation", n))  # the teacher first, its pupil last
    if args.only:
        names = [n for n in names if n in args.only.split(",")]
    data = os.path.join(out, "data")
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_arithmetic.py"), data], check=True)
    failed = False
    print("| recipe | before | after | steps | seconds |\n|---|---|---|---|---|", flush=True)
    for name in names:
        command = [weft, "train", os.path.join(folder, name + ".toml"), f"trainer.total_training_steps={args.steps}",
                   f"trainer.test_freq={args.steps}", f"trainer.runs_dir={out}", "trainer.resume_mode=disable", "trainer.save_samples=false",
                   f'data.train_files=["{data}/train.jsonl"]', f'data.val_files=["{data}/val.jsonl"]']
        if name == "distillation":
            command.append(f"teacher.path={out}/grpo/checkpoints/global_step_{args.steps}/huggingface")
        start = time.time()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name}: exit {done.returncode}\n{done.stderr[-2000:]}", flush=True)
            failed = True
            continue
        with open(os.path.join(out, name, "metrics.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        scores = [s for s in map(accuracy, rows) if s is not None]
        unequal = sum(r.get("parity/unequal_tokens", 0) + r.get("parity/unequal_routes", 0) for r in rows)
        compared = sum(r.get("parity/tokens", 0) for r in rows)
        bad = unequal != 0 or compared == 0 or len(scores) < 2
        failed = failed or bad
        note = f" ({unequal:g} of {compared:g} log-probs unequal)" if bad else ""
        print(f"| {name} | {100 * scores[0]:.1f} % | {100 * scores[-1]:.1f} % | {args.steps} | {time.time() - start:.0f} |{note}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
