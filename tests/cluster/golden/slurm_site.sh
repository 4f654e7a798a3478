#!/bin/sh
#SBATCH --job-name=digits-2-ranks
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gres=gpu:2
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
#SBATCH --partition=gpu
#SBATCH --account=physics-1
#SBATCH --qos=short
#SBATCH --constraint="a100|h100"
#SBATCH --comment="say \"hi\" \\o/ to $HOME & #ada; é"
#SBATCH --exclusive

exec /opt/env/bin/python -P -m samestep.cluster.attempt . 0
