"""Searching corpora that are larger than a machine, by tasks on the nodes of a Ray cluster."""

from crossret.search.cluster.corpus import RayCorpus
from crossret.search.cluster.nodes import ClusterError

__all__ = ["ClusterError", "RayCorpus"]
