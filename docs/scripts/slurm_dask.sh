#!/usr/bin/env bash
# A Python program with a Dask cluster made of the tasks of a job: one is the scheduler, one the program, all others are
# workers.
#
#     sbatch --ntasks=66 --cpus-per-task=2 slurm_dask.sh predictions.npz
#
# Finished tiles are in predictions.npz.journal. A job that is preempted, or that comes to the end of its time, is put
# into the queue again and goes on from there.
#SBATCH --job-name=kcalib-dask
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@90
#SBATCH --requeue
set -u
folder=$(cd "$(dirname "$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\([^ ]*\).*/\1/p')")" && pwd)
echo "$(date '+%F %T') start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_NTASKS tasks"

# Slurm signals this shell. A shell in the foreground of a command would not notice: hence `wait`.
srun --kill-on-bad-exit=1 python "$folder/slurm_dask.py" "$1" &
child=$!
signalled=0
trap 'signalled=1; kill -TERM "$child"' TERM
wait "$child"
code=$?

echo "$(date '+%F %T') exit code $code"
[ "$signalled" = 1 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
