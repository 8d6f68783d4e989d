#!/usr/bin/env bash
# The main job on the shipped model: greedy accuracy before, GRPO, accuracy after, and a report.
set -euo pipefail
weft=${1:-build/weft}
cd "$(dirname "$0")/.."
python3 tools/make_arithmetic.py out/arithmetic
rm -rf runs/demo
"$weft" train recipes/demo.toml trainer.resume_mode=disable
python3 - runs/demo <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
names = sorted(k for k in rows[0] if k.startswith("val/") and k.endswith("/mean@1"))
def show(row):
    return "  ".join(f"{n.split('/')[1]} {100 * row[n]:.1f} %" for n in names)
last = [r for r in rows if names and names[0] in r][-1]
print("greedy accuracy on held-out prompts")
print("  before:", show(rows[0]))
print("  after: ", show(last), f"(step {last['step']})")
parity = max(r.get("parity/max_abs_diff", 0) for r in rows)
unequal = sum(r.get("parity/unequal_tokens", 0) + r.get("parity/unequal_routes", 0) for r in rows)
print(f"trainer against rollout: largest difference {parity:g}, {unequal:g} unequal log-probs and routes in {last['step']} steps")
print(f"report: {sys.argv[1]}/report.html")
PY
