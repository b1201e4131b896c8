#!/usr/bin/env bash
# Mesa >= 24.3, whose software renderer ManiSkill's cameras can draw with; Debian 12 has it among its backports. What LIBERO draws with (EGL)
# comes to the same version with it. Never an error: the main job, and ManiSkill without pictures, do without.
set -u
wanted=24.3
packages="mesa-vulkan-drivers libvulkan1"
doctor="python -m embodied.doctor says what is missing"

new_enough() { [ -n "$1" ] && [ "$1" != "(none)" ] && dpkg --compare-versions "$1" ge "$wanted"; }

if ls /usr/share/vulkan/icd.d/nvidia* /etc/vulkan/icd.d/nvidia* >/dev/null 2>&1; then exit 0; fi # a GPU with a driver of its own
if ! command -v apt-get >/dev/null; then
  echo "found no apt-get, wanted Mesa >= $wanted for the pictures of env=maniskill; $doctor"
  exit 0
fi
if new_enough "$(dpkg-query -W -f='${Version}' mesa-vulkan-drivers 2>/dev/null)"; then exit 0; fi
if [ "$(id -u)" != 0 ]; then
  echo "found no Mesa >= $wanted, wanted for the pictures of env=maniskill alone: sudo tools/vulkan.sh"
  exit 0
fi

echo "installing Mesa >= $wanted for the pictures of env=maniskill"
export DEBIAN_FRONTEND=noninteractive
candidate() { apt-cache policy mesa-vulkan-drivers | sed -n 's/^ *Candidate: //p'; }
from=""
apt-get update -qq || { echo "the package lists could not be read anew: env=maniskill runs without pictures; $doctor"; exit 0; }
if ! new_enough "$(candidate)"; then
  release=$(. /etc/os-release && echo "${ID:-}-${VERSION_CODENAME:-}")
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
  if [ "$release" != debian-bookworm ] || [ -z "$mirror" ]; then
    echo "found Mesa $(candidate) in the package lists of $release, wanted >= $wanted; $doctor"
    exit 0
  fi
  list=${APT_LISTS:-/etc/apt/sources.list.d}/m2flow-backports.list
  echo "deb $mirror bookworm-backports main" >$list
  from="-t bookworm-backports"
  if ! apt-get update -qq || ! new_enough "$(apt-cache policy mesa-vulkan-drivers | grep -o '[0-9][^ ]*bpo[^ ]*' | head -n 1)"; then
    rm -f $list # nobody's later update shall fail by it
    echo "found no backports at this machine's mirror, wanted Mesa >= $wanted from there; $doctor"
    exit 0
  fi
fi
apt-get install -y -qq --no-install-recommends $from $packages >/dev/null || echo "that failed: env=maniskill runs without pictures; $doctor"
exit 0
