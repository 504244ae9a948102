# Completion of sidecar's words for fish: sidecar completion fish > ~/.config/fish/completions/sidecar.fish

function __sidecar_complete
    set -l before (commandline -opc)
    set -l token (commandline -ct)
    test (count $token) -eq 0; and set token ''
    $before[1] __complete $before[2..-1] "$token" 2>/dev/null
end

for program in sidecar sah
    complete -c $program -e
    complete -c $program -f -k -a '(__sidecar_complete)'
    complete -c $program -l project -x -a '(__fish_complete_directories)'
    complete -c $program -n '__fish_seen_subcommand_from validate' -F
end
