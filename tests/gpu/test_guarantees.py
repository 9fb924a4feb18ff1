"""What GPU backends promise besides scores: the same bits again, no waiting, bounded memory, NaN that stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crossret_kernels import maxsim_topk, scan_scores, scan_topk, triplet_loss
from crossret_kernels.inputs import pairs as selection
from tests.gpu.device import DEVICE, backends, gpu, lengths, offsets, randn, scorers, skip_if_too_long

pytestmark = gpu
directions = pytest.mark.parametrize("direction", ["t2i", "i2t"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
MOST_BYTES = 256 * 2**20  # beyond inputs, scores and gradients


SHORT, LONG = (36, 20), (197, 77)  # items of regions and of words: within a tile and a block of attention, and beyond
rows = pytest.mark.parametrize("rows", [SHORT, LONG], ids=["short", "long"])


def batch(
    n_images: int = 60,
    n_captions: int = 60,
    dim: int = 512,
    dtype: torch.dtype = torch.float32,
    rows: tuple[int, int] = SHORT,
) -> list[Tensor]:
    """Features on the device that require gradients, lengths on the host."""
    sides = randn(n_images, rows[0], dim, dtype=dtype), randn(n_captions, rows[1], dim, seed=1, dtype=dtype)
    of_items = (lengths(n, own // 4, own) for n, own in zip((n_images, n_captions), rows, strict=True))
    return [*(side.requires_grad_() for side in sides), *of_items]


def step(function: Callable[..., Tensor], arguments: list[Tensor], backend: str, **options: Any) -> tuple[Tensor, ...]:
    """Scores, and gradients in both sides of a loss that every pair has a part in."""
    scores = function(*arguments, backend=backend, **options)
    return scores.detach(), *torch.autograd.grad(scores.square().sum(), arguments[:2])


def assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@scorers
@dtypes
@rows
@directions
def test_the_same_bits_again(
    function: Callable[..., Tensor], direction: str, rows: tuple[int, int], dtype: torch.dtype, backend: str
) -> None:
    skip_if_too_long(backend, rows, direction)
    arguments = batch(200, 300, dtype=dtype, rows=rows)
    expected = step(function, arguments, backend, direction=direction)
    for _ in range(3):
        assert_same(step(function, arguments, backend, direction=direction), expected)
    pairs = torch.stack([torch.randint(0, n, (2000,), device=DEVICE) for n in (200, 300)], 1)
    expected = step(function, arguments, backend, direction=direction, pairs=pairs)
    assert_same(step(function, arguments, backend, direction=direction, pairs=pairs), expected)


@scorers
@directions
def test_a_graph_of_a_training_step_follows_its_batch(
    function: Callable[..., Tensor], direction: str, backend: str
) -> None:
    """Scores, loss and gradients, replayed with other features and lengths, as docs/backends.md shows."""
    regions, words, *of_items = batch()
    region_lengths, word_lengths = (own.to(DEVICE) for own in of_items)

    def taken() -> tuple[Tensor, ...]:
        scores = function(regions, words, region_lengths, word_lengths, direction=direction, backend=backend)
        loss = triplet_loss(scores)
        return loss.detach(), *torch.autograd.grad(loss, (regions, words))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        taken()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = taken()
    for seed in (5, 6):
        with torch.no_grad():
            regions.copy_(randn(*regions.shape, seed=seed))
            words.copy_(randn(*words.shape, seed=seed + 2))
            region_lengths.copy_(lengths(len(region_lengths), 1, SHORT[0], seed=seed))
            word_lengths.copy_(lengths(len(word_lengths), 1, SHORT[1], seed=seed))
        graph.replay()
        assert_same(captured, taken())


@backends
def test_what_its_lengths_cut_up_is_not_captured(backend: str) -> None:
    arguments = batch(2000, 5000)
    arguments[2:] = [own.to(DEVICE) for own in arguments[2:]]
    with pytest.raises(RuntimeError, match="no CUDA graph can be captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        scan_scores(*arguments, backend=backend)


@scorers
@rows
@directions
def test_nothing_waits_for_the_device(
    function: Callable[..., Tensor],
    direction: str,
    rows: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
) -> None:
    """With lengths on the host, whether calls are cut up by them or not.

    Pairs on the device are looked at before they are scored, which waits; nothing after that does.
    """
    skip_if_too_long(backend, rows, direction)
    monkeypatch.setattr(selection, "checkable", lambda: False)
    arguments = batch(rows=rows)
    expected = step(function, arguments, backend, direction=direction)
    pairs = torch.tensor([[0, 1], [5, 7]], device=DEVICE)
    listed = step(function, arguments, backend, direction=direction, pairs=pairs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = step(function, arguments, backend, direction=direction)
        found_listed = step(function, arguments, backend, direction=direction, pairs=pairs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(found, expected)
    assert_same(found_listed, listed)


def rise(call: Callable[[], Any]) -> int:
    """Bytes at the peak beyond what there was before and the results."""
    call()  # compiles
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = call()
    peak = torch.cuda.max_memory_allocated()
    kept = results if isinstance(results, tuple) else (results,)
    return peak - before - sum(result.untyped_storage().nbytes() for result in kept)


@scorers
@dtypes
@rows
@directions
def test_memory_of_scores(
    function: Callable[..., Tensor], direction: str, rows: tuple[int, int], dtype: torch.dtype, backend: str
) -> None:
    skip_if_too_long(backend, rows, direction, gradients=False)
    arguments = [value.detach() for value in batch(1000, 5000 if rows == SHORT else 1000, dtype=dtype, rows=rows)]
    assert rise(lambda: function(*arguments, direction=direction, backend=backend)) <= MOST_BYTES


@scorers
@dtypes
@rows
@directions
def test_memory_of_gradients(
    function: Callable[..., Tensor], direction: str, rows: tuple[int, int], dtype: torch.dtype, backend: str
) -> None:
    skip_if_too_long(backend, rows, direction)
    arguments = batch(512, 512, 1024, dtype, rows)
    scores = function(*arguments, direction=direction, backend=backend)
    weights = randn(*scores.shape, seed=3)
    assert rise(lambda: torch.autograd.grad(scores, arguments[:2], weights, retain_graph=True)) <= MOST_BYTES


@scorers
def test_autocast_scores_at_its_dtype(function: Callable[..., Tensor], backend: str) -> None:
    arguments = batch()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = function(*arguments, backend=backend)
        gradients = torch.autograd.grad(scores.square().sum(), arguments[:2])
    halves = [*(side.detach().bfloat16().requires_grad_() for side in arguments[:2]), *arguments[2:]]
    expected = step(function, halves, backend)
    assert_same((scores.detach(), *gradients), (expected[0], *(gradient.float() for gradient in expected[1:])))


@scorers
@pytest.mark.filterwarnings("ignore")  # of what torch's own compiler warns
def test_a_compiled_training_step(function: Callable[..., Tensor], backend: str) -> None:
    torch.compiler.reset()
    arguments = batch()

    def loss(*values: Tensor) -> Tensor:
        return triplet_loss(function(*values, backend=backend))

    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    gradients = [torch.autograd.grad(score(*arguments), arguments[:2]) for score in (compiled, loss)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@scorers
@rows
@pytest.mark.parametrize("spoilt", [float("nan"), float("inf"), -float("inf"), 3e38])
@directions
def test_what_is_not_finite_stays_in_its_item(
    function: Callable[..., Tensor], direction: str, rows: tuple[int, int], spoilt: float, backend: str
) -> None:
    skip_if_too_long(backend, rows, direction, gradients=False)
    clean = batch(rows=rows)
    expected = function(*clean, direction=direction, backend=backend)
    dirty = [value.detach().clone() for value in clean]
    dirty[0][7, 2, 100] = spoilt
    dirty[1][11, 3, 50] = spoilt
    found = function(*dirty, direction=direction, backend=backend)
    own = torch.zeros(60, 60, dtype=torch.bool, device=DEVICE)
    own[7] = own[:, 11] = True
    assert torch.equal(found[~own], expected[~own])
    if spoilt != spoilt:
        assert found[own].isnan().all()


@scorers
@dtypes
def test_padding_is_never_read(function: Callable[..., Tensor], dtype: torch.dtype, backend: str) -> None:
    clean = batch(dtype=dtype)
    expected = step(function, clean, backend)
    dirty = [value.detach().clone() for value in clean]
    for side, of_items in zip(dirty[:2], dirty[2:], strict=True):
        for item, length in zip(side, of_items.tolist(), strict=True):
            item[length:] = torch.nan
    assert_same(step(function, [*(side.requires_grad_() for side in dirty[:2]), *dirty[2:]], backend), expected)


def needs_memory(gibibytes: int) -> None:
    if torch.cuda.mem_get_info()[0] < gibibytes * 2**30:
        pytest.skip(f"takes {gibibytes} GiB of the device's memory")


@scorers
@directions
def test_features_of_more_elements_than_32_bits_count(
    function: Callable[..., Tensor], direction: str, backend: str
) -> None:
    needs_memory(24)
    n, dim = 2**31 // (36 * 1024) + 60, 1024
    values = randn(37, 36, dim, dtype=torch.bfloat16).repeat(-(-n // 37), 1, 1)[:n].clone()
    assert values.numel() > 2**31
    words = randn(3, 7, dim, seed=1, dtype=torch.bfloat16)
    of_items = torch.full((n,), 36)
    for features in (values, (values.view(-1, dim), offsets(of_items))):
        scores = function(features, words, direction=direction, backend=backend)
        few = function(values[:37], words, direction=direction, backend=backend)
        torch.testing.assert_close(scores, few.repeat(-(-n // 37), 1)[:n], rtol=1e-2, atol=1e-2)
        del scores
    values.requires_grad_()
    own, _ = torch.autograd.grad(
        function(values, words.requires_grad_(), direction=direction, backend=backend).sum(), (values, words)
    )
    few_values = values[:37].detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(
        function(few_values, words, direction=direction, backend=backend).sum(), few_values
    )
    last = (n - 1) % 37
    torch.testing.assert_close(own[n - 1], expected[last], rtol=5e-2, atol=1e-3 * float(expected.abs().max()))


@scorers
def test_more_scores_than_32_bits_count(function: Callable[..., Tensor], backend: str) -> None:
    needs_memory(16)
    n = 46_400
    regions, words = randn(n, 1, 16, dtype=torch.bfloat16), randn(n, 1, 16, seed=1, dtype=torch.bfloat16)
    scores = function(regions, words, backend=backend)
    assert scores.numel() > 2**31
    for rows in (slice(0, 100), slice(n - 100, n)):
        own = regions[rows], words[rows]
        true = function(*(side.double().cpu() for side in own), backend="reference").to(DEVICE, torch.float32)
        # Both, so that what fails is told to be of the place or not.
        for found, of in ((function(*own, backend=backend), "a few"), (scores[rows, rows], "all")):
            wrong = ((found - true).abs() > 1e-2 + 1e-2 * true.abs()).nonzero().tolist()
            values = [(float(found[i, j]), float(true[i, j])) for i, j in wrong[:5]]
            assert not wrong, f"of {of}, rows {rows}: {len(wrong)} at {wrong[:5]}, (found, true) {values}"


@scorers
@pytest.mark.parametrize("query", ["caption", "image"])
@directions
def test_topk_is_the_begin_of_all_scores_sorted(
    function: Callable[..., Tensor], query: str, direction: str, backend: str
) -> None:
    """Equal scores, of images and captions given twice, come by their index."""
    regions, words = randn(500, 12, 64).repeat(2, 1, 1), randn(300, 9, 64, seed=1).repeat(2, 1, 1)
    options: dict[str, Any] = {"direction": direction, "backend": backend}
    best = scan_topk if function is scan_scores else maxsim_topk
    whole = function(regions, words, **options)
    rows = whole.T if query == "caption" else whole
    values, indices = best(regions, words, k=10, query=query, **options)
    expected, _ = rows.sort(dim=1, descending=True, stable=True)
    torch.testing.assert_close(values, expected[:, :10], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows.gather(1, indices), values, rtol=1e-5, atol=1e-5)
    equal = values[:, 1:] == values[:, :-1]
    assert (indices[:, 1:] > indices[:, :-1])[equal].all()
    assert all(len(set(row)) == 10 for row in indices.tolist())


@backends
def test_a_corpus_in_host_memory_is_searched_block_by_block(backend: str) -> None:
    corpus = randn(20_000, 12, 64).cpu().numpy()
    queries = randn(40, 9, 64, seed=1)
    values, indices = scan_topk(corpus, queries, k=5, backend=backend)
    scores = scan_scores(torch.from_numpy(corpus).to(DEVICE), queries, backend=backend)
    expected = scores.T.sort(dim=1, descending=True).values[:, :5]
    assert values.device.type == indices.device.type == DEVICE.type
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
