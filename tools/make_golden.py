#!/usr/bin/env python3
"""Writes golden.safetensors beside a Hugging Face checkpoint, for `weft check DIR`. Needs torch, transformers and safetensors.

  make_golden.py CHECKPOINT_DIR [--batch 2] [--seq 21] [--new-tokens 24] [--seed 7] [--out FILE] [--no-grad] [--no-noise]

The model runs in float32 on the CPU over random token ids; the fields are those of weft/train/check.h. With noise, it runs again
in float64 (twice the memory), and what separates the two runs is the reference's own error. --no-grad leaves gradients out of a
model that is too large for them.
"""
import argparse
import contextlib
import glob
import os
import re
import sys
import tempfile

try:
    import safetensors
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    sys.exit(f"make_golden.py: needs Python packages: pip install torch transformers safetensors ({error})")

transformers.utils.logging.disable_progress_bar()

PROMPT = 7  # tokens before the greedy ones; weft/train/check.cc counts on it


def load(directory, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()


@contextlib.contextmanager
def float64_throughout():
    """Model code casts to float32 in places (norms, softmax, routers); here those casts give float64."""
    saved = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax

    def widen(value):
        return torch.float64 if value is torch.float32 else value

    def to(self, *args, **kwargs):
        return saved[0](self, *[widen(a) for a in args], **{k: widen(v) for k, v in kwargs.items()})

    def softmax(x, *args, **kwargs):
        return saved[2](x, *[widen(a) for a in args], **{k: widen(v) for k, v in kwargs.items()})

    torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = to, torch.Tensor.double, softmax
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = saved


def log_probs(logits, ids):
    return torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def watch_routers(model, seen):
    """Collects what each MoE layer's router returns, by layer number."""
    def hook(layer):
        def keep(module, inputs, output):
            seen[layer] = output if isinstance(output, (tuple, list)) else (output,)
        return keep
    return [module.register_forward_hook(hook(int(found[1]))) for name, module in model.named_modules()
            if (found := re.search(r"layers\.(\d+)\..*(?:gate|router)$", name))]


def router_fields(layer, parts, config):
    """logits [T, E] (first of that width), the chosen ids and their weights [T, k]."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    fields = {}
    for part in parts:
        part = part.detach().reshape(-1, part.shape[-1])
        if not part.is_floating_point():
            fields[f"router_topk/{layer}"] = part.long()
        elif part.shape[-1] == experts:
            fields.setdefault(f"router_logits/{layer}", part.float())
        else:
            fields.setdefault(f"router_weights/{layer}", part.float())
    return fields


def gradients_by_disk_name(model):
    """save_pretrained knows the names and shapes on disk (experts one by one, ties left out): it saves gradients in the weights' place."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        found = {}
        for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
            found.update(load_file(path))
    return {"grad/" + name: tensor for name, tensor in found.items()}


def largest(a, b):
    return (a.double() - b.double()).abs().max().float()


def gradient_noise(grads, wide):
    errors = [((grads[n].double() - g).abs().max() / g.abs().max()).item() for n, g in wide.items() if n in grads and g.abs().max() > 0]
    return torch.tensor(max(errors, default=0.0))


def run(directory, dtype, ids, with_gradients, new_tokens=0):
    model = load(directory, dtype)
    model.config._experts_implementation = "eager"  # the one implementation that every dtype has
    model.get_input_embeddings().padding_idx = None  # no token is padding here: the pad token's row has its gradient like any other
    routers, fields = {}, {}
    hooks = watch_routers(model, routers)
    with torch.set_grad_enabled(with_gradients):
        logits = model(input_ids=ids, use_cache=False).logits
        picked = log_probs(logits, ids)
        loss = -picked.mean()
    for hook in hooks:
        hook.remove()
    fields = {"logits": logits.detach(), "logprobs": picked.detach(), "loss": loss.detach()}
    for layer, parts in routers.items():
        fields |= router_fields(layer, parts, model.config)
    if new_tokens:
        with torch.no_grad():
            fields["greedy"] = model.generate(ids[:1, :PROMPT], attention_mask=torch.ones_like(ids[:1, :PROMPT]), max_new_tokens=new_tokens,
                                              min_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    if with_gradients:
        loss.backward()
        fields |= gradients_by_disk_name(model)
    return fields, model.config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--seq", type=int, default=21)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", help="default: CHECKPOINT/golden.safetensors")
    parser.add_argument("--no-grad", action="store_true")
    parser.add_argument("--no-noise", action="store_true")
    args = parser.parse_args()
    if args.seq < PROMPT or args.batch < 1:
        parser.error(f"--seq must be at least {PROMPT}, --batch at least 1")
    vocab = transformers.AutoConfig.from_pretrained(args.checkpoint).vocab_size
    ids = torch.randint(0, vocab, (args.batch, args.seq), generator=torch.Generator().manual_seed(args.seed))
    fields, config = run(args.checkpoint, torch.float32, ids, not args.no_grad, args.new_tokens)
    if not args.no_noise:
        with float64_throughout():
            wide, _ = run(args.checkpoint, torch.float64, ids, not args.no_grad)
        fields["noise/logits"] = largest(fields["logits"], wide["logits"])
        fields["noise/logprobs"] = largest(fields["logprobs"], wide["logprobs"])
        if not args.no_grad:
            fields["noise/grad"] = gradient_noise(fields, {n: g for n, g in wide.items() if n.startswith("grad/")})
    fields["input_ids"] = ids
    out = args.out or os.path.join(args.checkpoint, "golden.safetensors")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "safetensors": safetensors.__version__}
    save_file({name: tensor.contiguous().clone() for name, tensor in fields.items()}, out, metadata=versions | {"seed": str(args.seed)})
    noise = ", ".join(f"{n.removeprefix('noise/')} {fields[n].item():.1e}" for n in fields if n.startswith("noise/"))
    print(f"{out}: {config.model_type}, {len(fields)} fields, loss {fields['loss'].item():.6f}" + (f"; float32 against float64: {noise}" if noise else ""))


if __name__ == "__main__":
    main()
