#!/usr/bin/env bash
# What a container of the pipeline's image does, by its first argument:
#   driver ARGUMENTS...   run `dledger-pipeline ARGUMENTS...`; where they ask for a Spark session, its
#                         driver runs in this container and its executors are pods of this image
#   executor              run what Spark on Kubernetes asks for in its environment variables
set -euo pipefail

usage() {
  sed -n 's/^# \{0,1\}//p' "$0" | tail -n +2 >&2
  exit 2
}

# A driver lives for minutes and only tells others what to do: to optimise its code would take half
# of all the processor time that a small backup needs.
driver() {
  local quick="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
  export SPARK_LAUNCHER_OPTS="${SPARK_LAUNCHER_OPTS-$quick}"
  export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS-$quick}"
  exec tini -s -- python -m dledger_pipeline "$@"
}

# Spark numbers the options, since one may hold blanks: SPARK_JAVA_OPT_10 comes after SPARK_JAVA_OPT_9.
executor() {
  local options
  readarray -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | sed 's/^[^=]*=//')
  exec tini -s -- java "${options[@]}" \
    -Xms"${SPARK_EXECUTOR_MEMORY}" -Xmx"${SPARK_EXECUTOR_MEMORY}" \
    -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:${SPARK_HOME}/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "${SPARK_DRIVER_URL}" \
    --executor-id "${SPARK_EXECUTOR_ID}" \
    --cores "${SPARK_EXECUTOR_CORES}" \
    --app-id "${SPARK_APPLICATION_ID}" \
    --hostname "${SPARK_EXECUTOR_POD_IP}" \
    --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID}" \
    --podName "${SPARK_EXECUTOR_POD_NAME}"
}

case "${1:-}" in
  driver) driver "${@:2}" ;;
  executor) executor ;;
  *) usage ;;
esac
