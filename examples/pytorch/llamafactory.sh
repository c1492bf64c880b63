#!/bin/sh
# LLaMA-Factory on the pool by the environment alone: sh llamafactory.sh CONFIG.yaml
# `cudamempool run` hands all this on to each process that llamafactory-cli starts, torchrun's ranks too.
set -eu
export CUDAMEMPOOL_CONF="${CUDAMEMPOOL_CONF:-headroom:512MiB}" # memory left for NCCL and cuBLAS, which take theirs from the driver
exec cudamempool run -- llamafactory-cli train "$1"
