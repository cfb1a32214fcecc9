#!/usr/bin/env bash
# On each of two nodes: NODE_RANK=0 (then 1) HEAD=name-of-the-first-node bash torchrun.sh
set -euo pipefail

# A rank that dies starts again with all others, from the newest checkpoint. Without this a new rank
# may read a dead one's address (torch 2.13), and a restart is spent on it.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

torchrun --max-restarts 3 --nnodes 2 --node-rank "$NODE_RANK" --nproc-per-node 8 \
  --master-addr "$HEAD" --master-port 29500 \
  -m minitrain train --preset 100M --data tinystories --vocab 8192 --length 1024 --batch 64 --accumulate 16 \
  --tokens 2000000000 --dp 2 --tp 4 --pp 2 --sequence --out runs/100M-mesh
