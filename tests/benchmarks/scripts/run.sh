# The script and its arguments on two nodes, EACH ranks a node: NODE_0 and NODE_1 are their commands, over DEVICE_0 and
# DEVICE_1. What ends first with another status than 0 gives that of the whole.
export OMP_NUM_THREADS=1 WORLD_SIZE=$((2 * EACH))
rank=0
for node in 0 1; do
  eval "command=\$NODE_$node device=\$DEVICE_$node"
  local=0
  while [ "$local" -lt "$EACH" ]; do
    eval "RANK=$rank LOCAL_RANK=$local GLOO_SOCKET_IFNAME=\$device $command \"\$PYTHON\" \"\$@\"" &
    started="$started $!"
    rank=$((rank + 1)) local=$((local + 1))
  done
done
for process in $started; do wait "$process" || exit; done
