# What can stand after the words that are given: a word a line, and after a tab what it is.
_rollmill_candidates() {
    local called=${1##*/} asked previous
    shift
    asked=$called
    if [ "$called" = rollmill ]; then
        asked=${1-}
        # Some commands have a word of their own for what they do.
        if [ $# -ge 2 ] && _rollmill_table "$1 $2" >/dev/null; then asked="$1 $2"; fi
    fi
    for previous in "$@"; do :; done
    # After a flag that takes a value, nothing else can stand.
    _rollmill_table "$asked:${previous-}" || _rollmill_table "$asked"
}

# The environments beside the working directory.
_rollmill_own() {
    [ -z "${ZSH_VERSION-}" ] || setopt local_options no_nomatch
    local file
    for file in resources_servers/*/app.py environments/*/app.py; do
        [ -f "$file" ] || continue
        file=${file%/app.py}
        # Nothing that a shell would read as more than a word.
        case ${file#*/} in *[!A-Za-z0-9_.-]*) continue ;; esac
        printf '%s\n' "${file#*/}"
    done
}
