# shellcheck shell=sh disable=SC2154
# Sourced by gpu-check.sh: the parts that are more than one program. They run in a process of their own, which its parent kills when its time is
# over; they print the lines of tests/gpu/gpu.h.

line() { printf '{"name":"%s","verdict":"%s","text":"%s"}\n' "$1" "$2" "$3"; }

# The value of a number in a line of JSON: number KEY <FILE
number() { sed -n "s/.*\"$1\":\([-0-9.]*\).*/\1/p" | head -n 1; }

run_inside() {
    work=$GPU_CHECK_WORK
    if [ "$2" != - ]; then
        exec "$checks/$2"
    fi
    "part_$1"
}

# ---- programs that are not changed ----------------------------------------------------------------------------------------------

behind_preload() { LD_PRELOAD="$build/lib/libcudamempool_preload.so" CUDAMEMPOOL_REPORT="$work/report" "$@"; }
requests_served() { number allocations <"$work/report"; }

# The outcomes of a program's cases, without what differs from run to run.
outcomes() { sed -n '/"verdict":"\(answered\|passed\|failed\)"/{s/"text":"[0-9.]* s"/"text":""/;p;}' "$1"; }

part_preload() {
    rm -f "$work/report"
    "$checks/check_unchanged" >"$work/plain"
    code=$?
    [ $code -ne 77 ] || exit 77
    sed 's/"name":"/"name":"plain driver: /' "$work/plain"
    behind_preload "$checks/check_unchanged" >"$work/served" || code=1
    sed 's/"name":"/"name":"behind the library: /' "$work/served"
    served=$(requests_served)
    if [ "${served:-0}" -gt 500 ]; then
        line "requests that the library served" answered "$served"
    else
        line "requests that the library served" failed "${served:-none}: the library was not in front of the driver"
    fi
    "$checks/ask_calls" codes attributes destroyed_context reset_device >"$work/plain" || code=1
    behind_preload "$checks/ask_calls" codes attributes destroyed_context reset_device >"$work/served" || code=1
    outcomes "$work/plain" >"$work/plain.outcomes"
    outcomes "$work/served" >"$work/served.outcomes"
    if cmp -s "$work/plain.outcomes" "$work/served.outcomes"; then
        line "codes and attributes of right and wrong calls" passed "the same with and without the library"
    else
        line "codes and attributes of right and wrong calls" failed "they differ"
        diff "$work/plain.outcomes" "$work/served.outcomes" |
            sed -n 's/^< {"name":"\([^"]*\)".*"text":"\(.*\)"}$/{"name":"plain driver: \1","verdict":"answered","text":"\2"}/p
                    s/^> {"name":"\([^"]*\)".*"text":"\(.*\)"}$/{"name":"behind the library: \1","verdict":"answered","text":"\2"}/p'
    fi
    return $code
}

# Which calls of the runtime are calls of the driver's cuMemAlloc, where the library stands.
part_runtime() {
    command -v "$python" >/dev/null || { say "no $python"; exit 77; }
    [ "$device" != simcuda ] || LD_LIBRARY_PATH="$build/simcuda:$LD_LIBRARY_PATH"
    for call in cudaMalloc cudaMallocPitch cudaMalloc3D; do
        rm -f "$work/report"*
        behind_preload "$python" "$root/tests/gpu/ask_runtime.py" $call 20 || exit $?
        served=$(requests_served)
        line "$call reaches the library" answered "${served:-0} of 20 calls"
    done
}

# ---- beside other allocators ------------------------------------------------------------------------------------------------------

tool() { "$build/bin/cudamempool" "$@"; }

free_mib() {
    tenths=$("$checks/ask_device" facts | sed -n 's/.*"name":"memory".*in all; \([0-9]*\)\.\([0-9]\).*/\1\2/p')
    echo $((${tenths:-0} * 1024 / 10))
}

# measure ALLOCATOR ARGUMENT...: benchmarks as lines, on the device that is seen first, which is the wanted one.
measure() {
    allocator=$1
    shift
    [ "$device" = simcuda ] || set -- --device cuda:0 "$@"
    tool bench --json --rounds 2 --allocator "$allocator" "$@" >"$work/measured"
    measure_code=$?
    awk '
        function value(key) {
            if (!match($0, "\"" key "\":(\"[^\"]*\"|[-+0-9.e]+)"))
                return ""
            found = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
            gsub(/"/, "", found)
            return found
        }
        function calls(which, half, late, worst) {
            if (value(half) == "")
                return ""
            return "; half of the " which " " value(half) " ns" (value(late) == "" ? "" : ", 99.9 % " value(late)) ", the worst " value(worst)
        }
        /^\{"workload"/ {
            printf "{\"name\":\"%s: %s\",", value("workload"), value("about")
            if (value("ns") == "") {
                printf "\"verdict\":\"not answerable here\",\"text\":\"%s\"}\n", value("skipped")
                next
            }
            printf "\"verdict\":\"measured\",\"value\":%s,\"unit\":\"ns\",\"text\":\"%s%s%s%s\"}\n", value("ns"), value("operation"),
                calls("calls", "p50_ns", "p999_ns", "worst_ns"),
                calls("calls that reached the driver", "driver_p50_ns", "driver_p999_ns", "driver_worst_ns"),
                (value("refused") + 0 ? "; " value("refused") " REFUSED" : "")
        }' "$work/measured"
    return $measure_code
}

# Requests alone: nothing uses the memory.
part_allocators() {
    set -- --workload pair-4k --workload pair-1m --workload pair-64m --workload mix-small-1k --workload threads-2 --workload threads-large-2 \
        --workload handoff --workload streams-64 --workload record-use --workload cross-free
    [ "$(free_mib)" -lt 16000 ] || set -- "$@" --workload mix-1k
    few=20000
    [ "$device" != simcuda ] || few=1000
    code=0
    if [ "$device" = simcuda ]; then measure cudamempool --count $few "$@"; else measure cudamempool "$@"; fi || code=$?
    measure driver-async --count $few "$@" || code=$?
    measure driver --count 200 --workload pair-4k --workload pair-1m --workload pair-64m || code=$?
    [ "$(free_mib)" -ge 40000 ] || return $code
    measure cudamempool "$root"/bench/traces/*.cmtrace.gz || code=$?
    measure driver-async "$root"/bench/traces/*.cmtrace.gz || code=$?
    return $code
}

# ---- recorded runs --------------------------------------------------------------------------------------------------------------

# Each kept trace on the device, at 1.01 times what lives at its peak, every block filled by the device.
part_replay() {
    where=$device
    [ "$device" = simcuda ] && where=sim:64GiB || where=cuda:0 # the wanted device is the first one that is seen
    free=$(free_mib)
    code=0
    for trace in "$root"/bench/traces/*.cmtrace.gz; do
        name=$(basename "$trace" .cmtrace.gz)
        peak=$(CUDAMEMPOOL_DRIVER='' tool replay --json --device sim:1TiB "$trace" | number peak_live_bytes)
        [ -n "$peak" ] || exit 3
        limit_mib=$((peak * 101 / 104857600 + 2))
        if [ "$device" != simcuda ] && [ "$limit_mib" -gt $((free - 1024)) ]; then
            line "$name" skipped "$limit_mib MiB are wanted, $free MiB are free"
            continue
        fi
        began=$(date +%s%N)
        if tool replay --json --device "$where" --conf "limit:${limit_mib}MiB" "$trace" >"$work/replayed"; then
            took=$((($(date +%s%N) - began) / 1000000))
            line "$name at 1.01 x its peak" passed "served; $took ms with all passes; $(number ns_per_call <"$work/replayed") ns a call of the library, the driver's included; $(number page_moves <"$work/replayed") pages moved; $(number peak_reserved_bytes <"$work/replayed") bytes held for $peak"
        else
            code=1
            line "$name at 1.01 x its peak" failed "refused or ended: $(number refusals <"$work/replayed") refusals"
        fi
        [ "$device" != simcuda ] || break # one is enough to rehearse
    done
    return $code
}

# ---- PyTorch --------------------------------------------------------------------------------------------------------------------

# PyTorch finds the driver's and the runtime's libraries itself; simulated ones have to be there before.
with_torch() {
    if [ "$device" = simcuda ]; then
        major=$("$python" -c 'import torch; print((torch.version.cuda or "13").split(".")[0])' 2>/dev/null)
        env "LD_PRELOAD=$build/simcuda/libcuda.so.1:$build/simcuda/libcudart.so.${major:-13}" "$@"
    else
        "$@"
    fi
}

need_python() {
    command -v "$python" >/dev/null || { say "no $python"; exit 77; }
    export CUDAMEMPOOL_LIBRARY="$build/lib/libcudamempool.so"
}

part_torch_speed() {
    need_python
    traces="$root/bench/traces/s02_7b_lora_ckpt.cmtrace.gz $root/bench/traces/s09_7b_lora_packed4096.cmtrace.gz"
    [ "$device" != simcuda ] || traces=''
    script=$root/tests/gpu/torch_speed.py
    # shellcheck disable=SC2086 # a list
    {
        with_torch "$python" "$script" native $traces || exit $?
        with_torch env PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync "$python" "$script" async $traces || exit 1
        with_torch env PYTHONPATH="$build/lib/cudamempool/python" "$python" "$script" pool $traces || exit 1
    }
}

# The same losses as without the library, on both of its ways into PyTorch.
part_training() {
    need_python
    script=$root/tests/gpu/torch_train.py
    with_torch "$python" "$script" "PyTorch as it is" native "$work/losses" || exit $?
    with_torch "$build/bin/cudamempool" run -- "$python" "$script" "under cudamempool run" pluggable "$work/losses.run" || exit 1
    with_torch env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$build/bin/cudamempool" run --report "$work/report" -- \
        "$python" "$script" "behind the preload library" native "$work/losses.preload" || exit 1
    served=$(requests_served)
    [ "${served:-0}" -gt 20 ] && verdict=answered || verdict=failed
    line "requests that the preload library served" "$verdict" "${served:-0}"
    for way in run preload; do
        if [ "$device" = simcuda ]; then
            line "losses, $way" skipped "nothing computes on the simulated device"
        elif cmp -s "$work/losses" "$work/losses.$way"; then
            line "losses, $way" passed "$(wc -l <"$work/losses") steps, the same bit by bit"
        else
            line "losses, $way" failed "not those of PyTorch as it is: from step $(cmp "$work/losses" "$work/losses.$way" | sed 's/.*line //')"
        fi
    done
}

part_libraries() {
    need_python
    if [ "$device" = simcuda ]; then
        say "the libraries have a runtime of their own, which does not start on a simulated device"
        exit 77
    fi
    script=$root/tests/gpu/torch_libraries.py
    "$build/bin/cudamempool" run -- "$python" "$script" "under cudamempool run" || exit $?
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$build/bin/cudamempool" run -- "$python" "$script" "behind the preload library" || exit 1
}
