#!/bin/sh
# What can only be seen on a GPU, in at most eight minutes, on a machine with a GPU, its driver and nothing else (Python with PyTorch for the
# parts about PyTorch): the library on the device, what the driver does and costs, figures beside other allocators, a training loop.
#   sh tools/gpu-check.sh [--build DIR] [--device cuda:N|simcuda] [--only PART,PART...] [--budget SECONDS] [--patience N]
#       [--python PYTHON] [--json FILE]        --patience: N times as long for each part, on a slow machine
#   sh tools/gpu-check.sh --list                  the parts, with the seconds that each may take
#   sh tools/gpu-check.sh --pack FILE.tar.gz      what such a machine needs, of a built tree: unpack it there and run its tools/gpu-check.sh
# Prints one table and writes gpu-check.json. `--device simcuda` rehearses the same on the simulated device: nothing it says holds for a GPU.
# Exit status: 0 nothing failed (parts that were skipped are shown), 1 something did, 2 wrong usage, 77 no GPU. Never needs root.
set -u

# name, seconds it may take, program of tests/gpu; "-" is a function in gpu-check/parts.sh. All together stay below 480 seconds.
parts='
device      10 ask_device
blocks      20 check_blocks
order       20 check_order
graphs      20 check_graphs
preload     20 -
mapping     40 ask_mapping
alias       25 ask_alias
calls       20 ask_calls
captures    20 ask_captures
sharing     25 ask_sharing
runtime     20 -
allocators  35 -
replay      35 -
torch_speed 55 -
training    70 -
libraries   35 -
'

self=$0
root=$(cd "$(dirname "$self")/.." && pwd) || exit 2
say() { printf '%s\n' "$*" >&2; }
usage() {
    say "gpu-check: $*"
    sed -n '4,7s/^# *//p' "$self" >&2
    exit 2
}

. "$root/tools/gpu-check/parts.sh"
. "$root/tools/gpu-check/table.sh"
. "$root/tools/gpu-check/pack.sh"

# ---- arguments ------------------------------------------------------------------------------------------------------------------

build=$root/build device=cuda:0 only='' budget='' patience=1 python=${PYTHON:-python3} json=gpu-check.json inside=''
command="sh $self $*"
while [ $# -gt 0 ]; do
    case $1 in
    --list)
        printf '%s\n' "$parts" | sed '/^$/d; s/ [^ ]*$//'
        exit 0
        ;;
    --build | --device | --only | --budget | --patience | --python | --json | --pack | --inside)
        [ $# -ge 2 ] || usage "$1 needs a value"
        value=$2
        case $1 in
        --build) build=$(cd "$value" 2>/dev/null && pwd) || usage "there is no folder $value" ;;
        --device) device=$value ;;
        --only) only=$value ;;
        --budget) budget=$value ;;
        --patience) patience=$value ;;
        --python) python=$value ;;
        --json) json=$value ;;
        --pack) pack=$value ;;
        --inside) inside=$value ;;
        esac
        shift 2
        ;;
    *) usage "what is $1?" ;;
    esac
done
case $budget$patience in
*[!0-9]*) usage "--budget wants seconds, --patience a whole number" ;;
esac
[ "${patience:-0}" -gt 0 ] || usage "--patience wants a number above 0"
case $device in
simcuda | cuda:[0-9] | cuda:[0-9][0-9]) ;;
*) usage "--device wants cuda:N or simcuda" ;;
esac
for name in $(printf '%s' "$only" | tr ',' ' '); do
    printf '%s\n' "$parts" | grep -q "^$name " || usage "there is no part $name; --list shows them"
done
[ -d "$build/tests/gpu" ] || usage "no built tree in $build: it needs a build with CMPOOL_TESTS=ON"
checks=$build/tests/gpu

if [ -n "${pack:-}" ]; then
    pack_tree "$pack"
    exit 0
fi
if [ -n "$inside" ]; then # one part, under the timeout of the process that started it
    run_inside "$inside" "$(printf '%s\n' "$parts" | sed -n "s/^$inside  *[0-9]*  *//p")"
    exit $?
fi

# ---- surroundings ---------------------------------------------------------------------------------------------------------------

work=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
# What a user has set for other programs must not decide here.
for name in $(env | sed -n 's/^\(CUDAMEMPOOL_[A-Z_0-9]*\|SIMCUDA_[A-Z_]*\|PYTORCH_[A-Z_]*\|CMPOOL_[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done
unset LD_PRELOAD CUDA_LAUNCH_BLOCKING CUDA_INJECTION64_PATH
export GPU_CHECK_WORK="$work" GPU_CHECK_DEVICE="$device" PYTHONDONTWRITEBYTECODE=1
bring_missing_libraries
export LD_LIBRARY_PATH="$build/lib:$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ "$device" = simcuda ]; then
    say "*** SIMULATED DEVICE: this is a rehearsal. Kernels are not executed and NO FIGURE HOLDS FOR A GPU. ***"
    export CUDAMEMPOOL_DRIVER="$build/simcuda/libcuda.so.1" SIMCUDA_DEVICE=sim:1GiB,content,kernels=accept,order=random:5,devices=2
else
    export CMPOOL_GPU_REAL=1
    number=${device#cuda:}
    if [ "$number" -gt 0 ]; then # the wanted device becomes number 0, the others stay behind it
        [ -z "${CUDA_VISIBLE_DEVICES:-}" ] || usage "CUDA_VISIBLE_DEVICES is set: let it choose the device, or --device"
        CUDA_VISIBLE_DEVICES=$number
        for other in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
            [ "$other" = "$number" ] || CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES,$other
        done
        export CUDA_VISIBLE_DEVICES
    fi
fi

# ---- the parts ------------------------------------------------------------------------------------------------------------------

started=$(date +%s)
budget=${budget:-$((470 * patience))}
date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
: >"$work/summary"

# One part in a process of its own, killed when its time is over. Its lines, what it had to complain, and a line of the summary.
run_part() {
    left=$((budget - ($(date +%s) - started)))
    limit=$(($2 * patience))
    [ "$left" -ge "$limit" ] || limit=$left
    if [ "$limit" -lt 3 ]; then
        : >"$work/$1.lines"
        echo "$1 skipped 0 $limit there was no time left for it" >>"$work/summary"
        return
    fi
    say "gpu-check: $1 (at most $limit s)"
    part_started=$(date +%s)
    timeout -k 3 "$limit" sh "$self" --build "$build" --device "$device" --python "$python" --inside "$1" >"$work/$1.out" 2>"$work/$1.err"
    code=$?
    seconds=$(($(date +%s) - part_started))
    grep '^{.*}$' "$work/$1.out" >"$work/$1.lines" || :
    echo "$1 $(judge "$1" $code "$limit") $seconds $limit $(reason "$1" $code "$limit")" >>"$work/summary"
}

printf '%s\n' "$parts" | sed '/^$/d' >"$work/parts"
while read -r name limit _; do
    case ",$only," in
    ,, | *,"$name",*) ;;
    *) [ "$name" = device ] || continue ;; # the head of the table is always wanted
    esac
    run_part "$name" "$limit" </dev/null
    if [ "$name" = device ] && grep -q '^device skipped' "$work/summary"; then
        cat "$work/device.err" >&2
        exit 77
    fi
done <"$work/parts"

print_table
if ! write_json >"$work/json" || ! cp "$work/json" "$json"; then
    say "gpu-check: $json cannot be written"
    exit 1
fi
say "gpu-check: $(count passed) parts passed, $(count failed) failed, $(count skipped) skipped, in $(($(date +%s) - started)) s; see $json"
[ "$device" != simcuda ] || say "*** SIMULATED DEVICE: a rehearsal; no figure holds for a GPU. ***"
[ "$(count failed)" -eq 0 ]
