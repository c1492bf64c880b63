#!/bin/sh
# All tests, from a bare Debian or Ubuntu machine: each stage is one build and its ctest run. The first stage that fails ends it.
#   sh tools/test.sh           everything
#   sh tools/test.sh --quick   the release build only
# CMPOOL_FUZZ_SECONDS sets how long each libFuzzer target runs (30; 600 and more for a long run).
set -eu
cd "$(dirname "$0")/.."
. tools/setup.sh

quick=no
case "${1:-}" in
"") ;;
--quick) quick=yes ;;
*)
    say "usage: sh tools/test.sh [--quick]"
    exit 2
    ;;
esac

say "libcudamempool tests: need cmake, make, gcc, g++, zlib, pkg-config, cmocka, binutils, python3, clang, clang-format and valgrind"
say "(apt packages cmake make gcc g++ libc6-dev zlib1g-dev pkg-config libcmocka-dev binutils python3 clang clang-format valgrind); installs what is missing."
setup test
sh tools/jemalloc.sh || say "(tests of what jemalloc does in the library are left out: CMake says so too)"

# Older sanitizers cannot place their shadow memory when addresses are randomised as widely as newer kernels do.
fixed_addresses=""
if setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed_addresses="setarch $(uname -m) -R"
fi

fuzz_seconds=${CMPOOL_FUZZ_SECONDS:-30}
started=$(date +%s)

# stage PRESET [CTEST ARGUMENT...]
stage() {
    preset=$1
    shift
    stage_started=$(date +%s)
    folder=build-$preset
    [ "$preset" != release ] || folder=build
    mkdir -p "$folder"
    say ""
    say "== $preset: building"
    run_quietly "$folder/build.log" cmake --preset "$preset" -DCMPOOL_TESTS=ON -DCMPOOL_FUZZ_SECONDS="$fuzz_seconds" ||
        die "stage $preset failed: configuring (see $folder/build.log)"
    run_quietly "$folder/build.log" cmake --build "$folder" -j "$jobs" || die "stage $preset failed: building (see $folder/build.log)"
    say "== $preset: testing ($(($(date +%s) - stage_started)) s so far)"
    $fixed_addresses ctest --test-dir "$folder" -j "$jobs" --output-on-failure --no-tests=error "$@" || die "stage $preset failed: testing"
    say "== $preset: done in $(($(date +%s) - stage_started)) s"
}

# Every test runs in the release build. The others run what they can find something in: validators and address sanitizer whatever mutates a
# pool or reads input, the thread sanitizer what has threads, the second compiler what depends on its code; all of it would take hours.
stage release
if [ "$quick" = no ]; then
    stage debug -LE 'static|cli|fuzz|mutations'
    stage asan -LE 'static|cli|mutations' -E pool_faults
    stage tsan -L 'threads|process'
    stage clang-release -L 'unit|simcuda|integration|examples' -E 'pool_faults|heap_property'
    stage fuzz -L fuzz
fi
say ""
say "All stages passed in $(($(date +%s) - started)) s."
