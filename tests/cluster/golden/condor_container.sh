#!/bin/sh
# One item of request.json, by its number: run.sh ITEM
set -eu
export HOME="${HOME:-$PWD}"
exec python3 -P -m samestep.cluster.attempt . "$1"
