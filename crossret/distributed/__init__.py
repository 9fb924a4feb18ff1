"""Several processes that train one model: negatives across all of them, with the gradients of one.

In a training loop of your own, where ``torch.distributed`` is initialised and every rank has some pairs:

    share = Share.of(Group.current(), len(images))
    scores = scan_scores(images, share.gathered(captions))  # this rank's rows
    loss = TripletLoss()(scores, image_ids, share=share)  # and its columns
    loss.backward()
    sum_gradients(share.group, model.parameters())

Gradients of all ranks add up to those of one process with all pairs. ``DistributedDataParallel`` takes their mean
instead: multiply the loss by ``share.group.size``, and leave ``sum_gradients`` out.
"""

from crossret.distributed.gradients import sum_gradients
from crossret.distributed.group import ALONE, Group, RankLost
from crossret.distributed.share import Share

__all__ = ["ALONE", "Group", "RankLost", "Share", "sum_gradients"]
