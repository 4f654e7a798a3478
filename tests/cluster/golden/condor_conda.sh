#!/bin/sh
# One item of request.json, by its number: run.sh ITEM
set -eu
export HOME="${HOME:-$PWD}"
test -d environment || conda env create --quiet --prefix "$PWD/environment" --file env.yml
exec environment/bin/python -P -m samestep.cluster.attempt . "$1"
