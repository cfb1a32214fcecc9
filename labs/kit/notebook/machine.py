"""Describes this machine for a lab's first line: `torch 2.13 · CPU · 2 cores`."""

from __future__ import annotations

from typing import Any


class Machine:
    """Devices as torch sees them; torch is imported at the first look."""

    @property
    def gpus(self) -> int:
        import torch

        return torch.cuda.device_count()

    @property
    def tier(self) -> str:
        """cpu, gpu or multi: selects the column of a lab's SIZES."""
        return "cpu" if self.gpus == 0 else "gpu" if self.gpus == 1 else "multi"

    @property
    def device(self) -> Any:
        """cuda:0 where there is one, else the CPU."""
        import torch

        return torch.device("cuda:0" if self.gpus else "cpu")

    @property
    def cores(self) -> int:
        """The cores that this process may use."""
        from minitrain.measure.clock import usable_cores

        return usable_cores()

    @property
    def processor(self) -> str:
        """'CPU', 'NVIDIA H200' or '4 x NVIDIA H200'."""
        import torch

        if not self.gpus:
            return "CPU"
        name = torch.cuda.get_device_name(0)
        return name if self.gpus == 1 else f"{self.gpus} × {name}"

    @property
    def name(self) -> str:
        """The machine's name in a figure's title: '2 CPU cores', or the GPUs."""
        return self.processor if self.gpus else f"{self.cores} CPU core{'s' * (self.cores != 1)}"

    def __repr__(self) -> str:
        import torch

        version = ".".join(torch.__version__.split("+")[0].split(".")[:2])
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"torch {version} · {self.processor} · {cores}"
