#!/bin/sh
#SBATCH --job-name=digits-2-ranks
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:a100:2
#SBATCH --mem=24576M
#SBATCH --time=01:30:00
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@300

exec /opt/env/bin/python -P -m samestep.cluster.attempt . 0
