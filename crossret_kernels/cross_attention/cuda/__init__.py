"""Backend "cuda" of stacked cross attention: host code; the kernels are in csrc/cross_attention."""
