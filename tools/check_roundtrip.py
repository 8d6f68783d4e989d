#!/usr/bin/env python3
"""Loads a checkpoint that weft wrote in transformers and compares log-probs. Needs torch and transformers.

  weft generate DIR "12+30=" --n 4 --temperature 1 --logprobs --param-dtype float32 > samples.jsonl
  check_roundtrip.py DIR samples.jsonl [--factor 2] [--bound 2e-4]

Each sample's tokens run through transformers in float64 (the values that count) and in float32. Exits 1 where weft's log-probs are
farther from float64 than --factor times transformers' own float32 (and than 1e-6, where that is luckily near), or farther
than --bound. Rows need "prompt", "ids" and "logprobs", sampled at temperature 1 (or greedy) without top-k, top-p or min-p.
A run's own samples/STEP.jsonl works too: "prompt_ids", "response_ids" and "rollout_log_probs", held against the weights that sampled them.
"""
import argparse
import json
import sys

try:
    import torch
    import transformers
    from make_golden import float64_throughout, load
except ImportError as error:
    sys.exit(f"check_roundtrip.py: needs Python packages: pip install torch transformers safetensors ({error})")


def read(path, directory):
    tokenizer = None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = json.loads(line)
            if "prompt_ids" in row:
                sample = row["prompt_ids"], row["response_ids"], row["rollout_log_probs"]
            elif "ids" in row and "logprobs" in row:
                tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(directory)
                sample = tokenizer(row["prompt"])["input_ids"], row["ids"], row["logprobs"]
            else:
                sys.exit(f"{path}: line {number}: no log-probs here: use weft generate --logprobs")
            if not sample[0] or len(sample[1]) != len(sample[2]):
                sys.exit(f"{path}: line {number}: an empty prompt, or another number of log-probs than tokens")
            if sample[1]:
                yield sample


def reference(model, prompt, response):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0]
    picked = torch.log_softmax(logits[len(prompt) - 1:-1], -1)
    return picked.gather(-1, torch.tensor(response)[:, None])[:, 0].double()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("samples")
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--bound", type=float, default=2e-4)
    parser.add_argument("--max-samples", type=int, default=64)
    args = parser.parse_args()
    samples = list(read(args.samples, args.checkpoint))[: args.max_samples]
    if not samples:
        sys.exit(f"{args.samples}: no sample with a token in it")
    narrow = load(args.checkpoint, torch.float32)
    theirs = [reference(narrow, prompt, response) for prompt, response, _ in samples]
    del narrow
    with float64_throughout():
        wide = load(args.checkpoint, torch.float64)
        wide.config._experts_implementation = "eager"
        exact = [reference(wide, prompt, response) for prompt, response, _ in samples]
    ours = [torch.tensor(log_probs, dtype=torch.float64) for _, _, log_probs in samples]
    exact, theirs, ours = torch.cat(exact), torch.cat(theirs), torch.cat(ours)
    own, weft = (theirs - exact).abs().max().item(), (ours - exact).abs().max().item()
    print(f"{len(samples)} samples, {exact.numel()} tokens; largest distance of log-probs")
    print(f"  transformers float32 from float64  {own:.3e}")
    print(f"  weft from float64                  {weft:.3e}")
    print(f"  weft from transformers float32     {(ours - theirs).abs().max().item():.3e}")
    allowed = min(args.bound, max(args.factor * own, 1e-6))
    print(f"allowed {allowed:.3e}: {'ok' if weft <= allowed else 'FAILED'}")
    sys.exit(0 if weft <= allowed else 1)


if __name__ == "__main__":
    main()
