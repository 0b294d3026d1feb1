# Both ranks of on_the_wire.py, each on the node that NODE_0 and NODE_1 are the commands of, over DEVICE_0 and DEVICE_1.
export WORLD_SIZE=2 LOCAL_RANK=0 OMP_NUM_THREADS=1
eval "RANK=0 GLOO_SOCKET_IFNAME=\$DEVICE_0 $NODE_0 \"\$PYTHON\" on_the_wire.py \"\$@\"" &
first=$!
eval "RANK=1 GLOO_SOCKET_IFNAME=\$DEVICE_1 $NODE_1 \"\$PYTHON\" on_the_wire.py \"\$@\"" &
wait $! && wait $first
