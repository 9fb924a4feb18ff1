"""Several processes that train one model: negatives across all of them, with the gradients of one."""

from crossret.distributed.group import ALONE, Group, RankLost
from crossret.distributed.share import Share

__all__ = ["ALONE", "Group", "RankLost", "Share"]
