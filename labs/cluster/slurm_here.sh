#!/usr/bin/env bash
# A Slurm cluster of two nodes on this one machine, n0 and n1 with a CPU each, to try job files on:
#
#   eval "$(bash slurm_here.sh start)"     # prints export SLURM_CONF=…, which sbatch and the others read
#   sinfo; sbatch …; squeue
#   bash slurm_here.sh stop
#
# Partition `low` is preempted by `high`: its jobs get SIGTERM, 30 s of grace, and are requeued. No
# systemd, nothing in /etc, no root: Debian's packages alone. HERE is its folder, PORT the first of
# three ports.
set -euo pipefail

HERE=${HERE:-${TMPDIR:-/tmp}/slurm-here-$(id -un)}
PORT=${PORT:-16817}
HOST=$(hostname -s)
PATH=$PATH:/usr/sbin

start() {
  for tool in munged slurmctld slurmd sbatch; do
    command -v "$tool" >/dev/null && continue
    echo "$tool is missing: sudo apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge" >&2
    exit 1
  done
  mkdir -p "$HERE"/{state,n0,n1}
  chmod 755 "$HERE"
  write_conf
  (umask 077; [ -f "$HERE/munge.key" ] || head -c 1024 /dev/urandom >"$HERE/munge.key")
  munged --force --num-threads 2 --key-file "$HERE/munge.key" --socket "$HERE/munge.socket" \
    --pid-file "$HERE/munged.pid" --log-file "$HERE/munged.log" --seed-file "$HERE/munge.seed"
  export SLURM_CONF=$HERE/slurm.conf
  slurmctld -c -f "$SLURM_CONF"
  for node in n0 n1; do slurmd -f "$SLURM_CONF" -N "$node"; done
  for _ in $(seq 120); do
    [ "$(sinfo -h -p low -t idle -o %D 2>/dev/null)" = 2 ] && echo "export SLURM_CONF=$SLURM_CONF" && return
    sleep 0.5
  done
  echo "the nodes did not come within a minute: see $HERE/*.log" >&2
  exit 1
}

write_conf() {
  cat >"$HERE/slurm.conf" <<END
ClusterName=here
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
# a job that is requeued waits so long before it may start: 120 s, were it not said
AuthInfo=socket=$HERE/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation=$HERE/state
SlurmdSpoolDir=$HERE/%n
SlurmctldPidFile=$HERE/slurmctld.pid
SlurmdPidFile=$HERE/slurmd-%n.pid
SlurmctldLogFile=$HERE/slurmctld.log
SlurmdLogFile=$HERE/slurmd-%n.log
# what wants root or cgroups, and is not needed here
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
# a node that is silent so long is gone, and its jobs are requeued: 300 s, were it not said
SlurmdTimeout=20
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n0 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((PORT + 1)) CPUs=1
NodeName=n1 NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((PORT + 2)) CPUs=1
PartitionName=low Nodes=n0,n1 Default=YES PriorityTier=1 GraceTime=30 MaxTime=INFINITE
PartitionName=high Nodes=n0,n1 PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
END
}

stop() {
  if [ -f "$HERE/slurm.conf" ]; then
    export SLURM_CONF=$HERE/slurm.conf
    scancel --user="$(id -un)" 2>/dev/null || true
    for _ in $(seq 100); do  # a node that still ends a job outlives its own end
      [ -z "$(squeue -h 2>/dev/null)" ] && break
      sleep 0.5
    done
  fi
  for name in slurmd-n0 slurmd-n1 slurmctld munged; do
    [ -f "$HERE/$name.pid" ] && kill "$(cat "$HERE/$name.pid")" 2>/dev/null || true
  done
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  *) echo "usage: bash slurm_here.sh start|stop" >&2; exit 2 ;;
esac
