#!/usr/bin/env python3
"""Writes models/tiny-reward: a sequence classifier with one label for the shipped tokenizer, which scores whether an answer to a sum is
well formed (digits, then the end token), and the scores that transformers gives some sequences. Needs torch, transformers, safetensors.

  make_tiny_reward.py [--out models/tiny-reward] [--golden tests/data/scores.safetensors]
"""
import argparse
import json
import random
import sys

try:
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForSequenceClassification
except ImportError as error:
    sys.exit(f"make_tiny_reward.py: needs Python packages: pip install torch transformers safetensors ({error})")

END = 2
FIRST = 3  # ids below are special


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="models/tiny-reward")
    parser.add_argument("--golden", default="tests/data/scores.safetensors")
    parser.add_argument("--tokenizer", default="models/tiny-moe/tokenizer.json")
    args = parser.parse_args()
    with open(args.tokenizer, encoding="utf-8") as file:
        tokenizer = json.load(file)
    vocab = tokenizer["model"]["vocab"]
    digits = [i for token, i in vocab.items() if token.isdigit()]
    size = max(list(vocab.values()) + [t["id"] for t in tokenizer["added_tokens"]]) + 1
    torch.manual_seed(1)
    random.seed(1)
    config = Qwen3Config(vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=8, max_position_embeddings=1024, num_labels=1, pad_token_id=0, bos_token_id=1,
                         eos_token_id=END, tie_word_embeddings=False)
    model = Qwen3ForSequenceClassification(config).float()

    def sequence():
        prompt = [1] + [random.choice(digits) for _ in range(random.randint(1, 4))] + [random.choice(range(FIRST, size)) for _ in range(2)]
        kind = random.random()
        answer = [random.choice(digits) for _ in range(random.randint(1, 3))]
        if kind < 0.5:
            return prompt + answer + [END], 1.0
        if kind < 0.75:
            return prompt + answer + [random.choice(digits) for _ in range(random.randint(0, 4))], 0.0
        return prompt + [random.choice(range(FIRST, size)) for _ in range(random.randint(1, 4))] + [1], 0.0  # no padding: transformers looks for the last token before it

    def score(ids):
        return model(torch.tensor([ids])).logits[0, 0]

    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(300):
        batch = [sequence() for _ in range(16)]
        loss = sum((score(ids) - label) ** 2 for ids, label in batch) / len(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1}: squared error {loss.item():.4f}")
    model.eval()
    model.save_pretrained(args.out)
    golden = {}
    with torch.no_grad():
        for i in range(7):
            ids, _ = sequence()
            golden[f"ids/{i}"] = torch.tensor(ids, dtype=torch.int32)
            golden[f"score/{i}"] = score(ids).reshape(1).contiguous()
    save_file(golden, args.golden)


if __name__ == "__main__":
    main()
