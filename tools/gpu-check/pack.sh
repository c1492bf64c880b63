# shellcheck shell=sh disable=SC2154
# Sourced by gpu-check.sh: what another machine needs of a built tree, libraries that it may lack included, as one archive; and those
# libraries brought to the programs there, only where the machine has none of its own.

# Shared libraries that a program needs beside the C library and this project's own.
libraries_of() {
    ldd "$1" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | grep -v '/\(libc\|libm\|libdl\|librt\|libpthread\|libgcc_s\|libcudamempool\|ld-\)[^/]*$'
}

pack_tree() {
    stage=$(mktemp -d "${TMPDIR:-/tmp}/gpu-check.XXXXXX") || exit 2
    trap 'rm -rf "$stage"' EXIT
    top=$stage/cudamempool-gpu-check
    if mkdir -p "$top/tools" "$top/tests/gpu" "$top/bench/traces" "$top/build/bin" "$top/build/lib" "$top/build/simcuda" "$top/build/tests/gpu" \
        "$top/build/gpu-check-lib" &&
        cp -R "$root/tools/gpu-check.sh" "$root/tools/gpu-check" "$top/tools" &&
        cp "$root"/tests/gpu/*.py "$top/tests/gpu" &&
        cp "$root"/bench/traces/*.gz "$top/bench/traces" &&
        grep '^\(CMAKE_BUILD_TYPE\|CMPOOL_VALIDATE\|CMPOOL_SANITIZE\):' "$build/CMakeCache.txt" >"$top/build/CMakeCache.txt" &&
        cp "$build/bin/cudamempool" "$top/build/bin" &&
        cp -P "$build"/lib/*.so* "$top/build/lib" &&
        cp -R "$build/lib/cudamempool" "$top/build/lib" &&
        cp -P "$build"/simcuda/*.so* "$top/build/simcuda" &&
        cp "$build"/tests/gpu/check_* "$build"/tests/gpu/ask_* "$top/build/tests/gpu" &&
        libraries_of "$build/bin/cudamempool" | xargs -r -I '{}' cp '{}' "$top/build/gpu-check-lib" &&
        tar -czf "$1" -C "$stage" cudamempool-gpu-check; then
        say "gpu-check: made $1; there: tar -xzf $(basename "$1") && sh cudamempool-gpu-check/tools/gpu-check.sh"
    else
        say "gpu-check: $1 could not be made"
        exit 1
    fi
}

# Into $work/lib, which the programs look through last.
bring_missing_libraries() {
    mkdir -p "$work/lib"
    for _ in 1 2 3; do # a library that was brought may itself miss some
        LD_LIBRARY_PATH=$build/lib:$work/lib ldd "$build/bin/cudamempool" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' |
            while read -r missing; do
                [ ! -e "$build/gpu-check-lib/$missing" ] || cp "$build/gpu-check-lib/$missing" "$work/lib"
            done
    done
}
