#!/bin/sh
#SBATCH --job-name=digits-2-ranks
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120

exec /opt/env/bin/python -P -m samestep.cluster.attempt . 0
