#!/usr/bin/env bash
# Downloads the four files of MNIST (11 MB), and checks each one. Files that are already there and complete are kept.
#
#   crates/plimsoll/examples/download_mnist.sh [FOLDER]     # mnist, if there is no folder
#   plimsoll train mnist --data mnist
#
# Needs curl and md5sum. MIRROR=URL downloads from another place.
set -euo pipefail

folder=${1:-mnist}
mirror=${MIRROR:-https://ossci-datasets.s3.amazonaws.com/mnist}
files="
f68b3c2dcbeaaa9fbdd348bbdeb94873 train-images-idx3-ubyte.gz
d53e105ee54ea40749a09fcbcd1e9432 train-labels-idx1-ubyte.gz
9fb629c4189551a2d022fa330f9573f3 t10k-images-idx3-ubyte.gz
ec29112dd5afa0611ce80d1b7f02629c t10k-labels-idx1-ubyte.gz
"

mkdir -p "$folder"
cd "$folder"
while read -r sum name; do
    [ -n "$name" ] || continue
    if [ -f "$name" ] && echo "$sum  $name" | md5sum --check --status; then
        echo "$folder/$name is already there" >&2
        continue
    fi
    echo "downloading $name" >&2
    curl --fail --location --silent --show-error --retry 3 --output "$name.part" "$mirror/$name"
    if ! echo "$sum  $name.part" | md5sum --check --status; then
        rm -f "$name.part"
        echo "error: $mirror/$name is damaged or not MNIST; run the script again, or set MIRROR" >&2
        exit 1
    fi
    mv "$name.part" "$name"
done <<< "$files"
echo "MNIST is in $folder" >&2
