#!/bin/sh
# One item of request.json, by its number: run.sh ITEM
set -eu
export HOME="${HOME:-$PWD}"
test -d environment || { mkdir environment && tar -xzf 'my env.tar.gz' -C environment; }
test ! -x environment/bin/conda-unpack || environment/bin/conda-unpack
exec environment/bin/python -P -m samestep.cluster.attempt . "$1"
