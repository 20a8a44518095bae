#!/usr/bin/env bash
# A state for each file of predictions: task k of an array job reads file k of a folder.
#
#     tasks=$(ls predictions | wc -l)
#     job=$(sbatch --parsable --array=0-$((tasks - 1)) slurm_part.sh predictions states)
#     sbatch --dependency=afterok:$job slurm_merge.sh states all.kcalib
#
# All tasks take the bandwidth of the kernel from the first file, so that their states can be merged. Further options of
# `kcalib update` are in the environment: KCALIB_OPTIONS="--columns 512".
# A task that is preempted, or that comes to the end of its time, saves its state, exits with 75 and is put into the
# queue again; it goes on from there. So does one whose node fails, from its last save.
#SBATCH --job-name=kcalib-part
#SBATCH --output=%x-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@90
#SBATCH --requeue
set -u
predictions=$1 states=$2 task=$SLURM_ARRAY_TASK_ID
files=("$predictions"/*)
mkdir -p "$states"
echo "$(date '+%F %T') task $task, start $((${SLURM_RESTART_COUNT:-0} + 1)): ${files[task]}"

# Slurm signals this shell, which hands the signal on. A shell in the foreground of a command would not: hence `wait`.
# `--part` numbers the rows of each task apart from those of the others; `--resume` skips those that the state has.
# shellcheck disable=SC2086 # options are words
kcalib update "$states/$task.kcalib" "${files[task]}" --part "$task" --resume --bandwidth-of "${files[0]}" \
  --threads "${SLURM_CPUS_PER_TASK:-1}" ${KCALIB_OPTIONS:-} &
child=$!
signalled=1
trap 'signalled=1; kill -TERM "$child" 2> /dev/null' TERM
while [ "$signalled" = 1 ]; do # a signal ends `wait`, not the command
  signalled=0
  wait "$child"
  code=$?
done

echo "$(date '+%F %T') task $task, exit code $code"
if [ "$code" = 75 ] || [ "$code" = 143 ]; then # saved but not done, or ended by a second signal after that
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$task"
fi
exit "$code"
