# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
bats_require_minimum_version 1.5.0
load common

# NSACHECK and NSAKVCHECK are the programs.

@test "nsacheck: a number that is none, or out of range, is 2" {
  for number in '' x 1x ' 1' +1 -1 1.5 99999999999999999999; do
    for option in --seed --count --threads --time-limit; do
      [[ $option == --time-limit && $number =~ ^[1-9][0-9.]+$ ]] && continue
      run -2 "$NSACHECK" --list "$option" "$number"
    done
    run -2 "$NSACHECK" --list --device "$number"
  done
  run -2 "$NSACHECK" --list --threads 0
  run -2 "$NSACHECK" --list --time-limit 0
  run -2 "$NSACHECK" --list --time-limit 1.2.3
  run -0 "$NSACHECK" --list --seed 7 --count 3 --threads 2 --time-limit 1.5 --filter 'matches nothing'
}

@test "nsakvcheck: a number that is none, or out of range, is 2" {
  for number in '' x 1x ' 1' +1 -1 1.5 99999999999999999999; do
    for option in --seed --count --longest --soak --every --steps --repeats; do
      run -2 "$NSAKVCHECK" "$option" "$number"
    done
  done
  run -2 "$NSAKVCHECK" --longest 63
  run -2 "$NSAKVCHECK" --time-limit nan
  run -2 "$NSAKVCHECK" --op attend
  run -2 "$NSAKVCHECK" --steps 0
  run -2 "$NSAKVCHECK" --op split --repeats 1
  run -2 "$NSAKVCHECK" --soak 5 --large
  run -2 "$NSAKVCHECK" --soak 5 --steps 1
  run -2 "$NSAKVCHECK" --large --op split
  run -2 "$NSAKVCHECK" --large --searched
}
