# Completion of sidecar's words for bash: eval "$(sidecar completion bash)"

_sidecar() {
    local line=${COMP_LINE:0:COMP_POINT} word rest
    # bash takes a word apart at `:` and `=` and wants only what is behind the last of them.
    local current=${line##*[[:space:]]} done_already=
    [[ $COMP_WORDBREAKS == *=* && $current == *=* ]] && done_already=${current%"${current##*=}"}
    [[ $COMP_WORDBREAKS == *:* && $current == *:* ]] && done_already=${current%"${current##*:}"}
    COMPREPLY=()
    while IFS=$'\t' read -r word rest; do
        COMPREPLY+=("${word#"$done_already"}")
    done < <("$1" __complete --line "$1" "$line" 2>/dev/null)
}

complete -o bashdefault -o default -o nosort -F _sidecar sidecar sah 2>/dev/null ||
    complete -o bashdefault -o default -F _sidecar sidecar sah
