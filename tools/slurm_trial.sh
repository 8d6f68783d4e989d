#!/bin/bash
# A Slurm of one node on this machine, and a weft job on it: two ranks through srun --mpi=pmix, stopped by a signal, gone on with.
#   apt-get install slurm-wlm munge && tools/slurm_trial.sh build/weft
# As root. Everything lies in a temporary directory; the daemons (munged, slurmctld, slurmd) are this script's own and end with it.
# docs/slurm.md says what a real cluster needs. Prints "slurm trial: passed" and exits 0 when every step did what it should.
set -euo pipefail
weft=$(readlink -f "${1:?usage: slurm_trial.sh PATH_OF_WEFT}")
source "$(dirname "$0")/trial_recipe.sh"
for program in munged slurmctld slurmd sbatch srun scancel; do
  command -v "$program" > /dev/null || { echo "slurm trial: $program is missing: apt-get install slurm-wlm munge"; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "slurm trial: needs root"; exit 2; }

dir=$(mktemp -d /tmp/weft-slurm-XXXXXX)
chmod 755 "$dir"
pids=()
finish() {
  local code=$?
  scancel --quiet --user=root 2> /dev/null || true
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  [ -f "$dir/munged.pid" ] && kill "$(cat "$dir/munged.pid")" 2> /dev/null || true
  wait "${pids[@]}" 2> /dev/null || true  # they write their state when they end
  [ "$code" = 0 ] || tail -n 20 "$dir"/*.log "$dir"/out.* 2> /dev/null || true
  rm -rf "$dir"
  exit $code
}
trap finish EXIT
fail() { echo "slurm trial: $*"; exit 1; }

# ---- The cluster
host=$(hostname -s)
mkdir -p "$dir/state" "$dir/spool" "$dir/munge"
dd if=/dev/urandom of="$dir/munge/key" bs=1024 count=1 status=none
chmod 700 "$dir/munge" && chmod 400 "$dir/munge/key"
munged --force --key-file="$dir/munge/key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" --log-file="$dir/munged.log" \
       --seed-file="$dir/munge/seed"
cat > "$dir/slurm.conf" << CONF
ClusterName=trial
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=pmix
KillWait=20
JobRequeue=1
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=trial Nodes=$host Default=YES MaxTime=60 State=UP
CONF
export SLURM_CONF="$dir/slurm.conf"
slurmctld -D > "$dir/slurmctld.out.log" 2>&1 & pids+=($!)
slurmd -D > "$dir/slurmd.out.log" 2>&1 & pids+=($!)
for _ in $(seq 60); do
  sinfo --noheader --format=%T 2> /dev/null | grep -q idle && break
  sleep 0.5
done
sinfo --noheader --format=%T | grep -q idle || fail "the node does not come up"
echo "slurm trial: Slurm $(sinfo --version | cut -d' ' -f2), node $host is idle"

# ---- The job
trial_recipe "$dir"
cat >> "$dir/recipe.toml" << TOML
save_samples = false
TOML
# As in docs/slurm.md: the batch shell gets USR1, passes it on, and asks for the job to be queued again where weft exits with 75.
job() {  # run name, steps
  cat << SCRIPT
#!/bin/bash
#SBATCH --ntasks=2 --job-name=$1 --output=$dir/out.$1 --open-mode=append --requeue
echo "start \$SLURM_RESTART_COUNT"
$weft doctor | grep -E "launcher|cores"
srun --mpi=pmix $weft train $dir/recipe.toml actor.mesh=fsdp=-1 trainer.runs_dir=$dir/runs trainer.run_name=$1 trainer.total_training_steps=$2 &
trap 'kill -USR1 %1' USR1
code=255
until wait %1; code=\$?; [ \$code -le 128 ]; do :; done
echo "weft: exit code \$code"
[ \$code = 75 ] && [ -e $dir/requeue ] && scontrol requeue \$SLURM_JOB_ID
exit \$code
SCRIPT
}
wait_for() {  # seconds, what, command...
  local tries=$(($1 * 5)) what=$2
  shift 2
  for _ in $(seq $tries); do "$@" && return; sleep 0.2; done
  fail "$what does not happen"
}
state_is() { [ "$(scontrol show job "$1" 2> /dev/null | grep -o "JobState=[A-Z]*")" = "JobState=$2" ]; }
says() { grep -q "$2" "$dir/out.$1"; }
has_steps() { [ -s "$dir/runs/$1/metrics.jsonl" ]; }

job whole 3 > "$dir/whole.sh"
id=$(sbatch --parsable "$dir/whole.sh")
wait_for 120 "the end of a job of 3 steps" state_is "$id" COMPLETED
grep -q "srun started 2 (SLURM_STEP_NUM_TASKS = 2), this is rank 1" "$dir/runs/whole/logs/rank_1.log" || fail "rank 1 does not know srun"
echo "slurm trial: 2 ranks by srun --mpi=pmix ran 3 steps"

# A signal to the tasks; no requeue: the same script is submitted again.
job tasks 1000000 > "$dir/tasks.sh"
id=$(sbatch --parsable "$dir/tasks.sh")
wait_for 120 "the first step" has_steps tasks
scancel --signal=USR1 "$id"
wait_for 60 "exit code 75 after scancel --signal=USR1" says tasks "weft: exit code 75"
steps=$(sed 's/.*_//' "$dir/runs/tasks/checkpoints/latest")
job tasks $((steps + 2)) > "$dir/tasks.sh"
id=$(sbatch --parsable "$dir/tasks.sh")
wait_for 120 "the end of the job that goes on" state_is "$id" COMPLETED
says tasks "going on from .*(step $steps)" || fail "the second job does not go on from step $steps"
echo "slurm trial: scancel --signal=USR1 led to exit 75 after step $steps; the job submitted again went on from there"

# A signal to the batch shell alone, as --signal=B:USR1@120 sends it; the job queues itself again.
touch "$dir/requeue"
job shell 1000000 > "$dir/shell.sh"
id=$(sbatch --parsable "$dir/shell.sh")
wait_for 120 "the first step" has_steps shell
scancel --batch --signal=USR1 "$id"
wait_for 60 "exit code 75 after a signal to the batch shell" says shell "weft: exit code 75"
rm "$dir/requeue"
wait_for 240 "the requeued job" says shell "going on from"
says shell "^start 1" || fail "the job was not requeued"
scancel "$id"
wait_for 60 "the end of the requeued job" state_is "$id" CANCELLED
grep -q "stopped by SIGTERM" "$dir/runs/shell/logs/rank_0.log" || fail "scancel's SIGTERM did not stop it with a checkpoint"
echo "slurm trial: USR1 to the batch shell led to exit 75 and a requeued job that went on; plain scancel stopped it with a checkpoint"
echo "slurm trial: passed"
