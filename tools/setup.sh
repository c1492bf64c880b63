# shellcheck shell=sh disable=SC2034
# Sourced by demo.sh and test.sh: finds out what is missing on this machine and installs it with apt. Not run by itself.
# Nothing is installed when nothing is missing. Reads no file of the project.

# What the scripts say goes to stderr, so that their standard output is the result alone.
say() { printf '%s\n' "$*" >&2; }

die() {
    say ""
    say "cannot go on: $*"
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Whether a program of one line compiles and links: compiles COMPILER 'SOURCE' [FLAG...]
compiles() {
    probe_compiler=$1
    probe_source=$2
    shift 2
    have "$probe_compiler" || return 1
    probe_dir=$(mktemp -d) || die "no temporary folder can be made in ${TMPDIR:-/tmp}"
    printf '%s\n' "$probe_source" >"$probe_dir/probe.c"
    probe_status=0
    "$probe_compiler" "$probe_dir/probe.c" -o "$probe_dir/probe" "$@" >/dev/null 2>&1 || probe_status=1
    rm -rf "$probe_dir"
    return $probe_status
}

# The packages that are missing for `demo` or `test`, in the variable missing.
find_missing() {
    missing=""
    have cmake || missing="$missing cmake"
    have make || have ninja || missing="$missing make"
    compiles cc 'int main(void) { return 0; }' || missing="$missing gcc libc6-dev"
    compiles cc '#include <zlib.h>
int main(void) { return zlibVersion() == 0; }' -lz || missing="$missing zlib1g-dev"
    [ "$1" = test ] || return 0

    have pkg-config || missing="$missing pkg-config"
    compiles cc '#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
int main(void) { return 0; }' -lcmocka || missing="$missing libcmocka-dev"
    compiles cc '#include <curses.h>
int main(void) { return endwin(); }' -lncursesw || missing="$missing libncurses-dev" # for top and serve-metrics, which go without
    compiles cc '#include <microhttpd.h>
int main(void) { return MHD_get_version() == NULL; }' -lmicrohttpd || missing="$missing libmicrohttpd-dev"
    have nm || missing="$missing binutils"
    have python3 || missing="$missing python3"
    have g++ || missing="$missing g++" # public headers are compiled as C++ too, and libFuzzer links its library
    compiles cc 'int main(void) { return 0; }' -fsanitize=address,undefined || missing="$missing gcc"
    have clang || missing="$missing clang"
    have clang-format || missing="$missing clang-format"
    have valgrind || missing="$missing valgrind" # instruction counts
}

# clang's sanitizers are a package of their own in some releases; its name carries the version.
find_missing_clang_runtime() {
    missing=""
    compiles clang '#include <stddef.h>
#include <stdint.h>
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return data == 0 && size == 1; }' -fsanitize=fuzzer,address && return 0
    clang_major=$(clang -dumpversion | cut -d. -f1)
    missing="libclang-rt-$clang_major-dev"
}

install_packages() {
    have apt-get || die "these packages are missing and there is no apt-get to install them:$*
Install what gives the same on this system and run the script again."
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || die "these packages are missing; installing them needs root or sudo: $*
As root: apt-get install $*"
        as_root=sudo
        [ -t 0 ] || as_root="sudo -n" # nobody is there to type a password
        $as_root true || die "sudo does not let us in; as root: apt-get install $*"
    fi
    say "Installing with apt-get: $*"
    setup_log=$(mktemp) || die "no temporary file can be made in ${TMPDIR:-/tmp}"
    if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } \
        >"$setup_log" 2>&1; then
        tail -n 15 "$setup_log" >&2
        rm -f "$setup_log"
        die "apt-get failed (its last lines are above). Is there a network, and does this release have these packages: $*"
    fi
    rm -f "$setup_log"
}

check_cmake_version() {
    cmake_version=$(cmake --version | sed -n 's/^cmake version \([0-9]*\.[0-9]*\).*/\1/p')
    cmake_major=${cmake_version%%.*}
    cmake_minor=${cmake_version#*.}
    if [ "$cmake_major" -lt 3 ] || { [ "$cmake_major" -eq 3 ] && [ "$cmake_minor" -lt 22 ]; }; then
        die "cmake $cmake_version is too old; 3.22 or newer is needed (Debian 12, Ubuntu 22.04 and later have it)"
    fi
}

# setup demo | setup test
setup() {
    [ "$(uname -s)" = Linux ] || die "this project runs on Linux"
    find_missing "$1"
    # shellcheck disable=SC2086 # one word per package is meant
    [ -z "$missing" ] || install_packages $missing
    find_missing "$1"
    [ -z "$missing" ] || die "still missing after installation:$missing"
    if [ "$1" = test ]; then
        find_missing_clang_runtime
        [ -z "$missing" ] || install_packages "$missing"
    fi
    check_cmake_version
    jobs=$(nproc 2>/dev/null || echo 2)
}

# run_quietly LOG COMMAND...: what it prints goes to LOG and is shown only when it fails.
run_quietly() {
    quiet_log=$1
    shift
    "$@" >"$quiet_log" 2>&1 && return 0
    tail -n 40 "$quiet_log" >&2
    return 1
}
