#!/usr/bin/env bash
# One state from those of all tasks of slurm_part.sh, and what it says.
#SBATCH --job-name=kcalib-merge
#SBATCH --output=%x-%j.log
set -eu
states=$1 all=$2
kcalib merge "$states"/*.kcalib -o "$all"
kcalib show "$all"
