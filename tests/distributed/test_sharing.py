"""Rows, scores and losses on three ranks are those of one process, and so are their gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from crossret.distributed import ALONE, Group, Share, sum_gradients
from crossret.losses import InfoNceLoss, MatchingLoss, SigmoidLoss, StructurePreservingLoss, TripletLoss
from crossret.models.encoded import Encoded
from tests.distributed.ranks import on_ranks
from tests.models.batch import BOXES, FEATURES, LENGTHS, REGION_LENGTHS, TOKENS, of

# Pairs of each rank: ragged, and one rank with none.
RAGGED = [(3, 1, 4), (2, 0, 1)]
# Every loss of a model, and every kind of what ranks gather of their captions.
MODELS = [
    *("scan", "sman", "sman levels", "han clusters", "mhsan", "oan", "oan no inter", "oan no attention", "vse order"),
    *("scan infonce", "mhsan sigmoid", "oan infonce"),
]
LOSSES: list[MatchingLoss] = [
    *(
        TripletLoss(0.5, negatives, reduction=reduction)
        for negatives, reduction in itertools.product(("hardest", "sum", "softmax"), ("sum", "mean"))
    ),
    InfoNceLoss(3.0).double(),
    InfoNceLoss(0.5, label_smoothing=0.1, reduction="sum").double(),
    SigmoidLoss(2.0, -3.0).double(),
    SigmoidLoss(2.0, -3.0, reduction="sum").double(),
]
BATCH = 11
_RANDOM = torch.Generator().manual_seed(7)
IMAGES, CAPTIONS, WEIGHTS = (torch.randn(BATCH, 6, generator=_RANDOM, dtype=torch.float64) for _ in range(3))
IDS = torch.randint(0, 5, (BATCH,), generator=_RANDOM)  # several captions of an image, on different ranks too


def share_of(group: Group, counts: tuple[int, ...]) -> Share:
    """The test's share, by what every rank says of itself."""
    share = Share.of(group, counts[group.rank])
    assert share == Share(group, counts)
    return share


def leaves(share: Share, *tensors: Tensor) -> list[Tensor]:
    return [tensor[share.rows].clone().requires_grad_() for tensor in tensors]


def losses_of(share: Share) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Of every loss its value and its parameters' gradients, and those of the share's images and captions."""
    found = []
    for module, ids in itertools.product(LOSSES, (None, IDS)):
        images, captions = leaves(share, IMAGES, CAPTIONS)
        scores = images @ share.gathered(captions).T
        loss = module(scores, None if ids is None else ids[share.rows], share=share)
        rows, columns, *numbers = torch.autograd.grad(loss, (images, captions, *module.parameters()))
        found.append(([loss.detach(), *numbers], [rows, columns]))
    for negatives, ids in itertools.product(("own", "partner", "none"), (None, IDS)):
        images, captions = leaves(share, IMAGES, CAPTIONS)
        all_images, all_captions = share.gathered(images), share.gathered(captions)
        scores = images @ all_captions.T
        within = images @ all_images.T, captions @ all_captions.T
        terms = StructurePreservingLoss(0.5, intra_negatives=negatives, intra_margin=2.0)(
            scores, *within, None if ids is None else ids[share.rows], share=share
        )
        loss = terms[0] + terms[1]
        found.append(([loss.detach()], [*torch.autograd.grad(loss, (images, captions))]))
    return found


def rows_and_losses(ragged: list[tuple[int, ...]]) -> list[tuple[Share, list[tuple[list[Tensor], list[Tensor]]]]]:
    """What one rank finds: it looks itself at what needs no other rank's results."""
    group, found = Group.current(), []
    for counts in ragged:
        share = share_of(group, counts)
        for tensor in (IMAGES[: share.total], IMAGES[: share.total].bfloat16(), IDS[: share.total]):
            assert torch.equal(share.gathered(tensor[share.rows]), tensor)
        (rows,) = leaves(share, IMAGES)
        weights = WEIGHTS[: share.total] * (group.rank + 1)  # every rank makes something else of the rows
        (gradient,) = torch.autograd.grad((share.gathered(rows) * weights).sum(), rows)
        torch.testing.assert_close(gradient, WEIGHTS[share.rows] * sum(range(1, group.size + 1)))

        matrix = (IMAGES @ CAPTIONS.T)[: share.total, : share.total]
        (own,) = leaves(share, matrix)
        columns = share.exchanged(own)
        assert torch.equal(columns, matrix[:, share.rows])
        (gradient,) = torch.autograd.grad((columns * matrix.T[:, share.rows]).sum(), own)
        assert torch.equal(gradient, matrix.T[share.rows])
        found.append((share, losses_of(share)))
    return found


def test_rows_scores_and_losses_are_those_of_one_process() -> None:
    by_rank = on_ranks(3, rows_and_losses, RAGGED)
    for case in range(len(RAGGED)):
        shares, losses = zip(*(found[case] for found in by_rank), strict=True)
        expected = losses_of(Share.whole(shares[0].total))
        for number, (sums, gradients) in enumerate(expected):
            for place, value in enumerate(sums):
                torch.testing.assert_close(sum(found[number][0][place] for found in losses), value)
            for place, gradient in enumerate(gradients):
                torch.testing.assert_close(torch.cat([found[number][1][place] for found in losses]), gradient)


def loss_of_model(variant: str, counts: tuple[int, ...], group: Group) -> tuple[dict[str, Tensor], list[Tensor]]:
    """A batch with images that are there twice, known of eight only: terms and every parameter's gradient."""
    share = Share(group, counts)
    model = of(variant, margin=2.0)
    batch = torch.arange(share.total) % 3
    items = batch[share.encoded_rows]
    noise = 0.1 * torch.randn(share.total, *FEATURES.shape[1:], generator=torch.Generator().manual_seed(2))
    # Captions are padded to the longest of the rank, images as they are in the data.
    words = int(LENGTHS[items].max())
    images = model.encode_images(FEATURES[items] + noise[share.encoded_rows], REGION_LENGTHS[items], BOXES[items])
    captions = model.encode_captions(TOKENS[items, :words], LENGTHS[items])
    terms = model.loss(images[: share.n], captions[: share.n], batch[share.rows] if share.total > 5 else None, share)
    terms["loss"].backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return {name: term.detach() for name, term in terms.items()}, gradients


def losses_of_models(ragged: list[tuple[int, ...]]) -> list[tuple[dict[str, Tensor], list[Tensor]]]:
    return [loss_of_model(variant, counts, Group.current()) for variant in MODELS for counts in ragged]


def test_losses_of_every_model_are_those_of_one_process(one_thread: None) -> None:
    by_rank = on_ranks(3, losses_of_models, RAGGED)
    for (variant, counts), *found in zip(itertools.product(MODELS, RAGGED), *by_rank, strict=True):
        terms, gradients = loss_of_model(variant, (sum(counts),), ALONE)
        assert all(of_rank.keys() == terms.keys() for of_rank, _ in found)
        for name, term in terms.items():
            torch.testing.assert_close(sum(of_rank[name] for of_rank, _ in found), term, rtol=1e-5, atol=1e-5)
        largest = max(gradient.abs().max().item() for gradient in gradients)
        for place, gradient in enumerate(gradients):
            summed = sum(of_rank[place] for _, of_rank in found)
            torch.testing.assert_close(summed, gradient, rtol=1e-5, atol=3e-5 * largest, msg=variant)


def gathered_items() -> None:
    group = Group.current()
    whole = Encoded(torch.randn(5, 4, 2), torch.tensor([2, 1, 4, 3, 1]), {"places": torch.arange(20).view(5, 4)})
    group.broadcast([whole.sequences])
    share, width = Share.of(group, 2 if group.rank else 3), 3 if group.rank else 4
    own = whole[share.rows]
    own = Encoded(own.sequences[:, :width], own.lengths, {"places": own.vectors["places"][:, :width]})
    gathered = own.gathered(share)
    assert torch.equal(gathered.lengths, whole.lengths)
    assert torch.equal(gathered.sequences[3:, :3], whole.sequences[3:, :3])
    assert not gathered.sequences[3:, 3:].any()
    assert (gathered.vectors["places"][3:, 3:] == -1).all()


def test_items_are_gathered_at_the_longest_of_all_ranks() -> None:
    on_ranks(2, gathered_items)


def summed_gradients() -> list[Tensor | None]:
    """Of parameters with gradients on both ranks, on one, on none, and of one that is not trained."""
    group = Group.current()
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (3, 2, 2, 9 * 2**20, 1)]
    parameters.append(torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    parameters[4].requires_grad_(False)
    for number, parameter in enumerate(parameters):
        if number in (0, 3, 5) or (number, group.rank) == (1, 1):
            parameter.grad = torch.full_like(parameter, 10.0**group.rank)
    sum_gradients(group, parameters)
    return [None if parameter.grad is None else parameter.grad[-1:] for parameter in parameters]


def test_gradients_are_summed_where_any_rank_has_one() -> None:
    expected = [torch.tensor([11.0]), torch.tensor([10.0]), None, torch.tensor([11.0]), None]
    for of_rank in on_ranks(2, summed_gradients):
        assert str(of_rank) == str([*expected, torch.tensor([11.0], dtype=torch.float64)])


@pytest.mark.parametrize(("size", "total"), [(1, 5), (2, 5), (3, 2), (4, 4)])
def test_a_batch_is_cut_into_contiguous_parts(size: int, total: int) -> None:
    shares = [Share.cut(Group(rank, size), total) for rank in range(size)]
    assert [place for share in shares for place in range(total)[share.rows]] == list(range(total))
    assert max(shares[0].counts) - min(shares[0].counts) <= 1
    assert all(len(range(total)[share.encoded_rows]) == max(share.n, 1) for share in shares)


def test_what_does_not_fit_the_share_is_an_error() -> None:
    share = Share(Group(1, 2), (1, 2))
    with pytest.raises(ValueError, match=r"scores of rank 1 must have shape \(2, 3\), its share of a batch of 3, got"):
        TripletLoss()(torch.zeros(3, 3), share=share)
    with pytest.raises(ValueError, match="reduction must be one of sum, mean, not"):  # before anything is sent
        TripletLoss(reduction="none")(torch.zeros(2, 3), share=share)
    with pytest.raises(ValueError, match=r"image_ids must hold one id for each of this rank's 2 pairs, got \(3,\)"):
        TripletLoss()(torch.zeros(2, 3), torch.arange(3), share=share)
    with pytest.raises(ValueError, match="positive_offset is the share's, 1, and must not be given beside it"):
        TripletLoss()(torch.zeros(2, 3), positive_offset=1, share=share)
    with pytest.raises(ValueError, match=r"tensor of rank 1 must have shape \(2, 4\)"):
        share.gathered(torch.zeros(1, 4))
