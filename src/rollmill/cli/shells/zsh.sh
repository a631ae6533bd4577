_rollmill() {
    local -a names
    local word
    if [[ ${words[CURRENT]} == *=* ]]; then
        compset -P '*='
        _files
        return
    fi
    while IFS=$'\t' read -r word _; do
        names+=("$word")
    done < <(_rollmill_candidates "${(@)words[1,CURRENT-1]}")
    if (( ! ${#names} )); then
        _files
        return
    fi
    local -a open=("${(@M)names:#*[=:]}") whole=("${(@)names:#*[=:]}")
    (( ${#open} )) && compadd -S '' -a open
    (( ${#whole} )) && compadd -a whole
    return 0
}

if [[ ${funcstack[1]-} == _rollmill ]]; then
    _rollmill "$@"
else
    (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit; }
    compdef _rollmill @NAMES@
fi
