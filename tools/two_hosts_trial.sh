#!/bin/bash
# Ranks on two hosts, which are two network namespaces of this machine with a cable (veth) between them and a hostname each; mpirun
# reaches the second through a script in place of ssh.
#   tools/two_hosts_trial.sh build/weft build/tests/comm_rank      as root, with iproute2 and Open MPI
# 1. all collectives give the bits that threads give; 2. `weft train` writes the metrics that thread ranks write; 3. the cable is pulled:
# each host names the rank of the other that does not come. Prints "two hosts: passed" and exits 0 when all is so; where the machine
# forbids namespaces it says so and exits 2.
set -euo pipefail
weft=$(readlink -f "${1:?usage: two_hosts_trial.sh PATH_OF_WEFT PATH_OF_COMM_RANK}")
comm_rank=$(readlink -f "${2:?usage: two_hosts_trial.sh PATH_OF_WEFT PATH_OF_COMM_RANK}")
source "$(dirname "$0")/trial_recipe.sh"
[ "$(id -u)" = 0 ] || { echo "two hosts: NOT RUN: needs root"; exit 2; }
for program in ip unshare mpirun; do
  command -v $program > /dev/null || { echo "two hosts: NOT RUN: $program is missing"; exit 2; }
done

dir=$(mktemp -d /tmp/weft-hosts-XXXXXX)
here=wefta$$ there=weftb$$ net=10.213.7
finish() {
  local code=$?
  for name in $here $there; do
    ip netns pids $name 2> /dev/null | xargs -r kill -9 2> /dev/null || true
    ip netns del $name 2> /dev/null || true
  done
  [ $code = 0 ] || tail -n 30 "$dir"/*.log 2> /dev/null || true
  rm -rf "$dir"
  exit $code
}
trap finish EXIT
fail() { echo "two hosts: $*"; exit 1; }

for name in $here $there; do
  ip netns add $name || { echo "two hosts: NOT RUN: this machine forbids network namespaces"; exit 2; }
  ip -n $name link set lo up
done
ip link add va$$ netns $here type veth peer name vb$$ netns $there || { echo "two hosts: NOT RUN: no veth devices here"; exit 2; }
ip -n $here addr add $net.1/24 dev va$$ && ip -n $here link set va$$ up
ip -n $there addr add $net.2/24 dev vb$$ && ip -n $there link set vb$$ up

# on NAMESPACE HOSTNAME COMMAND...
on() {
  local space=$1 name=$2
  shift 2
  ip netns exec $space unshare --uts sh -c 'hostname "$0"; exec "$@"' $name "$@"
}
# In place of ssh: AGENT HOST COMMAND...
cat > "$dir/agent" << AGENT
#!/bin/sh
host=\$1; shift
[ "\$host" = $net.2 ] || { echo "no host \$host"; exit 1; }
exec ip netns exec $there unshare --uts sh -c "hostname weft-b; \$*"
AGENT
chmod +x "$dir/agent"
mpi() {  # ranks a host, command...
  local each=$1
  shift
  on $here weft-a timeout 120 mpirun --allow-run-as-root --quiet --bind-to none --host $net.1:$each,$net.2:$each -n $((2 * each)) \
     --mca plm rsh --mca plm_rsh_agent "$dir/agent" --mca btl tcp,self --mca btl_tcp_if_include $net.0/24 \
     --mca oob_tcp_if_include $net.0/24 "$@"
}
received() { ip netns exec $there cat /sys/class/net/vb$$/statistics/rx_bytes; }

mpi 1 hostname > "$dir/names.log" 2>&1 || fail "mpirun does not reach both"
[ "$(sort "$dir/names.log" | tr '\n' ' ')" = "weft-a weft-b " ] || fail "not two hosts: $(cat "$dir/names.log")"

# ---- 1. The same bits
for each in 1 2; do
  threads=$("$comm_rank" hash $((2 * each)) background)
  before=$(received)
  hosts=$(mpi $each "$comm_rank" hash $((2 * each)) background 2> "$dir/hash.log")
  [ "$threads" = "$hosts" ] || fail "$((2 * each)) ranks: threads say '$threads', hosts say '$hosts'"
  echo "two hosts: $((2 * each)) ranks: $hosts, as threads; $((($(received) - before) >> 20)) MB over the cable"
  [ $((($(received) - before) >> 20)) -ge 1 ] || fail "nothing went over the cable"
done

# ---- 2. A run
trial_recipe "$dir"
cat >> "$dir/recipe.toml" << TOML
runs_dir = "$dir/runs"
threads = 1
TOML
"$weft" train "$dir/recipe.toml" actor.mesh=fsdp=2 trainer.total_training_steps=3 trainer.run_name=threads > "$dir/threads.log" 2>&1
mpi 1 "$weft" train "$dir/recipe.toml" actor.mesh=fsdp=-1 trainer.total_training_steps=3 trainer.run_name=hosts > "$dir/hosts.log" 2>&1 ||
  fail "weft train on two hosts fails"
grep -q "started on weft-b" "$dir/runs/hosts/logs/rank_1.log" || fail "rank 1 ran on another host"
python3 - "$dir/runs" << 'PYTHON' || fail "the metrics differ"
import json, sys
def rows(run):
    keep = lambda k: k != "wall_time" and not k.startswith(("timing_s/", "perf/", "comm/"))
    return [{k: v for k, v in json.loads(line).items() if keep(k)} for line in open(f"{sys.argv[1]}/{run}/metrics.jsonl")]
a, b = rows("threads"), rows("hosts")
assert len(a) == 3 and a == b, (a, b)
PYTHON
cmp "$dir/runs/threads/checkpoints/global_step_3/state/master.safetensors" "$dir/runs/hosts/checkpoints/global_step_3/state/master.safetensors" ||
  fail "the weights differ"
echo "two hosts: weft train, 3 steps: metrics and weights as from thread ranks, bit for bit"

# ---- 3. The cable
mpi 1 "$weft" train "$dir/recipe.toml" actor.mesh=fsdp=-1 trainer.total_training_steps=1000000 trainer.run_name=cable comm.timeout=3 \
    comm.heartbeat=2 > "$dir/cable.log" 2>&1 &
for _ in $(seq 300); do [ -s "$dir/runs/cable/metrics.jsonl" ] && break; sleep 0.1; done
[ -s "$dir/runs/cable/metrics.jsonl" ] || fail "the run with the cable does not start"
ip -n $here link set va$$ down
for rank in 0 1; do
  for _ in $(seq 200); do grep -q "other hosts did not come" "$dir/runs/cable/logs/rank_$rank.log" && break; sleep 0.1; done
  grep -q "rank $((1 - rank)) on other hosts did not come to" "$dir/runs/cable/logs/rank_$rank.log" || fail "rank $rank does not name its peer"
done
grep -h "other hosts did not come" "$dir/runs/cable/logs/"*.log
echo "two hosts: passed"
