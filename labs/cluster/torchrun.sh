#!/usr/bin/env bash
# On each of two nodes: HEAD=name-of-the-first-node bash torchrun.sh
set -euo pipefail

# A rank that dies starts again with all others, from the newest checkpoint. Without this a new rank
# may read a dead one's address, and no node can come later (torch 2.13).
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# --shutdown-timeout: torchrun kills its ranks 30 s after SIGTERM, were it not said (torch 2.13).
torchrun --max-restarts 3 --shutdown-timeout 110 --nnodes 2 --nproc-per-node 8 \
  --rdzv-backend c10d --rdzv-id minitrain --rdzv-endpoint "$HEAD:29500" \
  -m minitrain train --preset 100M --data tinystories --vocab 8192 --length 1024 --batch 64 --accumulate 16 \
  --tokens 2000000000 --dp 2 --tp 4 --pp 2 --sequence --out runs/100M-mesh
