#!/usr/bin/env python3
"""weft against what a user would otherwise run, on one machine in one run, alternating, median of three; prints JSON.

peers.py [--model-bench build/bench/model_bench] [--rounds 3] [--dtypes float32,bfloat16] [--length 512] [--skip-llama] [--skip-train]
         [--ranks]

Needs, in the Python that runs it: torch, transformers; for decode also llama-cpp-python and gguf (built for this machine). Everything
trains or decodes the same random Qwen3-MoE (8 layers, hidden 512, 32 experts, top 4, vocabulary 8192) with two threads: training of
4 x 512 tokens with PyTorch (grouped matrix products for the experts, AdamW), greedy decode of 128 tokens after 64 with llama.cpp.
--ranks adds two ranks of one thread each: weft's thread ranks with fsdp=2 against weft's one rank of two threads and against PyTorch's FSDP2
on two processes (Gloo).
--length trains shorter sequences on both sides: where the CPU has no bf16 instructions PyTorch needs minutes for a bf16 step of 512.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

THREADS = 2
SHAPE = dict(vocab_size=8192, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
             moe_intermediate_size=256, intermediate_size=1024, num_experts=32, num_experts_per_tok=4, norm_topk_prob=True,
             max_position_embeddings=4096, tie_word_embeddings=False)


def quiet_blas():
    """Old OpenBLAS work-arounds in the environment slow current libraries down."""
    env = dict(os.environ)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        env.pop(name, None)
    return env


def child(role, *args, launcher=()):
    out = subprocess.run([sys.executable, *launcher, __file__, role, *args], env=quiet_blas(), check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def weft(bench, dtype, only, *args):
    out = subprocess.run([bench, "--threads", str(THREADS), "--dtype", dtype, "--only", only, *args], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def torch_model(dtype):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_moe", **SHAPE)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "grouped_mm"
    return AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))


def fsdp2(dtype, length):
    """One of the two processes that torchrun starts."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    dist.init_process_group("gloo")
    model = torch_model("float32")
    torch.set_num_threads(1)
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    train(dtype, length, model=model, rows=2, what="train_2_ranks", speak=dist.get_rank() == 0)
    dist.destroy_process_group()


def train(dtype, length, steps=3, model=None, rows=4, what="train", speak=True):
    import torch
    model = model or torch_model(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    ids = torch.randint(3, SHAPE["vocab_size"], (rows, int(length)), generator=torch.Generator().manual_seed(0))
    seconds = []
    for _ in range(steps):
        start = time.time()
        logits = model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.time() - start)
    if speak:
        print(json.dumps({"what": what, "dtype": dtype, "tokens_per_s": 4 * int(length) / statistics.median(seconds[1:])}))


def export(dtype, path):
    """The same architecture as GGUF, random weights."""
    import gguf
    import numpy as np
    import torch
    model = torch_model("float32")
    weights = {k: v.detach() for k, v in model.state_dict().items()}
    w = gguf.GGUFWriter(path, "qwen3moe")
    s = SHAPE
    w.add_block_count(s["num_hidden_layers"])
    w.add_context_length(s["max_position_embeddings"])
    w.add_embedding_length(s["hidden_size"])
    w.add_feed_forward_length(s["intermediate_size"])
    w.add_head_count(s["num_attention_heads"])
    w.add_head_count_kv(s["num_key_value_heads"])
    w.add_key_length(s["head_dim"])
    w.add_value_length(s["head_dim"])
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_expert_count(s["num_experts"])
    w.add_expert_used_count(s["num_experts_per_tok"])
    w.add_expert_feed_forward_length(s["moe_intermediate_size"])
    w.add_vocab_size(s["vocab_size"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list([f"<{i}>" for i in range(s["vocab_size"])])
    w.add_token_types([1] * s["vocab_size"])
    w.add_token_merges(["a b"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)

    def put(name, t):
        if t.dim() == 1 or name.endswith("gate_inp.weight") or dtype == "float32":
            w.add_tensor(name, t.float().numpy())
        else:
            raw = t.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)
            w.add_tensor(name, raw.view(np.uint8).reshape(*raw.shape[:-1], -1), raw_dtype=gguf.GGMLQuantizationType.BF16)

    put("token_embd.weight", weights["model.embed_tokens.weight"])
    put("output.weight", weights["lm_head.weight"])
    put("output_norm.weight", weights["model.norm.weight"])
    names = {"attn_norm": "input_layernorm.weight", "ffn_norm": "post_attention_layernorm.weight", "attn_q": "self_attn.q_proj.weight",
             "attn_k": "self_attn.k_proj.weight", "attn_v": "self_attn.v_proj.weight", "attn_output": "self_attn.o_proj.weight",
             "attn_q_norm": "self_attn.q_norm.weight", "attn_k_norm": "self_attn.k_norm.weight", "ffn_gate_inp": "mlp.gate.weight"}
    for i in range(s["num_hidden_layers"]):
        prefix = f"model.layers.{i}."
        for theirs, ours in names.items():
            put(f"blk.{i}.{theirs}.weight", weights[prefix + ours])
        gate_up = weights[prefix + "mlp.experts.gate_up_proj"]
        put(f"blk.{i}.ffn_gate_exps.weight", gate_up[:, :s["moe_intermediate_size"]])
        put(f"blk.{i}.ffn_up_exps.weight", gate_up[:, s["moe_intermediate_size"]:])
        put(f"blk.{i}.ffn_down_exps.weight", weights[prefix + "mlp.experts.down_proj"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def decode(dtype, path):
    import ctypes  # noqa: F401  (numpy's view of the logits)
    import llama_cpp as L
    import numpy as np
    vocab, prompt, new = SHAPE["vocab_size"], 64, 128
    L.llama_backend_init()
    params = L.llama_model_default_params()
    params.use_mmap = False
    model = L.llama_model_load_from_file(path.encode(), params)
    for batch_size in (1, 8, 32):
        c = L.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max = 256 * batch_size, 2048, 512, batch_size
        c.n_threads = c.n_threads_batch = THREADS
        c.kv_unified = True
        context = L.llama_init_from_model(model, c)
        batch = L.llama_batch_init(2048, 0, 1)
        ids = np.random.default_rng(1).integers(3, vocab, (batch_size, prompt))

        def fill(rows):
            for n, (token, position, sequence, wanted) in enumerate(rows):
                batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.logits[n] = int(token), position, 1, wanted
                batch.seq_id[n][0] = sequence
            batch.n_tokens = len(rows)
            if L.llama_decode(context, batch) != 0:
                raise SystemExit("llama_decode failed")

        for _ in range(2):  # the first warms up
            L.llama_memory_clear(L.llama_get_memory(context), True)
            fill([(ids[s][j], j, s, j == prompt - 1) for s in range(batch_size) for j in range(prompt)])
            tokens = [5] * batch_size
            start = time.time()
            for k in range(new):
                fill([(tokens[s], prompt + k, s, True) for s in range(batch_size)])
                logits = np.ctypeslib.as_array(L.llama_get_logits(context), shape=(batch_size, vocab))
                tokens = [int(t) for t in logits.argmax(1)]
        print(json.dumps({"what": "decode", "dtype": dtype, "batch": batch_size, "tokens_per_s": batch_size * new / (time.time() - start)}), flush=True)
        L.llama_free(context)


def key(row):
    return (row["what"], row["dtype"], row.get("batch", 0))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model-bench", default="build/bench/model_bench")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--dtypes", default="float32,bfloat16")
    ap.add_argument("--length", default="512", help="tokens of each of the 4 sequences trained")
    ap.add_argument("--ranks", action="store_true")
    ap.add_argument("--skip-llama", action="store_true")
    ap.add_argument("--skip-train", action="store_true")
    args = ap.parse_args()
    ours, theirs = {}, {}

    def note(where, rows):
        for row in rows:
            where.setdefault(key(row), []).append(row["tokens_per_s"])

    with tempfile.TemporaryDirectory() as folder:
        for dtype in args.dtypes.split(","):
            path = os.path.join(folder, dtype + ".gguf")
            if not args.skip_llama:
                child("export", dtype, path)
            for _ in range(args.rounds):
                if not args.skip_train:
                    note(theirs, child("train", dtype, args.length))
                    note(ours, weft(args.model_bench, dtype, "train", "--length", args.length))
                if args.ranks:
                    note(theirs, child("fsdp2", dtype, args.length, launcher=["-m", "torch.distributed.run", "--nproc-per-node", "2"]))
                    two = weft(args.model_bench, dtype, "train", "--length", args.length, "--mesh", "fsdp=2")
                    note(ours, [dict(row, what="train_2_ranks") for row in two])
                if not args.skip_llama:
                    note(theirs, child("decode", dtype, path))
                    note(ours, weft(args.model_bench, dtype, "decode"))
    for k, values in theirs.items():
        a, b = statistics.median(ours[k]), statistics.median(values)
        print(json.dumps({"what": k[0], "dtype": k[1], "batch": k[2] or None, 
                          "peer": {"train": "pytorch", "train_2_ranks": "pytorch fsdp2"}.get(k[0], "llama.cpp"),
                          "weft_tokens_per_s": round(a, 1), "peer_tokens_per_s": round(b, 1), "ratio": round(a / b, 3)}))

    for dtype in args.dtypes.split(",") if args.ranks and not args.skip_train else []:
        one, two = (statistics.median(ours[(what, dtype, 0)]) for what in ("train", "train_2_ranks"))
        print(json.dumps({"what": "train_2_ranks", "dtype": dtype, "peer": "weft, one rank of two threads", "ratio": round(two / one, 3)}))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("train", "export", "decode", "fsdp2"):
        {"train": train, "export": export, "decode": decode, "fsdp2": fsdp2}[sys.argv[1]](*sys.argv[2:])
    else:
        main()
