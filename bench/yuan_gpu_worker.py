"""What bench/yuan_gpu.py has vLLM's worker do to the random weights that it made."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch


class Randomise:
    """vLLM mixes this into its worker (worker_extension_cls)."""

    def randomise(self) -> dict[str, int]:
        """Set norms to 1 and draw the integers of packed weights, in place: captured graphs read the same memory."""
        model: Any = self.get_model()  # type: ignore[attr-defined]
        counts: dict[str, int] = defaultdict(int)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dtype in (torch.int32, torch.uint8, torch.int8) and tensor.numel() > 1 << 16:
                limit = torch.iinfo(tensor.dtype)
                tensor.data.random_(limit.min, limit.max)
                counts["drawn_bytes"] += tensor.numel() * tensor.element_size()
            elif "norm" in name and tensor.dim() == 1 and tensor.is_floating_point():
                tensor.data.fill_(1.0)
                counts["norms"] += 1
            counts["bytes"] += tensor.numel() * tensor.element_size()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return dict(counts)
