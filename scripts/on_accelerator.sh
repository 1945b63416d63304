#!/usr/bin/env bash
# Measures this machine's accelerators, in 40 minutes and a set-up: every method, members, samplers,
# and the how-to, PyTorch and BlackJAX beside them. From the root of the repository:
#
#   scripts/on_accelerator.sh [--out=FOLDER] [--tiny]
#
#   --out=FOLDER   for on_device.json and on_device.md; runs/on_device.
#   --tiny         small sizes, on CPUs too, to see that it runs.
#
# The packages come into .venv: CUDA 13 needs a driver of 580 or newer, older ones get CUDA 12. With
# PYTHON=... in the environment nothing is installed. Exit status: 1 where a stage failed, 2 where
# there is no accelerator. More: docs/devices.md

set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'on_accelerator.sh: %s\n' "$*" >&2; }

out=runs/on_device tiny=()
while (($#)); do
  case $1 in
    --out=*) out=${1#*=} ;;
    --tiny) tiny=(--tiny) ;;
    --help) sed -n '2,/^$/s/^# \{0,1\}//p' "scripts/${0##*/}" && exit ;;
    *) say "$1 is not an option; --help lists them" && exit 2 ;;
  esac
  shift
done

if [[ ! ${PYTHON:-} ]]; then
  devices=''
  if driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null); then
    devices=cuda
    ((${driver%%.*} >= 580)) || devices=cuda12
  elif compgen -G '/dev/accel*' > /dev/null || compgen -G '/dev/vfio/[0-9]*' > /dev/null; then
    devices=tpu
  elif [[ ! ${tiny[*]} ]]; then
    say "there is no NVIDIA GPU and no TPU; --tiny runs on CPUs" && exit 2
  fi
  make .venv/requirements
  PYTHON=.venv/bin/python
  [[ ! $devices ]] || "$PYTHON" -m pip install --quiet -r "requirements-$devices.txt"
fi
mkdir -p "$out"
"$PYTHON" benchmarks/on_device.py --out="$out/on_device.json" --page="$out/on_device.md" \
  "${tiny[@]}"
