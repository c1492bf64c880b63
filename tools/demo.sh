#!/bin/sh
# From a bare Debian or Ubuntu machine to the main job: build the library, then serve the memory requests of a real training run
# (Qwen2.5-7B, LoRA, gradient checkpointing) on a simulated 24 GiB device. Needs no GPU and no CUDA toolkit.
# Arguments go to `cudamempool replay` after the ones below.
set -eu
cd "$(dirname "$0")/.."
. tools/setup.sh

say "libcudamempool demo: needs cmake, make, gcc and zlib (apt packages cmake make gcc libc6-dev zlib1g-dev); installs what is missing."
setup demo

mkdir -p build
say "Building into build/ ..."
run_quietly build/demo.log cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DCMPOOL_TESTS=OFF || die "configuring failed; see build/demo.log"
run_quietly build/demo.log cmake --build build -j "$jobs" || die "the build failed; see build/demo.log"

trace=bench/traces/s02_7b_lora_ckpt.cmtrace.gz
say "Replaying six training steps ($trace) on a simulated 24 GiB device, then looking for the smallest device they run on ..."
exec build/bin/cudamempool replay --device sim:24GiB --find-capacity "$@" "$trace"
