# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Completion of nsa-autotune for bash. The program itself names the candidates: autotune/cli/complete.h.
_nsa_autotune() {
  local words current line files='' folders=''
  # Readline breaks words at = and :, the program does not; blanks alone are right for both.
  read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
  [[ ${COMP_LINE:0:COMP_POINT} == *[[:blank:]] ]] && words+=('')
  current=${words[-1]}
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
    :files) files=1 ;;
    :folders) folders=1 ;;
    *) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <("${words[0]}" complete "${words[@]:1}" 2>/dev/null)
  # Readline replaces only what stands behind the last =.
  if [[ $COMP_WORDBREAKS == *=* && $current == *=* ]]; then
    COMPREPLY=("${COMPREPLY[@]#"${current%=*}="}")
    current=${current##*=}
  fi
  if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; fi
  # Without a candidate readline looks for names by itself.
  if [[ $folders ]]; then compopt -o dirnames; fi
  if [[ $files && ${#COMPREPLY[@]} -eq 0 ]]; then
    compopt -o bashdefault -o default
  elif [[ $files ]]; then
    compopt -o filenames
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$current")
  fi
}
complete -F _nsa_autotune nsa-autotune
