#!/usr/bin/env bash
# A sweep as a SLURM array job, one GPU and one shard a task, and a job that merges them when all have ended.
#
#   tools/slurm_sweep.sh CONFIG SHARDS OUT --seed N [other flags of bench.py]
#   SBATCH_PARTITION=h100 tools/slurm_sweep.sh configs/full.yaml 8 results/full-h100 --seed 0
#
# sbatch reads partition, account and time limit from SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT; SBATCH_GPUS asks
# for another GPU than any (h100:1). All shards must come from one GPU model, or merge refuses them. A task that was
# preempted and requeued completes its record. The merged record is OUT/merged/run.jsonl. PYTHON: default .venv/bin/python
# of the checkout. Paths are relative to the working directory.
set -euo pipefail
if [ $# -lt 5 ] || ! [[ " ${*:4} " =~ " --seed " ]]; then
  sed -n 's/^#   //p' "$0" >&2
  echo "error: give CONFIG, SHARDS, OUT and --seed N, which all shards need to have the same inputs" >&2
  exit 2
fi
config=$1 shards=$2 out=$3
root=$(cd "$(dirname "$0")/.." && pwd)
if [ ! -f "$config" ] || ! [[ $shards =~ ^[1-9][0-9]*$ ]]; then
  echo "error: $config is no file, or $shards no number of shards" >&2
  exit 2
fi
mkdir -p "$out"
printf -v run '%q ' "${PYTHON:-$root/.venv/bin/python}" "$root/bench.py"
printf -v sweep '%q ' run "$config" "${@:4}" --no-plots
printf -v folder '%q' "$out"

task="shard=$folder/shard-\$SLURM_ARRAY_TASK_ID
if [ -s \"\$shard/run.jsonl\" ]; then set -- --resume \"\$shard\"; else set -- --out \"\$shard\"; fi
exec $run$sweep--shard \$SLURM_ARRAY_TASK_ID/$shards \"\$@\""
array=$(sbatch --parsable --job-name=metadata-bench --array="1-$shards" --gpus="${SBATCH_GPUS:-1}" --requeue \
  --output="$out/shard-%a.txt" --wrap="$task")

# After any end: a failed cell is a result, too, and merge names the shards that are missing.
merge="exec $run merge $folder/shard-*/ --out $folder/merged"
sbatch --parsable --job-name=metadata-bench-merge --dependency="afterany:${array%%;*}" --output="$out/merge.txt" \
  --wrap="$merge"
