#!/usr/bin/env bash
# The GPU path on a machine with a CUDA device and a build against a CUDA libtorch (tools/build_with_pip_torch.sh): every golden in
# float32 and bfloat16, communication of device memory (in builds with NCCL), one GRPO step, and the demo. Prints figures; exit 0 when
# all of it holds, 1 when something does not, 2 when there is no GPU or no CUDA in the build (nothing was checked then).
#   tools/gpu_check.sh [WEFT] [--no-demo]
set -euo pipefail
cd "$(dirname "$0")/.."
weft=build/weft
demo=yes
for argument in "$@"; do
  case $argument in
    --no-demo) demo=no ;;
    -*) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) weft=$argument ;;
  esac
done
if [ ! -x "$weft" ]; then
  echo "$weft is missing or not a program: build weft first, or name it as the first argument" >&2
  exit 2
fi
if ! "$weft" doctor | grep -q '^CUDA  *available'; then
  echo "no CUDA device, or no CUDA in the libtorch of $weft: nothing was checked. Build against a CUDA wheel with" >&2
  echo "tools/build_with_pip_torch.sh and run this where nvidia-smi lists a GPU." >&2
  exit 2
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
for model in tests/data/models/*/; do
  for dtype in float32 bfloat16; do
    name=$(basename "$model")
    if "$weft" check "$model" --device cuda --param-dtype "$dtype" >"$out/check" 2>&1; then
      echo "check $name $dtype: $(tail -n 1 "$out/check")"
    else
      echo "check $name $dtype: FAILED"
      cat "$out/check"
      failed=1
    fi
  done
done

# Device memory between ranks, one a GPU; a build with NCCL has the program beside weft.
nccl_check=$(dirname "$weft")/tests/nccl_check
if [ ! -x "$nccl_check" ]; then
  echo "nccl_check: not in this build (WEFT_NCCL is off): communication of device memory was not checked"
elif "$nccl_check" >"$out/nccl" 2>&1; then
  sed 's/^/nccl_check: /' "$out/nccl"
else
  echo "nccl_check: FAILED ($?)"
  cat "$out/nccl"
  failed=1
fi

# A training run's rewards and times, from its metrics.
figures() {
  python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
for row in rows:
    keep = {k: v for k, v in row.items() if k in ("step", "reward/mean", "actor/grad_norm", "rollout_corr/max_abs", "timing_s/step")
            or (k.startswith("val/") and k.endswith("/mean@1"))}
    if len(rows) <= 2 or any(k.startswith("val/") for k in keep):
        print("  " + "  ".join(f"{k} {v:.5g}" if isinstance(v, (int, float)) else f"{k} {v}" for k, v in keep.items()))
PY
}

train() {  # NAME overrides...
  local name=$1 seconds=$SECONDS
  shift
  if "$weft" train recipes/demo.toml trainer.device=cuda trainer.resume_mode=disable "trainer.run_name=$name" "$@" >"$out/$name" 2>&1; then
    echo "$name on the GPU: $((SECONDS - seconds)) s"
    figures "runs/$name"
  else
    echo "$name on the GPU: FAILED"
    tail -n 30 "$out/$name"
    failed=1
  fi
}
python3 tools/make_arithmetic.py out/arithmetic >/dev/null
rm -rf runs/gpu_step runs/gpu_step_bf16 runs/gpu_demo
train gpu_step trainer.total_training_steps=1
train gpu_step_bf16 trainer.total_training_steps=1 actor.param_dtype=bfloat16
if [ "$demo" = yes ]; then train gpu_demo; fi
exit "$failed"
