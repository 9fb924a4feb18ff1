"""Encoded: slicing, joining, moving, saving, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossret.files.tensors import write_tensors
from crossret.models.encoded import Encoded


def make(n: int, longest: int, dim: int = 3, *, seed: int = 0) -> Encoded:
    random = torch.Generator().manual_seed(seed)
    return Encoded(
        torch.randn(n, longest, dim, generator=random),
        torch.randint(1, longest + 1, (n,), generator=random),
        {"mean": torch.randn(n, dim, generator=random), "id": torch.arange(n)},
    )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=5))
@settings(max_examples=30)
def test_concat_keeps_every_item_and_pads_with_zeros(shapes: list[tuple[int, int]]) -> None:
    parts = [make(n, longest, seed=seed) for seed, (n, longest) in enumerate(shapes)]
    joined = Encoded.concat(parts)
    longest = max(longest for _, longest in shapes)
    assert joined.sequences.shape == (sum(n for n, _ in shapes), longest, 3)
    begin = 0
    for part, (n, length) in zip(parts, shapes, strict=True):
        piece = joined[begin : begin + n]
        assert torch.equal(piece.sequences[:, :length], part.sequences)
        assert not piece.sequences[:, length:].any()
        assert torch.equal(piece.lengths, part.lengths)
        assert torch.equal(piece.vectors["mean"], part.vectors["mean"])
        begin += n


def test_load_refuses_what_is_not_encoded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError, match="file: no such file"):
        Encoded.load(path)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(ValueError, match="file: not a readable safetensors file"):
        Encoded.load(path)
    write_tensors(path, {"sequences": torch.zeros(1, 1, 1)}, {"kind": "encoded"})
    with pytest.raises(ValueError, match="file: does not hold encoded"):
        Encoded.load(path)
    write_tensors(path, {"sequences": torch.zeros(2, 3, 1), "lengths": torch.tensor([1, 4])}, {"kind": "encoded"})
    with pytest.raises(ValueError, match=r"file: lengths\[1\] must be in 1\.\.3, got 4"):
        Encoded.load(path)


@pytest.mark.parametrize(
    ("sequences", "lengths", "vectors", "error", "message"),
    [
        (torch.zeros(2, 3), torch.ones(2).long(), {}, ValueError, r"sequences must have shape \(n, L, D\)"),
        (torch.zeros(2, 3, 1).long(), torch.ones(2).long(), {}, TypeError, "sequences must be floating point"),
        (torch.zeros(2, 3, 1), torch.ones(3).long(), {}, ValueError, r"lengths must have shape \(2,\)"),
        (torch.zeros(2, 3, 1), torch.tensor([1, 0]), {}, ValueError, r"lengths\[1\] must be in 1\.\.3, got 0"),
        (torch.zeros(2, 3, 1), torch.ones(2).long(), {"g": torch.zeros(3)}, ValueError, r"vectors\['g'\] must have 2"),
    ],
)
def test_fields_that_do_not_fit_are_named(
    sequences: torch.Tensor,
    lengths: torch.Tensor,
    vectors: dict[str, torch.Tensor],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        Encoded(sequences, lengths, vectors)


def test_concat_refuses_nothing_and_parts_that_differ() -> None:
    with pytest.raises(ValueError, match="nothing to concatenate"):
        Encoded.concat([])
    with pytest.raises(ValueError, match=r"parts\[1\] differs from parts\[0\]"):
        Encoded.concat([make(1, 2, dim=3), make(1, 2, dim=4)])
    with pytest.raises(ValueError, match=r"parts\[1\] differs from parts\[0\]"):
        Encoded.concat([make(1, 2), Encoded(torch.zeros(1, 2, 3), torch.tensor([1]))])


def test_what_was_padded_for_others_is_trimmed() -> None:
    own = Encoded(torch.ones(1, 2, 3), torch.tensor([2]), {"places": torch.tensor([[1, 0]]), "one": torch.ones(1, 4)})
    other = Encoded(
        torch.ones(1, 5, 3), torch.tensor([5]), {"places": torch.ones(1, 6).long(), "one": torch.ones(1, 4)}
    )
    again = Encoded.concat([own, other])[:1].trimmed()
    assert torch.equal(again.sequences, own.sequences) and again.lengths.tolist() == [2]
    assert all(torch.equal(again.vectors[name], vector) for name, vector in own.vectors.items())
