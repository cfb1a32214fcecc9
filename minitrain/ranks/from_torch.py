"""A `Group` over ranks that torch.distributed has brought together already.

    dist.init_process_group("gloo")                 or init_device_mesh("cpu", (8,))
    group = group_from_torch()                      or group_from_torch(mesh)

It opens no connection, seeds nothing and sends nothing: a script of one's own keeps its process
groups and its random numbers, and hands the group to any technique of this package.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from minitrain.errors import InputError
from minitrain.ranks.group import Group


def group_from_torch(source: dist.ProcessGroup | DeviceMesh | None = None) -> Group:
    """The group of a process group, of a mesh with one dimension, or by default of all ranks.

    Call it once for each, on all of its ranks: what is made from the group is named after it.
    """
    if not dist.is_initialized():
        raise InputError(
            "torch.distributed is not initialised: call dist.init_process_group() first, or use "
            "minitrain.ranks.launch"
        )
    if isinstance(source, DeviceMesh):
        source = _process_group(source)
    elsewhere = source == dist.GroupMember.NON_GROUP_MEMBER  # what new_group gives non-members
    if not (source is None or elsewhere or isinstance(source, dist.ProcessGroup)):
        raise InputError(
            f"group_from_torch({source!r}): give a process group (dist.new_group([0, 1])), a mesh "
            "of one dimension, or nothing for all ranks"
        )
    process_group = source or dist.group.WORLD
    rank = dist.get_rank(process_group)
    if rank < 0:
        raise InputError("this rank is not in the process group: call it on the members alone")
    ranks = dist.get_process_group_ranks(process_group)
    return Group(process_group, ranks, rank, _device(process_group), name=process_group.group_name)


def _process_group(mesh: DeviceMesh) -> dist.ProcessGroup:
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names or tuple(range(mesh.ndim))
        raise InputError(
            f"a mesh of {mesh.ndim} dimensions {names} is not one group: choose a dimension, "
            f"mesh[{names[0]!r}]"
        )
    return mesh.get_group()


def _device(process_group: dist.ProcessGroup) -> torch.device:
    """The device of its tensors: this process's GPU for NCCL, else the CPU."""
    on_gpu = "nccl" in dist.get_backend_config(process_group)
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
