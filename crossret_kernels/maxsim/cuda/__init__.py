"""Backend "cuda" of Sum-Max: host code; the kernels are in csrc/maxsim."""
