"""Sizes that kernels for GPUs and their host code are tuned by; where shared memory decides, by how much there is.

Counted from what the compiler makes of kernels, not yet measured. None follows a batch's lengths or its number of
items: a kernel is compiled for each of a tile's sizes.
"""

from __future__ import annotations

from crossret_kernels.torch_internals import environment

LEAST = 16  # the least side of a product in Triton

# Shared memory that a block may have: compute capability 8.6, 8.9 and 12.x have 99 KiB, 8.0 and 8.7 163, 9.0 and
# 10.x 227.
SOME = 163 * 2**10


def slots_for(count: int) -> int:
    """Slots of a tile that holds so many."""
    return max(LEAST, 1 << max(count - 1, 0).bit_length())


class Attention:
    """Stacked cross attention."""

    TILE = 128  # rows of queries that a program attends with, at most
    BLOCK = 64  # contexts that it attends to at a time
    MOST_ITEMS = 64  # of queries in a tile: shorter ones than two rows leave it part empty
    CONTEXTS_PER_PROGRAM = 8  # items of contexts that a program attends to, at most
    PROGRAMS = 1024  # wanted of a launch, ahead of longer programs

    STEP = 64  # rows are packed to a multiple of it, so that products take no masks
    PACKED_ELEMENTS = 4096  # of the rows that a program packs at once
    POOLED_CONTEXTS, POOLED_QUERIES = 16, 32  # items of contexts, and queries, that are pooled at a time

    CELL_BYTES = 128 * 2**20  # of similarities and what is kept beside them, their gradients included
    ROW_BYTES = 24 * 2**20  # of either side's packed rows, in float32
    GRAM_BYTES = 24 * 2**20
    LISTED_BYTES = 128 * 2**20  # of listed pairs' rows and similarities together
    SUM_BYTES = 64 * 2**20  # of half-precision features' gradients in float32, where pairs are listed

    @classmethod
    def tile(cls, shared: int, ieee: bool, wide: bool) -> int:
        """Rows of queries in a tile, at most, with so many bytes of shared memory.

        IEEE products, in several parts each, take twice the registers. Items of several blocks of contexts take 113
        KiB of shared memory by the largest tile.
        """
        return max(LEAST, cls.TILE // 2) if ieee or (wide and shared < SOME) else cls.TILE

    @staticmethod
    def step(bytes_of: int, tf32: bool) -> int:
        """Columns of features that Gram matrices are multiplied by at a time, of so many bytes each."""
        return 64 if bytes_of == 2 else 32 if tf32 else 16

    @staticmethod
    def warps(tile: int) -> int:
        return 8 if tile > 64 else 4

    @staticmethod
    def registers(block: int, warps: int) -> int | None:
        """Registers of a thread, at most, in a program of so many warps that attends to blocks of contexts; None: any.

        128 leave room for two programs a processor, one of which works while the other waits: i2t took 46 ms for 59
        (H200, 1,000 × 5,000, 36 × 20 rows). Larger blocks take up to 255, and would spill.
        """
        return 128 if block <= 32 and warps == 8 else None

    @staticmethod
    def warps_of_grams(block: int) -> int:
        """Warps of the kernel of Gram matrices' gradients."""
        return 8 if block > 32 else 4


class AttendedPairs:
    """Attended vectors of listed pairs."""

    CELLS = 4096  # of a pair's similarities, which one program holds, in up to 110 KiB of shared memory; or half of it
    COLUMNS = 64  # of features at a time
    CELL_BYTES = 128 * 2**20  # of what is kept of pairs for gradients of their items

    @classmethod
    def cells(cls, shared: int) -> int:
        """With so many bytes of shared memory."""
        return cls.CELLS if shared >= SOME else cls.CELLS // 2


class SumMax:
    """Sum-Max."""

    WORKSPACE_BYTES = 64 * 2**20  # of best contexts that gradients are made of at a time
    PAIRS_AT_ONCE = 2**20  # their order takes 40 bytes each

    # Products of a call, padding included, up to which its shapes alone cut it up: at 400 TFLOP/s they take 0.7 ms, of
    # which tiles and groups made of lengths save a third, as much as they cost the host.
    UNPLANNED_PRODUCTS = 2**37

    LARGEST_TILE = 128  # queries; items of more pass through it in pieces
    LARGER_TILE = 256  # where scores take little but products, and the largest are less than WELL_FILLED as full
    WELL_FILLED = 0.95
    CELLS = 128 * 256  # of a tile, at most: what they take of registers is half of all
    COLUMNS = 64  # of a tile of best contexts, beside the tile of similarities
    LARGEST_RESIDENT = 128  # D of queries that stay in a tile at full length
    PROGRAMS = 4096  # wanted of a launch, so that every processor of a device has some, and the same share of them
    NORM_ROWS, NORM_COLUMNS = 16, 256

    BLOCK_OF_CONTEXTS, BLOCK_OF_QUERIES = 64, 16  # rows of gradients that a program sums up, at most
    RUNS_BYTES = 32 * 2**20  # of what runs of sums leave
    PROGRAMS_OF_GRADIENTS = 1024  # wanted of a launch
    LEAST_STEPS = 4  # of a run
    QUERIES = 32  # of a step of a program that sums contexts' gradients; by 64 threads hold too many queries' places
    ITEMS = 4  # whose best contexts are gathered at a time
    WIDTH = 128  # columns of features of a program
    SOFT_WIDTH = 256  # of one that makes similarities again for them
    RUNS = 16  # that are added up at a time
    POOLED_ROWS, POOLED_COLUMNS = 32, 32  # maxima that are pooled at a time


class HeterogeneousTuning:
    """HAN's first layer and its matching, between PyTorch's products."""

    ROWS = 32  # of a tile of logits or of similarities, of either side
    CELLS = 4096  # of rows that are normalised at once
    WARPS = 4
    WORKSPACE_BYTES = 512 * 2**20  # a part takes the host ten launches, forward, and forty operations, backward


class ScoreLoss:
    """Losses over a score matrix: triplet, InfoNCE and sigmoid."""

    ROWS, COLUMNS = 32, 64  # of a tile of scores
    PROGRAMS = 512  # at most, each with its statistics of every column
    PARTS, POSITIVES = 32, 64  # of a tile that merges the programs' statistics
    SUMMED = 256  # most positives whose losses one program both makes and sums up


class CudaAttention:
    """Stacked cross attention in CUDA C++, whose tiles the library itself chooses."""

    # Together, both sides', at most 256 MiB: what a call promises beside its scores.
    ROW_BYTES = 88 * 2**20  # of packed rows of a side's part
    GRAM_BYTES = 64 * 2**20
    CELLS = 24 * 2**20  # similarities whose gradients are kept at a time

    # Whether warps of their own copy and multiply on compute capability 9.0. They did in simulation, on no card yet.
    WARPGROUPS = environment("CROSSRET_WARPGROUPS") not in (None, "0")
