# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Completion of nsa-autotune for fish. The program itself names the candidates: autotune/cli/complete.h.
function __nsa_autotune_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] complete $words[2..-1] "$current" 2>/dev/null)
        switch $line
            case :files
                __fish_complete_path (string replace -r '^--[^=]*=' '' -- $current)
            case :folders
                __fish_complete_directories (string replace -r '^--[^=]*=' '' -- $current) ''
            case '*'
                echo $line
        end
    end
end
complete -c nsa-autotune -f -a '(__nsa_autotune_complete)'
