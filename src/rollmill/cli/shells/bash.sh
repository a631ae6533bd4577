_rollmill() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} word
    COMPREPLY=()
    # Bash takes words apart at = and at :, and what stands behind them is left to it.
    [[ $current == [=:] || $previous == [=:] ]] && return
    while IFS=$'\t' read -r word _; do
        [[ $word == "$current"* ]] && COMPREPLY+=("$word")
    done < <(_rollmill_candidates "${COMP_WORDS[@]:0:COMP_CWORD}")
    # Outside of a completion, and in very old ones, there is no compopt.
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace 2>/dev/null
    return 0
}

complete -o default -F _rollmill @NAMES@
