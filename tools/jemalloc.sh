#!/bin/sh
# Gets jemalloc's source from this machine's own Debian or Ubuntu archive and builds the static library that libcudamempool has inside:
#   sh tools/jemalloc.sh [FOLDER]     into FOLDER (third_party/jemalloc); does nothing where that has it already
# Needs apt-get, cmake (to unpack), make and a C compiler; no root. The packaged library will not do: its thread-local storage is of a kind
# that cannot be loaded into a program that has started (Python, say). Exit status: 0 there, 1 it cannot be had (one line says why). The
# project builds without it too: small pinned blocks then come from the library's own heap.
set -u
cd "$(dirname "$0")/.." || exit 1

folder=${1:-third_party/jemalloc}
prefix=cmi_je_

give_up() {
    printf '%s\n' "jemalloc: $*; building goes on without it" >&2
    exit 1
}

[ ! -f "$folder/lib/libjemalloc_pic.a" ] || exit 0
for program in apt-get cmake make cc; do
    command -v $program >/dev/null 2>&1 || give_up "there is no $program here"
done
mkdir -p "$folder" || give_up "$folder cannot be made"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d "$folder/work.XXXXXX") || give_up "no folder can be made in $folder"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# apt is given a state of its own: the sources of the packages that this machine takes its packages from. Both forms of its lists say with
# one word whether packages (deb) or their sources (deb-src) are meant; entries that say deb-src already are doubled, which does no harm.
mkdir -p "$work/sources" "$work/lists/partial" "$work/cache/archives/partial"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -f "$list" ] || continue
    sed -e 's/^[[:space:]]*deb\([[:space:]]\)/deb-src\1/' -e 's/^[Tt]ypes:.*/Types: deb-src/' "$list" >"$work/sources/${list##*/}"
done
apt() {
    limit=""
    ! command -v timeout >/dev/null 2>&1 || limit="timeout 240"
    $limit apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" -o Dir::State::Lists="$work/lists" \
        -o Dir::Cache="$work/cache" -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=30 \
        -o Acquire::https::Timeout=30 -o APT::Sandbox::User=root "$@" >>"$work/log" 2>&1 </dev/null
}
apt update || : # a list that cannot be had matters only if the source is not in the others
(cd "$work" && apt source --download-only jemalloc) || give_up "apt-get knows no source of it ($(tail -n 1 "$work/log"))"

original=$(find "$work" -maxdepth 1 -name 'jemalloc_*.orig.tar.*' ! -name '*.asc' | head -n 1)
[ -n "$original" ] || give_up "the source package has no original archive"
(cd "$work" && mkdir source && cd source && cmake -E tar xf "$original") || give_up "its archive cannot be unpacked"
configure=$(find "$work/source" -maxdepth 2 -name configure | head -n 1)
[ -n "$configure" ] || give_up "its archive has no configure script"
# experimental.arenas_create_ext, which keeps jemalloc's records out of the memory it hands out, came with 5.3.
grep -q arenas_create_ext "$(dirname "$configure")/src/ctl.c" || give_up "this release has a version before 5.3"

# Page sizes are those of Debian's own build. Thread-local storage by keys of its own: a dynamic one would be made by the program's malloc.
# No look-ups, no sbrk, no handlers of fork: all calls are made under a lock that is held across a fork (lib/base/jemalloc.h). Nothing is
# done when the library is loaded: what the source marks as a constructor is left to its first call.
lg_page=16
case $(uname -m) in
x86_64 | i?86) lg_page=12 ;;
esac
jobs=$(nproc 2>/dev/null || echo 2)
(
    cd "$(dirname "$configure")" || exit 1
    force_tls=0 je_cv_pthread_atfork=no ac_cv_header_dlfcn_h=no ac_cv_func_dlsym=no ac_cv_lib_dl_dlsym=no ac_cv_func_sbrk=no \
        ./configure --disable-initial-exec-tls --with-jemalloc-prefix=$prefix --with-private-namespace=$prefix --disable-cxx \
        --disable-cache-oblivious --disable-prof --disable-doc --disable-shared --with-lg-page=$lg_page --with-lg-hugepage=21 \
        --with-malloc-conf=abort_conf:false,retain:false,tcache:false,narenas:1,oversize_threshold:0,dss:disabled \
        CFLAGS='-O2 -g0 -fvisibility=hidden -Dconstructor=unused' &&
        make -j"$jobs" lib/libjemalloc_pic.a
) >>"$work/log" 2>&1 || give_up "it does not build ($(tail -n 1 "$work/log"))"

mkdir -p "$folder/include/jemalloc" "$folder/lib"
cp "$(dirname "$configure")/include/jemalloc/jemalloc.h" "$folder/include/jemalloc/jemalloc.h" &&
    cp "$(dirname "$configure")/COPYING" "$folder/COPYING" &&
    cp "$(dirname "$configure")/lib/libjemalloc_pic.a" "$folder/lib/part" &&
    mv "$folder/lib/part" "$folder/lib/libjemalloc_pic.a" || give_up "it cannot be laid down in $folder"
