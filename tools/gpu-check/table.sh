# shellcheck shell=sh disable=SC2154,SC1003
# Sourced by gpu-check.sh: what came of a part, the table and the JSON file. Reads the lines and complaints of parts in $work; changes nothing.

# The last line that a part complained with, fit for JSON.
last_complaint() { sed '/^[[:space:]]*$/d' "$work/$1.err" | tail -n 1 | tr -d '"\\\000-\037' | cut -c1-300; }

# judge PART CODE LIMIT: one word. A part passes if it said something and nothing in it failed.
judge() {
    case $2 in
    77) echo skipped ;;
    0)
        if grep -q '"verdict": *"failed"' "$work/$1.lines" || ! [ -s "$work/$1.lines" ]; then
            echo failed
        elif grep -q '"verdict": *"\(passed\|measured\|answered\)"' "$work/$1.lines"; then
            echo passed
        else
            echo skipped
        fi
        ;;
    *) echo failed ;;
    esac
}

reason() {
    case $2 in
    124 | 137) echo "it was killed after $3 s" ;;
    77) last_complaint "$1" ;;
    0)
        if ! [ -s "$work/$1.lines" ]; then
            echo "it said nothing"
        elif grep -q '"verdict": *"failed"' "$work/$1.lines"; then
            echo "see its lines"
        fi
        ;;
    1) if grep -q '"verdict": *"failed"' "$work/$1.lines"; then echo "see its lines"; else last_complaint "$1"; fi ;;
    *) echo "exit status $2: $(last_complaint "$1")" ;;
    esac
}

count() { grep -c "^[^ ]* $1 " "$work/summary"; }

# The text of a line of the part "device".
fact() { sed -n "s/^{\"name\":\"$1\",.*\"text\":\"\(.*\)\"}\$/\1/p" "$work/device.lines" | head -n 1; }

driver_version() {
    sed -n 's/^NVRM version:.*  \([0-9][0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1
}

# Release, Debug, ..., and what makes it slower.
build_kind() {
    sed -n 's/^CMAKE_BUILD_TYPE:[A-Z]*=//p; s/^CMPOOL_VALIDATE:[A-Z]*=ON$/validators/p; s/^CMPOOL_SANITIZE:[A-Z]*=\(..*\)/\1/p' \
        "$build/CMakeCache.txt" 2>/dev/null | tr '\n' ' ' | sed 's/ $//'
}

print_table() {
    printf '\n%s, driver %s %s, %s\n' "$(fact GPU)" "$(driver_version)" "$(fact driver)" "$date"
    case $(build_kind) in
    Release | RelWithDebInfo) printf '\n' ;;
    *) printf 'FIGURES OF THE LIBRARY ARE THOSE OF A BUILD OF THIS KIND: %s\n\n' "$(build_kind)" ;;
    esac
    while read -r name verdict seconds limit why; do
        [ "$verdict" != failed ] || verdict=FAILED
        printf '%-12s %-8s %4s s   %s\n' "$name" "$verdict" "$seconds" "$why"
        awk '
            function text_of(key) {
                if (!match($0, "\"" key "\": *\"([^\"\\\\]|\\\\.)*\""))
                    return ""
                found = substr($0, RSTART, RLENGTH)
                sub("^\"" key "\": *\"", "", found)
                gsub(/\\"/, "\"", found)
                return substr(found, 1, length(found) - 1)
            }
            {
                verdict = text_of("verdict")
                if (verdict == "failed")
                    verdict = "FAILED"
                if (verdict == "measured" && match($0, /"value": *[-+0-9.eE]+/)) {
                    verdict = substr($0, RSTART, RLENGTH)
                    sub(/^"value": */, "", verdict)
                    verdict = verdict " " text_of("unit")
                }
                if (verdict == "answered")
                    verdict = ""
                printf "    %-70s %-14s %s\n", text_of("name"), verdict, text_of("text")
            }' "$work/$name.lines"
    done <"$work/summary"
    printf '\n'
}

write_json() {
    printf '{"date":"%s","device":"%s","gpu":"%s","driver":"%s","driver_version":"%s","machine":"%s","command":"%s","budget_seconds":%s,"version":"%s",\n"build":"%s",' \
        "$date" "$device" "$(fact GPU)" "$(fact driver)" "$(driver_version)" "$(uname -srm | tr -d '"\\')" \
        "$(printf '%s' "$command" | tr -d '"\\')" "$budget" "$("$build/bin/cudamempool" --version 2>/dev/null)" "$(build_kind)"
    printf '"passed":%s,"failed":%s,"skipped":%s,"parts":[' "$(count passed)" "$(count failed)" "$(count skipped)"
    comma=''
    while read -r name verdict seconds limit why; do
        printf '%s\n{"part":"%s","verdict":"%s","seconds":%s,"limit_seconds":%s,"reason":"%s","lines":[\n' \
            "$comma" "$name" "$verdict" "$seconds" "$limit" "$why"
        sed '$!s/$/,/' "$work/$name.lines"
        printf ']}'
        comma=','
    done <"$work/summary"
    printf '\n]}\n'
}
