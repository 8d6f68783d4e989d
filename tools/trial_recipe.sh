# Sourced by the trials of launchers: trial_recipe DIR writes DIR/train.jsonl and DIR/recipe.toml, a run of seconds on the shipped model. The
# recipe ends inside of [trainer], so that a trial may append keys of its own.
trial_recipe() {
  local dir=$1 root
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  for i in $(seq 16); do echo "{\"prompt\": \"$i+$((i * 3))=\", \"answer\": \"$((i * 4))\"}"; done > "$dir/train.jsonl"
  cat > "$dir/recipe.toml" << TOML
[model]
path = "$root/models/tiny-moe"
[data]
train_files = ["$dir/train.jsonl"]
train_batch_size = 4
max_prompt_length = 16
max_response_length = 6
[rollout]
n = 4
[actor.optim]
lr = 1e-4
[reward]
funcs = ["last_number"]
[trainer]
logger = ["console"]
TOML
}
