#!/usr/bin/env bash
# Runs train.py on every worker of a Cloud TPU, and again after a preemption.
#
#   scripts/launch_tpu_pod.sh --name=NAME --zone=ZONE --accelerator_type=v5litepod-16 \
#     --runtime_version=v2-alpha-tpuv5-lite -- --config=FILE --workdir=gs://BUCKET/RUN ...
#   scripts/launch_tpu_pod.sh --name=NAME --zone=ZONE --delete
#
#   --name=NAME, --zone=ZONE   of the TPU: reused if it is there, else created (queued resource).
#   --accelerator_type=TYPE    as `gcloud compute tpus accelerator-types list` has it.
#   --runtime_version=VERSION  of the machines' software, as Google recommends for that type.
#   --spot                     asks for a cheaper TPU, which Google may take away at any time.
#   --flex_start=DURATION      asks for a cheaper TPU, when there is one, for so long: 4h, 7d at most.
#   --create_flag=FLAG         more for `gcloud compute tpus queued-resources create`; repeatable.
#   --commit=REVISION          whose code runs; HEAD, if the working tree has no changes.
#   --max_restarts=N           after preemptions, lost connections, failed set-ups and stops; 5.
#   --delete                   deletes the TPU: at the end of the run, or, without a run, now.
#   --dry_run                  prints every command, to be pasted, and asks for nothing.
#
# Exit status: 0 finished; 1, 2, 126, 127 as train.py's, and 1 where there is no TPU to use; 69 no
# quota; 75 restarts used up, or the state cannot be asked for (the same command goes on); 130
# Ctrl-C. More: docs/devices.md

set -euo pipefail
command=("$0" "$@")
cd "$(dirname "$0")/.."

# The line of docs/devices.md for TPUs; gcsfs for gs://; what prepares data sets, on each worker's own disk.
requirements=(-r requirements.txt -r requirements-prepare.txt 'jax[tpu]>=0.10.2,<0.13' gcsfs)
# uv brings the Python that machines may lack.
uv_installer=https://astral.sh/uv/0.13.8/install.sh

say() { printf 'launch_tpu_pod.sh: %s\n' "$*" >&2; }
refuse() { say "$1" && exit 2; } # Before anything was asked of Google.
((BASH_VERSINFO[0] >= 5)) || refuse "bash $BASH_VERSION is too old; install bash 5"
quoted() { # Arguments as one line that can be pasted, quoted where they need it.
  local word line=''
  for word; do
    if [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then line+=" $word"; else line+=" ${word@Q}"; fi
  done
  printf '%s' "${line# }"
}

name='' zone='' accelerator_type='' runtime_version='' commit='' max_restarts=5 delete='' dry_run=''
create_flags=() track=() workdir=''
while (($#)); do
  case $1 in
    --name=*) name=${1#*=} ;;
    --zone=*) zone=${1#*=} ;;
    --accelerator_type=*) accelerator_type=${1#*=} ;;
    --runtime_version=*) runtime_version=${1#*=} ;;
    --spot) create_flags+=(--spot) ;;
    --flex_start=*)
      create_flags+=(--provisioning-model=flex-start --max-run-duration="${1#*=}") track=(alpha)
      ;;
    --create_flag=*) create_flags+=("${1#*=}") ;;
    --commit=*) commit=${1#*=} ;;
    --max_restarts=*) max_restarts=${1#*=} ;;
    --delete) delete=1 ;;
    --dry_run) dry_run=1 ;;
    --help) sed -n '2,/^$/s/^# \{0,1\}//p' "scripts/${0##*/}" && exit ;;
    --) shift && break ;;
    *) refuse "$1 is not an option; --help lists them, and train.py's arguments come after --" ;;
  esac
  shift
done
[[ $name =~ ^[a-z][a-z0-9-]*$ ]] || refuse "--name=$name is not a name; use a-z, 0-9 and -"
[[ $zone ]] || refuse "--zone is missing; try --zone=us-central1-a"
[[ $max_restarts =~ ^(0|[1-9][0-9]*)$ ]] || refuse "--max_restarts=$max_restarts is not a number; try 5"
if (($#)); then
  [[ $accelerator_type ]] || refuse "--accelerator_type is missing; try v5litepod-16"
  [[ $runtime_version ]] || refuse "--runtime_version is missing; try v2-alpha-tpuv5-lite"
  for argument; do
    if [[ $argument == --workdir=* ]]; then workdir=${argument#*=}; fi
  done
  [[ $workdir == gs://?*/?* ]] || refuse "--workdir=$workdir would be a disk of each worker, which\
 goes with it; use --workdir=gs://BUCKET/RUN"
  if [[ ! $commit ]]; then
    changes=$(git status --porcelain)
    changes=${changes%%$'\n'*}
    [[ ! $changes ]] || refuse "the working tree has what no commit has (${changes:3}); commit it,\
 or say --commit=HEAD to run without it"
  fi
  revision=$commit
  commit=$(git rev-parse --verify --quiet "${revision:-HEAD}^{commit}") ||
    refuse "--commit=$revision is not a commit of this repository"
elif [[ ! $delete ]]; then
  refuse "train.py's arguments are missing; try -- --config=FILE --workdir=gs://BUCKET/RUN"
fi
arguments=("$@")
[[ $dry_run ]] || command -v gcloud > /dev/null ||
  refuse "gcloud is not on PATH; install it: https://cloud.google.com/sdk/docs/install"

tpus=(gcloud compute tpus)
place=(--zone="$zone" --quiet)
describe_request=("${tpus[@]}" queued-resources describe "$name" "${place[@]}")
describe_node=("${tpus[@]}" tpu-vm describe "$name" "${place[@]}")
create_request=(gcloud "${track[@]}" compute tpus queued-resources create "$name" --node-id="$name" "${place[@]}"
  --accelerator-type="$accelerator_type" --runtime-version="$runtime_version"
  "${create_flags[@]}")
request_state='--format=value(state.state)'
request_error='--format=value(state.failedData.error.message)'
number_of_workers='--format=value(networkEndpoints.len())'
delete_request=("${tpus[@]}" queued-resources delete "$name" --force "${place[@]}")
logs=runs/launch-$name
archive=$logs/code.tar.gz
scratch=$(mktemp -d)
groups='' # Process groups of the gclouds that run.
clean_up() { rm -rf "$scratch" && end_groups; }
end_groups() {
  local group
  for group in $groups; do kill -- "-$group" 2> /dev/null || true; done
  groups=''
}
trap clean_up EXIT

run() { if [[ $dry_run ]]; then quoted "$@" && echo; else "$@"; fi; }

# Prints what a command answers, NONE where the thing is not there, UNKNOWN where none can say.
ask() {
  for _ in 1 2 3; do # A network may fail for a moment in days of waiting.
    # 0, or in a trap `return` would give the status of what the signal interrupted.
    "$@" 2> "$scratch/error" && return 0
    grep -q NOT_FOUND "$scratch/error" && echo NONE && return 0
    sleep 10
  done
  echo UNKNOWN
}

# Prints READY, or why the TPU is not.
tpu_state() {
  local request
  request=$(ask "${describe_request[@]}" "$request_state")
  [[ $request == ACTIVE ]] || { echo "$request" && return 0; }
  # The request may still be ACTIVE a while after its machines were taken away.
  ask "${describe_node[@]}" '--format=value(state)' | sed 's/^NONE$/GONE/'
}

unseen='' # Whether Google was asked for the TPU, and has not shown it since.
delete_tpu() { say "deleting $name" && "${delete_request[@]}" > /dev/null && unseen=''; }

# Ends with an exit status and one line; then says what costs money from now on.
leave() {
  local status=$1 state how
  say "$2"
  if [[ $delete ]] && ((status != 130)); then delete_tpu || say "$name could not be deleted"; fi
  trap '' INT TERM # What is billed is said in any case.
  state=$(tpu_state)
  how="delete it: $(quoted "${command[0]}" --name="$name" --zone="$zone" --delete)"
  case $state in
    NONE)
      if [[ $unseen ]]; then
        say "$name was asked for and is not shown yet: it is billed from the moment that it is\
 there, until you $how"
      else say "there is no TPU $name: none is billed; what lies in gs:// is"; fi ;;
    FAILED | SUSPEND* | PREEMPTED | TERMINATED | GONE)
      say "no TPU is billed: $name is $state; its request remains; $how" ;;
    CREATING | ACCEPTED | WAITING* | PROVISIONING)
      say "$name is $state: it is billed from the moment that it is there, until you $how" ;;
    STOPPED) say "$name is STOPPED: it may be billed until you $how" ;;
    *) say "$name is $state: IT IS BILLED until you $how" ;;
  esac
  ((status == 0 || status == 2)) || [[ ! $workdir ]] ||
    say "the same command resumes from $workdir: $(quoted "${command[@]}")"
  exit "$status"
}

momentary='UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|HTTPError 50|[Cc]onnection'
google_refuses() { # $1: what Google said.
  local line
  line=$(grep -m1 -iE 'quota|RESOURCE_EXHAUSTED|ERROR' <<< "$1") || line=$1
  if grep -qiE 'quota|RESOURCE_EXHAUSTED' <<< "$1"; then
    leave 69 "no quota for $accelerator_type in $zone ($line); ask for it at\
 https://console.cloud.google.com/iam-admin/quotas, or choose another --zone or type, or --spot"
  fi
  leave 1 "Google gives no TPU: $line"
}

# Returns when the TPU is ready: creates it, again if there is only what is left of one. Returns 1
# if it was taken away before it was ready.
acquire() {
  local state seen='' created='' tries=0
  while true; do
    state=$(tpu_state)
    [[ $state == "$seen" ]] || say "$name is $state"
    [[ $state == NONE ]] || unseen=''
    case $state in
      READY) return 0 ;;
      UNKNOWN) leave 75 "cannot ask for $name: $(grep -v '^ *$' "$scratch/error" | head -1)" ;;
      NONE)
        if [[ ! $created ]]; then
          created=1 unseen=1 tries=$((tries + 1))
          if "${create_request[@]}" > /dev/null 2> "$scratch/error"; then
            : # It comes to be shown.
          elif grep -q ALREADY_EXISTS "$scratch/error" && ((tries > 1)); then
            : # Google has taken the request that it failed to answer.
          elif ! grep -qE "$momentary" "$scratch/error"; then
            unseen=''
            google_refuses "$(cat "$scratch/error")"
          elif ((tries < 3)); then
            say "Google fails for a moment: $(grep -m1 -E "$momentary" "$scratch/error")"
            created='' # Asked for again, unless it comes to be shown.
            sleep 30
          else
            google_refuses "$(cat "$scratch/error")" # And may have taken it.
          fi
        else
          [[ $seen == NONE ]] || return 1 # It was shown, and somebody has deleted it.
          sleep 30 # Google may show it later than it says that it is created.
        fi ;;
      FAILED)
        [[ ! $created ]] || google_refuses "$(ask "${describe_request[@]}" "$request_error")"
        delete_tpu || leave 1 "$name is FAILED and cannot be deleted" ;;
      SUSPENDED | PREEMPTED | TERMINATED | GONE)
        [[ ! $created ]] || return 1
        delete_tpu || leave 1 "$name is $state and cannot be deleted" ;;
      STOPPED)
        leave 1 "$name is STOPPED and does not start by itself; start it:\
 $(quoted "${tpus[@]}" tpu-vm start "$name" --zone="$zone"); or delete it" ;;
      *) sleep 30 ;;
    esac
    seen=$state
  done
}

# --- On the workers: $1 is the number of one. The steps of a start, in this order. ---
# One gcloud a worker: each has its own log and status, and no ssh-agent is needed.
# Without ServerAlive, ssh would wait for hours for a machine that was taken away.
on_worker() {
  run "${tpus[@]}" tpu-vm ssh "$name" --worker="$1" "${place[@]}" \
    --ssh-flag='-o ServerAliveInterval=20' --ssh-flag='-o ServerAliveCountMax=3' --command="$2"
}
connect() { on_worker "$1" true; } # The first connection makes the ssh key: one at a time.
copy_code() {
  run "${tpus[@]}" tpu-vm scp "$archive" "$name:$commit.tar.gz" --worker="$1" "${place[@]}"
}
set_up() {
  on_worker "$1" "set -eu; mkdir -p ~/flax-ensembles/$commit; cd ~/flax-ensembles/$commit;\
 if [ -e .ready ]; then exit 0; fi; tar -xzf ~/$commit.tar.gz;\
 curl -LsSf $uv_installer | env UV_UNMANAGED_INSTALL=\$HOME/flax-ensembles/uv sh;\
 ~/flax-ensembles/uv/uv venv --quiet --clear --python 3.13 .venv;\
 ~/flax-ensembles/uv/uv pip install --quiet --python .venv/bin/python\
 $(quoted "${requirements[@]}"); touch .ready"
}
# Ends what an earlier start has left on a worker, after its checkpoint.
# shellcheck disable=SC2016 # The worker expands it.
stop_command='pid=$(cat ~/flax-ensembles/pid 2>/dev/null || echo 0); '\
'ours() { grep -qs train.py /proc/$pid/cmdline; }; if ours; then kill $pid || true; fi; '\
'for _ in $(seq 60); do ours || break; sleep 1; done; if ours; then kill -9 $pid; fi; '\
'for _ in $(seq 300); do ours || break; sleep 0.1; done'
# gcloud repeats a command whose connection was lost; `mkdir` lets each start run once.
train() {
  on_worker "$1" "set -eu; cd ~/flax-ensembles/$commit; mkdir -p ../starts;\
 mkdir ../starts/$start || exit 75; $stop_command; echo \$\$ > ../pid;\
 exec .venv/bin/python train.py $(quoted "${arguments[@]}")"
}
stop() { on_worker "$1" "$stop_command"; }

# Runs a step on the first $2 workers at the same time. Sets `culprit` and `status`: the first
# worker that failed, since the others then fail because of it; 0 if none.
on_workers() {
  local worker ended waited=0
  step=$1 culprit='' status=0
  : > "$scratch/ended" && : > "$scratch/failed"
  set -m # A process group each: Ctrl-C does not reach it, `kill` ends it with its children.
  for ((worker = 0; worker < $2; worker++)); do
    one_worker "$worker" < /dev/null &
    groups+=" $!"
    disown # Else bash would report the ones that it kills.
  done
  set +m
  while ended=$(< "$scratch/ended") && ((${#ended} < $2)); do
    sleep 1
    # The others save a checkpoint, or miss the one that failed within a minute. Or hang.
    [[ ! -s $scratch/failed ]] || waited=$((waited + 1))
    if ((waited > 120)); then stop_workers && break; fi
  done
  groups='' step=''
  if [[ -s $scratch/failed ]]; then read -r culprit status < "$scratch/failed"; fi
}

one_worker() {
  local log=$logs/worker-$1.log status=0
  printf '=== %s, start %s, commit %s ===\n' "$step" "$start" "$commit" >> "$log"
  if (($1 == 0)); then "$step" "$1" 2>&1 | tee -a "$log" || status=$?; else
    "$step" "$1" >> "$log" 2>&1 || status=$?
  fi
  ((status == 0)) || echo "$1 $status" >> "$scratch/failed"
  printf . >> "$scratch/ended"
}

# Whether the same again would fail again: by train.py's own status, or since it cannot be executed.
# gcloud's own errors end with 1 too; the step's part of the log, $1, tells them apart.
is_final() {
  [[ $task == train && $status =~ ^(1|2|126|127)$ ]] &&
    awk '/^=== /{own = 1} /^ERROR: \(gcloud/{own = 0} END{exit !own}' "$1"
}

# Ends train.py on the workers, after a checkpoint, and then the gclouds that listen to it.
stop_workers() {
  local worker stopping=''
  if [[ $step == train ]]; then
    set -m
    for ((worker = 0; worker < workers; worker++)); do
      stop "$worker" < /dev/null >> "$logs/worker-$worker.log" 2>&1 &
      stopping+=" $!"
    done
    set +m
    groups+=$stopping
    # shellcheck disable=SC2086 # One word a process.
    wait $stopping || true
  fi
  end_groups
}

interrupted() {
  trap 'leave 130 "interrupted twice: train.py may still run on the workers"' INT TERM
  [[ $step != train ]] || say "train.py saves a checkpoint and ends; Ctrl-C again does not wait"
  stop_workers
  leave 130 "interrupted"
}

print_commands() {
  # shellcheck disable=SC2016 # The worker expands it: pasted again, it is another start.
  start='$(date +%s)'
  run mkdir -p "$logs"
  run git archive --format=tar.gz --output="$archive" "$commit"
  run "${create_request[@]}" # Unless it is there.
  echo "until [ \"\$($(quoted "${describe_request[@]}" "$request_state"))\" = ACTIVE ]; do sleep 30; done"
  echo "workers=\$($(quoted "${describe_node[@]}" "$number_of_workers"))"
  connect 0
  for step in copy_code set_up train; do
    echo 'for ((worker = 0; worker < workers; worker++)); do'
    # shellcheck disable=SC2016 # The one who pastes expands it.
    "$step" '$worker' | sed "s/'--worker=\$worker' /--worker=\$worker /; s/^/  /" | tr -d '\n'
    echo " >> $logs/worker-\$worker.log 2>&1 &"
    echo 'done; wait'
  done
  [[ ! $delete ]] || run "${delete_request[@]}"
}

launch=$(date +%s)
step='' workers=0
if [[ $dry_run ]]; then
  if ((${#arguments[@]})); then print_commands; else run "${delete_request[@]}"; fi
  exit
fi
trap interrupted INT TERM
if ((${#arguments[@]} == 0)); then
  delete=''
  [[ $(tpu_state) == NONE ]] || delete_tpu || leave 1 "$name could not be deleted"
  leave 0 "there is nothing to delete any more"
fi

mkdir -p "$logs"
git archive --format=tar.gz --output="$archive" "$commit"
say "commit $commit; logs: $logs/worker-*.log"
say "TensorBoard: $(quoted tensorboard --logdir="$workdir" --host=localhost)"
for ((restarts = 0; ; restarts++)); do
  start=$launch-$restarts
  if acquire; then
    workers=$(ask "${describe_node[@]}" "$number_of_workers")
    [[ $workers =~ ^[1-9][0-9]*$ ]] || leave 75 "cannot ask for the workers of $name ($workers)"
    for task in connect copy_code set_up train; do
      say "$task, on $workers workers"
      if [[ $task == connect ]]; then on_workers connect 1; else on_workers "$task" "$workers"; fi
      ((status == 0)) || break
    done
    ((status != 0)) || leave 0 "finished: $workdir"
    log=$logs/worker-$culprit.log
    what="worker $culprit ended with exit status $status in $task (log: $log)"
    state=$(tpu_state)
    if [[ $state != READY ]]; then
      what="$name is $state and no longer READY"
    else
      tail -n 5 "$log" | sed 's/^/  | /' >&2
      ! is_final "$log" || leave "$status" "$what"
    fi
  else
    what="$name was taken away before it was ready"
  fi
  ((restarts < max_restarts)) || leave 75 "$what; all --max_restarts=$max_restarts are used up"
  say "$what; restart $((restarts + 1)) of $max_restarts"
  sleep 30 # Until sshd listens, a network or a server is back, Google shows what it has taken away.
done
