#!/usr/bin/env bash
# A Slurm on this machine alone, for tests/command/test_slurm.py: a partition "low", whose jobs are preempted and put into
# the queue again, and one "high". As root, with munge and Slurm installed (Debian: apt-get install slurm-wlm munge).
# A requeued job waits for `cred_expire` seconds; the times that jobs and messages are given are for a machine under load.
#
#     slurm_on_one_machine.sh start FOLDER   configuration, state and logs go there; prints what to export
#     slurm_on_one_machine.sh stop FOLDER    ends the daemons that `start` began
set -euo pipefail
what=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf

if [ "$what" = stop ]; then
  scancel --user="$(id -un)" 2> /dev/null || true
  for daemon in slurmd slurmctld munge/munged; do
    [ -s "$folder/$daemon.pid" ] || continue
    pid=$(cat "$folder/$daemon.pid")
    kill "$pid" 2> /dev/null || true
    for _ in $(seq 20); do kill -0 "$pid" 2> /dev/null || break; sleep .5; done
  done
  exit 0
fi

mkdir -p "$folder"/{state,spool,log,munge}
head -c 1024 /dev/urandom > "$folder/munge/key"
chown -R munge "$folder/munge"
chmod 755 "$folder" "$folder/munge"
chmod 400 "$folder/munge/key"
files="--key-file=$folder/munge/key --socket=$folder/munge/socket --pid-file=$folder/munge/munged.pid"
files+=" --log-file=$folder/munge/log --seed-file=$folder/munge/seed"
su munge -s /bin/sh -c "munged --force $files"
for _ in $(seq 5); do [ -s "$folder/munge/munged.pid" ] && break; sleep 1; done
memory=$(($(awk '/MemTotal/{print $2}' /proc/meminfo) / 1024 - 512))
cat > "$SLURM_CONF" << END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=20
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.log
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=30
MessageTimeout=60
BatchStartTimeout=60
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
END
slurmctld
sleep 2
slurmd -N "$host"
for _ in $(seq 20); do sinfo -h -o %T | grep -q idle && break; sleep 1; done
sinfo -h -o %T | grep -q idle || { echo "Slurm does not answer, see $folder/log" >&2; exit 1; }
echo "export SLURM_CONF=$SLURM_CONF"
