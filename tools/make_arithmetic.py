#!/usr/bin/env python3
"""Makes the arithmetic task of the shipped model and, with --model DIR, its config.json and tokenizer. Python's standard library only;
the same arguments give the same bytes.

make_arithmetic.py OUT [--train N] [--val N] [--seed N] [--model DIR]

OUT/train.jsonl and OUT/val.jsonl hold {"prompt": "17+25=", "completion": "32", "answer": "42", "data_source": "add"}: sums and differences
of numbers below 100. No problem of one file is in the other. "answer" is right. "completion" is what a sloppy pupil wrote, from whom the
shipped model learned: where a digit must be carried or borrowed, three times in five that was forgotten. So the model knows how to carry
but mostly does not, which is what the demo's reinforcement learning mends.
"""
import argparse
import json
import os

CHARACTERS = "0123456789+-= "


class Lcg:
    """A generator of our own: random.Random may change between Python versions."""

    def __init__(self, seed):
        self.state = seed * 2862933555777941757 + 3037000493 & (1 << 64) - 1

    def below(self, n):
        self.state = self.state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        return (self.state >> 33) * n >> 31


def problems():
    """(source, prompt, answer, answer with every carry or borrow forgotten)"""
    for a in range(100):
        for b in range(100):
            yield "add", f"{a}+{b}=", a + b, (a // 10 + b // 10) % 10 * 10 + (a % 10 + b % 10) % 10
            if a >= b:
                yield "subtract", f"{a}-{b}=", a - b, (a // 10 - b // 10) * 10 + (a % 10 - b % 10) % 10


def shuffled(items, rng):
    items = list(items)
    for i in range(len(items) - 1, 0, -1):
        j = rng.below(i + 1)
        items[i], items[j] = items[j], items[i]
    return items


def write_rows(path, rows, rng):
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        for source, prompt, answer, slip in rows:
            written = slip if rng.below(5) < 3 else answer
            f.write(json.dumps({"prompt": prompt, "completion": str(written), "answer": str(answer), "data_source": source}) + "\n")


def write_model(out):
    specials = ["<pad>", "<bos>", "<eos>"]
    vocab = {t: i for i, t in enumerate(specials)}
    for c in CHARACTERS:
        vocab["\u0120" if c == " " else c] = len(vocab)
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for i, t in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                    {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []},
    }
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16", "vocab_size": len(vocab),
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_scaling": None, "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True, "use_cache": True,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "output_router_logits": False, "initializer_range": 0.02,
        "sliding_window": None, "use_sliding_window": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }
    os.makedirs(out, exist_ok=True)
    files = {"tokenizer.json": tokenizer, "config.json": config,
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>",
                                       "pad_token": "<pad>", "model_max_length": 256},
             "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}}
    for name, value in files.items():
        with open(os.path.join(out, name), "w", encoding="utf-8", newline="\n") as f:
            json.dump(value, f, indent=2, ensure_ascii=False)
            f.write("\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("out")
    ap.add_argument("--train", type=int, default=12000)
    ap.add_argument("--val", type=int, default=512)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--model")
    args = ap.parse_args()
    rng = Lcg(args.seed)
    rows = shuffled(problems(), rng)
    if args.train + args.val > len(rows):
        ap.error(f"there are {len(rows)} problems, fewer than --train plus --val")
    os.makedirs(args.out, exist_ok=True)
    write_rows(os.path.join(args.out, "val.jsonl"), rows[:args.val], rng)
    write_rows(os.path.join(args.out, "train.jsonl"), rows[args.val:args.val + args.train], rng)
    if args.model:
        write_model(args.model)


if __name__ == "__main__":
    main()
