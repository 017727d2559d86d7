#!/usr/bin/env bash
# Makes the packages in a directory an apt repository: apt-repository.sh DIRECTORY KEY. KEY is the name of the key in gpg that signs it. SOURCE_DATE_EPOCH is
# its date.
set -euo pipefail
export LC_ALL=C
cd "$1"
dpkg-scanpackages --multiversion . > Packages 2> /dev/null
gzip --keep --force --no-name -9 Packages
{
  printf 'Origin: imds\nLabel: imds\nArchitectures: amd64 arm64\nDate: %s\nSHA256:\n' "$(date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")"
  for file in Packages Packages.gz; do printf ' %s %s %s\n' "$(sha256sum < $file | cut -d ' ' -f 1)" "$(stat --format %s $file)" $file; done
} > Release
sign() { gpg --batch --yes --quiet --local-user "$1" --armor --output "$2" "$3" Release; }
sign "$2" InRelease --clear-sign
sign "$2" Release.gpg --detach-sign
