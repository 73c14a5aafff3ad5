# SPDX-FileCopyrightText: 2026 the libnsa authors
# SPDX-License-Identifier: MIT
#
# Signed packs. Each test is for builds with signatures or for those without, and skipped in the others.
bats_require_minimum_version 1.5.0
load common

have_signatures() { autotune --version | jq -e .signatures >/dev/null; }
need_signatures() { have_signatures || skip 'built without signatures'; }
need_no_signatures() { ! have_signatures || skip 'built with signatures'; }

# Two keys, a pack that nobody signed, and one that the first key signed.
make_packs() {
  need_signatures
  export_small
  key=$(autotune keygen key)
  other=$(autotune keygen other)
  autotune export --sign key signed.pack
  mv kernels.pack unsigned.pack
}

# imported STATUS TRUSTED PACK TEXT: an import into an empty folder ends with STATUS and says TEXT, and
# stores nothing if it fails.
imported() {
  rm -rf into
  NSA_CACHE_DIR=$PWD/into run "-$1" autotune import --set "runtime.trusted_keys=$2" "$3"
  [[ $output == *"$4"* ]]
  (($1 == 0)) || [[ $(NSA_CACHE_DIR=$PWD/into autotune list --json | jq .count) == 0 ]]
}

@test "keygen: a secret key that its owner alone can read, and a public key" {
  need_signatures
  umask 022
  run -0 autotune keygen key
  [[ $output =~ ^[0-9a-f]{64}$ ]]
  [[ $(stat -c %a key) == 600 && $(stat -c %a key.pub) == 644 ]]
  [[ $(cat key.pub) == "$output" ]]
  run -1 autotune keygen key
  [[ $output == *'key: exists already'* ]]
  rm key
  run -1 autotune keygen key
  [[ $output == *'key.pub: exists already'* && ! -e key ]]
  run -1 autotune keygen nowhere/key
  run -2 autotune keygen
}

@test "a signed pack is imported by whom it trusts, and by nobody else" {
  make_packs
  imported 0 "[$key]" signed.pack "$count entries imported"
  imported 0 "[$other, $key]" signed.pack "$count entries imported"
  imported 6 "[$other]" signed.pack "signed by the key $key, which runtime.trusted_keys does not name"
  imported 6 "[$key]" unsigned.pack 'not signed, and runtime.trusted_keys asks for a signature'
  imported 0 '[]' unsigned.pack "$count entries imported"
  imported 0 '[]' signed.pack "signed by the key $key; runtime.trusted_keys is empty"
  NSA_CACHE_DIR=$PWD/piped autotune import --set "runtime.trusted_keys=[$key]" - <signed.pack
  diff <(cd "$NSA_CACHE_DIR/kernels" && sha256sum ./*.nsak) <(cd piped/kernels && sha256sum ./*.nsak)
  autotune export --sign key - | cmp - signed.pack
}

@test "a file of trusted keys: comments, several keys, and what is wrong with it" {
  make_packs
  { echo "# ours" && echo "$other # of the laboratory" && echo && cat key.pub; } >keys
  imported 0 "[$PWD/keys]" signed.pack "$count entries imported"
  imported 0 "[$PWD/other.pub, $PWD/key.pub]" signed.pack "$count entries imported"
  imported 6 "[$PWD/other.pub]" signed.pack 'does not name'
  imported 1 "[$PWD/nowhere]" signed.pack 'there is no such file'
  echo 'not a key' >>keys
  imported 1 "[$PWD/keys]" signed.pack "$PWD/keys:5: no public key"
  imported 1 "[$PWD/key]" signed.pack "$PWD/key:1: no public key"
  chmod 666 key.pub
  imported 1 "[$PWD/key.pub]" signed.pack 'key.pub'
  imported 3 '[key.pub]' signed.pack 'expected a list of public keys'
}

@test "the signature covers every byte of the pack" {
  make_packs
  size=$(stat -c %s signed.pack)
  ((size == $(stat -c %s unsigned.pack) + 96))
  for at in 0 7 8 15 40 200 $((size / 2)) $((size - 129)) $((size - 97)) $((size - 64)) $((size - 1)); do
    cp signed.pack flipped.pack
    byte=$(od -An -tu1 -j"$at" -N1 signed.pack)
    printf "\\x$(printf %x $((byte ^ 255)))" | dd of=flipped.pack bs=1 seek="$at" conv=notrunc status=none
    imported 6 "[$key]" flipped.pack flipped.pack
    imported 6 '[]' flipped.pack flipped.pack
  done
  for keep in 8 100 104 $((size - 96)) $((size - 64)) $((size - 1)); do
    head -c "$keep" signed.pack >cut.pack
    imported 6 "[$key]" cut.pack cut.pack
  done
  # Another key's signature of the same pack, behind the first key's name.
  autotune export --sign other others.pack
  { head -c -64 signed.pack && tail -c 64 others.pack; } >mixed.pack
  imported 6 "[$key]" mixed.pack 'the signature does not fit'
  # A pack that was stripped of its signature is an unsigned one.
  { printf NSAPACK1 && head -c -96 signed.pack | tail -c +9; } | cmp - unsigned.pack
}

@test "export refuses a key that is none, or that others can read" {
  need_signatures
  autotune keygen key
  run -1 autotune export --sign nowhere x.pack
  [[ $output == *'nowhere: the secret key cannot be read: there is no such file'* && ! -e x.pack ]]
  run -1 autotune export --sign key.pub x.pack
  [[ $output == *'others can read this secret key'* ]]
  chmod 600 key.pub
  run -1 autotune export --sign key.pub x.pack
  [[ $output == *'no secret key; `nsa-autotune keygen` makes one'* ]]
  chmod 640 key
  run -1 autotune export --sign key x.pack
  [[ $output == *'others can read this secret key'* ]]
  run -2 autotune export --records --sign key x.yaml
}

@test "a build without signatures refuses what needs them" {
  need_no_signatures
  run -1 autotune keygen key
  [[ $output == *'was built without signatures; build it with -Dsignatures=enabled'* && ! -e key ]]
  run -1 autotune export --sign key x.pack
  [[ $output == *'was built without signatures'* && ! -e x.pack ]]
  run -3 autotune import --set runtime.trusted_keys=[/etc/nsa/keys] x.pack
  [[ $output == *'runtime.trusted_keys: this libnsa was built without signatures'* ]]
  # A signed pack: magic, no entry, and a key and a signature that nobody can check.
  autotune export unsigned.pack
  { printf NSAPACK2 && tail -c +9 unsigned.pack && head -c 96 /dev/zero; } >signed.pack
  run -0 autotune import signed.pack
  [[ $output == *'signed.pack is signed, and the signature is not checked'* ]]
  head -c 40 signed.pack >cut.pack
  run -6 autotune import cut.pack
}
