#!/usr/bin/env bash
# The command with exact sums over all pairs, on the MPI ranks of a job.
#
#     sbatch --ntasks=64 --cpus-per-task=2 slurm_mpi.sh predictions.npy
#
# Finished tiles are in predictions.npy.journal. A job that is preempted, or that comes to the end of its time, is put
# into the queue again and goes on from there; so does one whose node fails. Further options of the command are in the
# environment: KCALIB_OPTIONS="--method spectrum". How srun and MPI find each other depends on the MPI that mpi4py was
# built with: KCALIB_MPI=pmi2 for MPICH, pmix for Open MPI (`srun --mpi=list`).
#SBATCH --job-name=kcalib-mpi
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@90
#SBATCH --requeue
set -u
predictions=$1
echo "$(date '+%F %T') start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_NTASKS ranks"

# Slurm signals this shell. A shell in the foreground of a command would not notice: hence `wait`.
# shellcheck disable=SC2086 # options are words
srun --mpi="${KCALIB_MPI:-pmi2}" --kill-on-bad-exit=1 python -m mpi4py -m kcalib evaluate "$predictions" --parallel mpi \
  --checkpoint "$predictions.journal" --resume --threads "${SLURM_CPUS_PER_TASK:-1}" ${KCALIB_OPTIONS:-} &
child=$!
signalled=0
trap 'signalled=1; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
wait "$child"
code=$?
if [ "$signalled" = 1 ]; then # that ended `wait`, not the ranks, which end by the signal
  wait "$child"
  code=75
fi

echo "$(date '+%F %T') exit code $code"
[ "$code" = 75 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
