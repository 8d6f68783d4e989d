#!/usr/bin/env python3
"""Checks the house (docs/layers.md): include arrows, heavy headers, file sizes, libm in kernels, registered tests.

check_layers.py [ROOT]: prints what is wrong, one line each, and exits 1; else prints lines of code by folder.
"""
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)

LOW = ["base", "mesh", "kernels", "io", "text", "comm", "nn", "parallel", "rl", "model", "checkpoint", "refit", "env", "rollout"]
MAY_INCLUDE = {
    "base": [],
    "mesh": ["base"],
    "kernels": ["base"],
    "io": ["base"],
    "text": ["base"],
    "comm": ["base", "mesh", "kernels"],
    "nn": ["base", "kernels"],
    "parallel": ["base", "mesh", "kernels", "comm", "nn"],
    "rl": ["base", "io"],
    "model": ["base", "mesh", "kernels", "io", "nn", "parallel"],
    "checkpoint": ["base", "mesh", "kernels", "io", "comm", "parallel"],
    "refit": ["base", "mesh", "kernels", "comm", "parallel"],
    "env": ["base", "io", "text", "rl"],
    "rollout": ["base", "mesh", "kernels", "io", "text", "comm", "nn", "parallel", "model"],
    "server": ["base", "io", "text", "rollout"],
    "train": LOW,
    "cli": LOW + ["server", "train"],
}
TORCH_FREE = {"base", "mesh", "kernels", "io", "text", "comm", "rl", "env"}
HEAVY = re.compile(r'#include <(torch/(torch|all|nn|types)\.h|ATen/ATen\.h)>')
TORCH = re.compile(r'#include <(torch|ATen|c10)/')
ARROW = re.compile(r'#include "weft/([a-z]+)/')
SIMD = re.compile(r'#include <(immintrin|hwy)')
LIMIT = 800


def problems():
    lines = {}
    for path in sorted(ROOT.glob("weft/*/*")):
        if path.suffix not in (".h", ".cc"):
            continue
        folder, rel = path.parent.name, path.relative_to(ROOT)
        text = path.read_text()
        n = text.count("\n")
        lines[folder] = lines.get(folder, 0) + n
        if folder not in MAY_INCLUDE:
            yield f"{rel}: folder '{folder}' is not in the table"
            continue
        if n > LIMIT:
            yield f"{rel}: {n} lines, the end is {LIMIT}"
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{rel}:{number}"
            arrow = ARROW.match(line)
            if arrow and arrow[1] != folder and arrow[1] not in MAY_INCLUDE[folder]:
                yield f"{where}: {folder} may not include {arrow[1]}"
            if TORCH.match(line) and folder in TORCH_FREE:
                yield f"{where}: {folder} may not include torch headers"
            if path.suffix == ".h" and HEAVY.match(line):
                yield f"{where}: no header includes torch/torch.h or ATen/ATen.h"
            if SIMD.match(line) and not (folder == "kernels" or str(rel) == "weft/base/threads.cc"):
                yield f"{where}: SIMD headers belong to kernels"
        if path.name.endswith("_test.cc") and not re.search(r"^\s*(TEST|TEST_F|TEST_P|TYPED_TEST)\(", text, re.M):
            yield f"{rel}: has no test in it"
        if re.search(r"\bDISABLED_|GTEST_SKIP", text):
            yield f"{rel}: holds a disabled or skipped test"
    if not lines:
        yield f"{ROOT}: no weft/ folder here"
    else:
        print(", ".join(f"{k} {v}" for k, v in lines.items()), "; total", sum(lines.values()))


found = list(problems())
for p in found:
    print(p)
sys.exit(1 if found else 0)
