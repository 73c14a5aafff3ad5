#compdef nsa-autotune
# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Completion of nsa-autotune for zsh. The program itself names the candidates: autotune/cli/complete.h.
local line text names=0
local -a candidates unfinished
for line in ${(f)"$(${(Q)words[1]} complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)"}; do
  case $line in
  (:files) names=1 ;;
  (:folders) names=2 ;;
  (*)
    text=${line%%$'\t'*}
    # _describe takes what stands behind a colon for the meaning.
    text=${text//:/\\:}:${line#*$'\t'}
    if [[ ${line%%$'\t'*} == *= ]]; then unfinished+=($text); else candidates+=($text); fi
    ;;
  esac
done
local found=1
(( $#candidates )) && _describe -t candidates candidate candidates && found=0
(( $#unfinished )) && _describe -t keys key unfinished -S '' && found=0
if (( names )); then
  [[ $PREFIX == --*=* ]] && compset -P '*='
  if (( names == 2 )); then _files -/ && found=0; else _files && found=0; fi
fi
return found
