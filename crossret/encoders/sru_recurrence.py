"""The recurrence of simple recurrent units (Lei et al., EMNLP 2018): element-wise over time, all products before it."""

from __future__ import annotations

import itertools
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def sru_recurrence(
    projected: Tensor, highway: Tensor, peephole: Tensor, batch_sizes: Tensor, *, bidirectional: bool = False
) -> Tensor:
    """Hidden states of packed sequences, in the full peephole form.

        f_t = σ(W_f x_t + b_f + v_f ⊙ c_{t-1})        c_t = f_t ⊙ c_{t-1} + (1 - f_t) ⊙ (W x_t)
        r_t = σ(W_r x_t + b_r + v_r ⊙ c_{t-1})        h_t = r_t ⊙ tanh(c_t) + (1 - r_t) ⊙ highway_t        c_0 = 0

    Args:
        projected: (rows, 3, D) floating point, W x, W_f x + b_f and W_r x + b_r of every word, in the order of a
            ``PackedSequence``: by time, the longest caption first.
        highway: (rows, D), x or a linear map of it.
        peephole: (2, D), v_f and v_r.
        batch_sizes: (T,) int64 on the CPU, captions that have a word at each time.
        bidirectional: whether the second half of D reads every caption from its end.

    Returns:
        (rows, D) in the widest dtype of the three, differentiable once in all of them.
    """
    dtype = torch.promote_types(torch.promote_types(projected.dtype, highway.dtype), peephole.dtype)
    inputs = projected.to(dtype), highway.to(dtype), peephole.to(dtype)
    hidden: Tensor = cast(Any, _Recurrence).apply(*inputs, batch_sizes, bidirectional)
    return hidden


class _Recurrence(torch.autograd.Function):
    """Both directions in one loop over time: the second half of D is turned round before it and back after it."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, highway: Tensor, peephole: Tensor, batch_sizes: Tensor, bidirectional: bool
    ) -> Tensor:
        sizes: list[int] = batch_sizes.tolist()
        turned = _turned_rows(batch_sizes).to(projected.device) if bidirectional else None
        projected, highway = _turn(projected, turned), _turn(highway, turned)
        # Tensors kept for the backward pass are no views: a view would keep all the products that it is a part of.
        candidate, highway = projected[:, 0].contiguous(), highway.contiguous()
        gates = torch.empty_like(projected[:, 1:])
        cells, hidden = torch.empty_like(highway), torch.empty_like(highway)
        before = highway.new_zeros(sizes[0], highway.shape[1])
        begin = 0
        for size in sizes:
            rows = slice(begin, begin + size)
            before = before[:size]
            gate, cell = gates[rows], cells[rows]
            torch.addcmul(projected[rows, 1:], peephole, before[:, None], out=gate)
            gate.sigmoid_()
            torch.lerp(candidate[rows], before, gate[:, 0], out=cell)
            torch.tanh(cell, out=hidden[rows])
            torch.lerp(highway[rows], hidden[rows], gate[:, 1], out=hidden[rows])
            before, begin = cell, begin + size
        ctx.save_for_backward(candidate, highway, peephole, gates, cells, turned)
        ctx.sizes = sizes
        return _turn(hidden, turned)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        candidate, highway, peephole, gates, cells, turned = ctx.saved_tensors
        d_hidden = _turn(d_hidden, turned)
        squashed = cells.tanh()
        forget, reset = gates[:, 0], gates[:, 1]
        d_projected = d_hidden.new_empty(len(cells), 3, cells.shape[1])
        d_candidate, d_forget, d_reset = d_projected.unbind(1)
        # All but what flows from cell to cell, for every word at once.
        d_highway = d_hidden * (1 - reset)
        torch.mul(d_highway, reset, out=d_reset).mul_(squashed - highway)
        d_cells = d_hidden.mul(reset).mul_(1 - squashed * squashed)
        before = _shifted(cells, ctx.sizes)
        slope = (before - candidate).mul_(forget).mul_(1 - forget)  # d cell / d logit of the forget gate
        flow = torch.addcmul(forget, slope, peephole[0])  # d cell / d cell before, but for the reset gate
        end = len(cells)
        for size, size_before in itertools.pairwise(ctx.sizes[::-1]):
            rows, rows_before = slice(end - size, end), slice(end - size - size_before, end - size_before)
            d_before = d_cells[rows_before]
            d_before.addcmul_(d_cells[rows], flow[rows]).addcmul_(d_reset[rows], peephole[1])
            end -= size
        torch.mul(d_cells, slope, out=d_forget)
        torch.mul(d_cells, 1 - forget, out=d_candidate)
        d_peephole = torch.stack([(d_forget * before).sum(0), (d_reset * before).sum(0)])
        return _turn(d_projected, turned), _turn(d_highway, turned), d_peephole, None, None


def _shifted(cells: Tensor, sizes: list[int]) -> Tensor:
    """c_{t-1} in the place of every c_t, (rows, D)."""
    before = torch.empty_like(cells)
    before[: sizes[0]] = 0
    begin = sizes[0]
    for size_before, size in itertools.pairwise(sizes):
        before[begin : begin + size] = cells[begin - size_before : begin - size_before + size]
        begin += size
    return before


def _turned_rows(batch_sizes: Tensor) -> Tensor:
    """(rows,) int64: the row of the word that stands where this one does when its caption is read from the end."""
    starts = batch_sizes.cumsum(0) - batch_sizes
    times = torch.arange(len(batch_sizes)).repeat_interleave(batch_sizes)
    captions = torch.arange(len(times)) - starts[times]
    lengths = torch.bincount(captions)
    return starts[lengths[captions] - 1 - times] + captions


def _turn(x: Tensor, turned: Tensor | None) -> Tensor:
    """The second half of the last axis with every caption's words in reverse; its own inverse and its own gradient."""
    if turned is None:
        return x
    forward, backward = x.chunk(2, dim=-1)
    return torch.cat([forward, backward.index_select(0, turned)], dim=-1)
