"""Backend "reference" of attention pooling: MHSAN Eqs. 1 and 2 as an einsum, everything materialised."""

from __future__ import annotations

import torch
from torch import Tensor

from crossret_kernels.inputs.ragged import Ragged
from crossret_kernels.padded.forms import pad_items


def attention_pool_reference(values: Ragged, logits: Ragged) -> tuple[Tensor, Tensor]:
    """Pooled (n, r, D) and weights (n, r, L)."""
    dtype = torch.promote_types(values.values.dtype, torch.float32)
    (x, mask), (a, _) = pad_items(values), pad_items(logits)
    weights = torch.softmax(a.to(dtype).mT.masked_fill(~mask[:, None], -torch.inf), -1)
    return torch.einsum("nrl,nld->nrd", weights, x.to(dtype)), weights
