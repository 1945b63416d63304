#!/usr/bin/env bash
# A Slurm cluster of two nodes, n1 and n2, on this machine and without a trace on it: in a copy of
# its file system that is kept in memory. Runs until it is ended; tests/scripts/test_slurm.py
# starts it by
#
#   unshare --mount --pid --fork --kill-child bash slurm_cluster.sh SCRATCH PORT PORT PORT
#
# SCRATCH is seen inside as it is outside. When the nodes are idle, SCRATCH/ready says where the
# copy is.
set -euo pipefail
scratch=$1 ports=("${@:2}")

root=$(mktemp --directory)
mount -t tmpfs tmpfs "$root"
mkdir "$root"/{upper,work,merged}
mount -t overlay overlay "$root/merged" \
  -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work"
cd "$root/merged"
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount --bind "$scratch" ".$scratch"
mount -t tmpfs tmpfs run

printf '#!/bin/sh\nexit 101\n' > usr/sbin/policy-rc.d # Installed services do not start.
chmod +x usr/sbin/policy-rc.d
chroot . apt-get install --yes --no-install-recommends slurmctld slurmd slurm-client munge \
  > "$scratch/install.log" 2>&1 || chroot . bash -c "apt-get update && apt-get install --yes \
  --no-install-recommends slurmctld slurmd slurm-client munge" >> "$scratch/install.log" 2>&1

echo "127.0.0.1 n1 n2" >> etc/hosts
mkdir -p etc/slurm var/spool/{slurmctld,slurmd-n1,slurmd-n2} run/munge
cat > etc/slurm/slurm.conf << CONF
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
SlurmdUser=root
# Else a job that is queued again waits two minutes.
AuthInfo=cred_expire=8
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdLogFile=$scratch/slurmd-%n.log
SlurmctldLogFile=$scratch/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobRequeue=1
SlurmdTimeout=10
ReturnToService=2
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=${ports[1]} CPUs=1
NodeName=n2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=${ports[2]} CPUs=1
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
CONF

chroot . bash -euc '
chown munge: /run/munge
[[ -f /etc/munge/munge.key ]] || mungekey --create
chown munge: /etc/munge/munge.key
su -s /bin/bash munge -c munged
slurmctld
slurmd -N n1
slurmd -N n2
until [[ $(sinfo --noheader --format=%T:%D) == *idle:2* ]]; do sleep 0.2; done
' > "$scratch/daemons.log" 2>&1
echo "$root/merged" > "$scratch/ready"
sleep infinity
