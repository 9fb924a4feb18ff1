"""The papers' decisive ablations on rendered scenes, and row by row whether the direction is that of the paper.

    python -m benchmarks.ablations SCENES --output DIR

An ablation is two variants of a model and what its paper reports of both. Scenes are no Flickr30K: figures differ, and
what is compared is which of the two is better, in either direction of retrieval by R@1. The verdict is "agrees" or
"disagrees" by the sign of the difference; where ours is smaller than two standard errors of the difference of two
shares of as many queries, it is "within noise", with the sign in brackets. Seeds, of which there is one, add to that.
Variants that several rows share run once; an interrupted command goes on when it is repeated.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from crossret.comparison.comparison import Conditions, directory_of, run_comparison
from crossret.files.atomic import atomic_write
from crossret.files.json import read_json_lines, write_json
from crossret.hyperparameters.settings import overlaid, parse_variant
from crossret.training import LOG
from crossret.training.callbacks import STEP_FIELDS

PRESET = "scenes"
# Added to every variant of a model: what makes forty minutes of them on two cores.
SIZES = {
    "scan": "embed_dim=128 epochs=6 decay_epochs=5 batch_size=64",
    "sman": "embed_dim=128 epochs=6 decay_epochs=5",
    # A layer attends in every pair of a batch: its time grows with the size of the batch.
    "han": "embed_dim=64 epochs=4 decay_epochs=3 batch_size=16",
    "mhsan": "feature_dim=128 embed_dim=256 attention_dim=64 epochs=8 decay_epochs=7",
    "oan": "embed_dim=128 epochs=6 decay_epochs=5",
}
# HAN's orders p, beside 8, by number of layers, and the largest number of layers; of both `_HAN` has the figures.
HAN_ORDERS = {0: ("1", "2", "4", "∞")}
HAN_LAYERS = 1
STANDARD_ERRORS = 2.0
WAYS = {"i2t": "sentence retrieval", "t2i": "image retrieval"}

Recalls = tuple[float | None, float]
"""R@1 of sentence retrieval, None where the paper has none, and of image retrieval."""


@dataclass(frozen=True)
class Ablation:
    """Two variants that differ in one thing.

    Attributes:
        source: the paper's table and its data set.
        change: what the ablation changes.
        full, ablated: the two variants, without ``SIZES``.
        paper_full, paper_ablated: their R@1 as printed. Both are None where the paper says without figures that full is
            better, the second alone where it has no such row.
        full_diversity, ablated_diversity: as printed, where the value of MHSAN's diversity loss is compared too.
    """

    source: str
    change: str
    full: str
    ablated: str
    paper_full: Recalls | None
    paper_ablated: Recalls | None
    full_diversity: float | None = None
    ablated_diversity: float | None = None


_SCAN_TABLE = "SCAN Table 4, Flickr30K"
_SCAN = "scan cross_attention=i2t lambda_softmax=4"
_HAN_P_TABLE, _HAN_LAYERS_TABLE = "HAN Table 4, MS-COCO 1K", "HAN Table 6, MS-COCO 1K"
_SMAN_TABLE = "SMAN Table III, Flickr30K"
_OAN_TABLE = "OAN Table 2, Flickr30K"

# Recalls of HAN by number of layers and p, of Table 4 and Table 6, which share a row.
_HAN = {
    (0, "1"): (63.5, 52.6),
    (0, "2"): (66.7, 55.0),
    (0, "4"): (71.1, 56.7),
    (0, "8"): (73.3, 60.5),
    (0, "∞"): (70.0, 56.5),
    (1, "8"): (77.2, 63.3),
}


def _han(layers: int, p: str) -> str:
    return f"han layers={layers} " + ("negatives=hardest" if p == "∞" else f"p={p}")


ABLATIONS = [
    Ablation(_SCAN_TABLE, "no hard negatives", f"{_SCAN} negatives=hardest", _SCAN, (67.9, 43.9), (45.8, 33.9)),
    # The baseline of the rows below learns from all negatives: from the hardest alone, scenes are not learnt in time.
    Ablation(
        "SCAN Section 3.1, in words",
        "similarities not clipped at zero",
        f"{_SCAN} clip_slope=0",
        f"{_SCAN} raw_feature_norm=l2norm",
        None,
        None,
    ),
    Ablation(_SCAN_TABLE, "regions not normalised", _SCAN, f"{_SCAN} image_norm=false", (67.9, 43.9), (67.8, 43.3)),
    *(
        Ablation(
            _HAN_P_TABLE,
            f"p = {p}, not 8, with {layers} layers",
            _han(layers, "8"),
            _han(layers, p),
            _HAN[layers, "8"],
            _HAN[layers, p],
        )
        for layers, orders in HAN_ORDERS.items()
        for p in orders
    ),
    *(
        Ablation(
            _HAN_LAYERS_TABLE,
            f"{layers - 1} layers, not {layers}, with p = 8",
            _han(layers, "8"),
            _han(layers - 1, "8"),
            _HAN[layers, "8"],
            _HAN[layers - 1, "8"],
        )
        for layers in range(1, HAN_LAYERS + 1)
    ),
    Ablation(
        "SMAN Table V, Flickr30K", "no intra-pair loss", "sman", "sman intra_pair_weight=0", (57.3, 43.4), (56.5, 42.2)
    ),
    Ablation(_SMAN_TABLE, "no other modality in the gate (SIM)", "sman", "sman alpha=1", (57.3, 43.4), (56.5, 42.3)),
    Ablation(
        "MHSAN Table 5, MS-COCO 1K",
        "no diversity loss",
        "mhsan",
        "mhsan diversity_weight=0",
        (73.5, 59.1),
        (72.3, 58.4),
        5.59,
        7.36,
    ),
    Ablation(_OAN_TABLE, "no inter-modal attention", "oan", "oan inter_attention=false", (None, 53.3), (None, 48.2)),
    Ablation(_OAN_TABLE, "no intra-modal attention", "oan", "oan intra_attention=false", (None, 53.3), (None, 47.8)),
    Ablation(
        _OAN_TABLE,
        "no attention",
        "oan",
        "oan inter_attention=false intra_attention=false",
        (None, 53.3),
        (None, 37.2),
    ),
    Ablation(
        "OAN Section 5.2, Flickr30K",
        "temperatures as printed, not ten times as large",
        "oan",
        "oan lambda_tv=0.9 lambda_vt=0.5",
        (None, 53.3),
        None,
    ),
]


def sized(variant: str, sizes: Mapping[str, str] = SIZES) -> str:
    """The variant as it is trained, with its model's sizes, unless it sets them."""
    model, *own = variant.split()
    return parse_variant(" ".join([model, *overlaid([sizes[model]], own)]), PRESET)[0]


def judge(paper: float, ours: float, margin: float) -> str:
    """Whether our difference has the sign of the paper's, if both have one; ``margin`` is what noise makes of none."""
    if 0 in (paper, ours):
        return "no difference"
    verdict = "agrees" if paper * ours > 0 else "disagrees"
    return f"within noise ({verdict})" if abs(ours) < margin else verdict


def margin(first: float, second: float, queries: int) -> float:
    """``STANDARD_ERRORS`` of the difference of two shares, all in percent, each of so many queries."""
    variance = sum(share * (100 - share) / queries for share in (first, second))
    return float(STANDARD_ERRORS * variance**0.5)


def row(ablation: Ablation, results: Mapping[str, Mapping[str, Any]], queries: Mapping[str, int]) -> dict[str, Any]:
    """Result of an ablation.

    Args:
        ablation: the two variants and the paper's figures.
        results: of ``run_comparison``, by variant as it was trained, each with its "log".
        queries: how many queries each of ``WAYS`` has.
    """
    full, ablated = (results[sized(variant)] for variant in (ablation.full, ablation.ablated))
    ways: dict[str, Any] = {}
    for number, way in enumerate(WAYS):
        ours = [result["evaluation"][f"{way}_r1"] for result in (full, ablated)]
        printed = [recalls and recalls[number] for recalls in (ablation.paper_full, ablation.paper_ablated)]
        noise = margin(*ours, queries[way])
        entry: dict[str, Any] = {"ours": ours, "difference": ours[0] - ours[1], "margin": noise, "paper": printed}
        if printed[0] is not None and printed[1] is not None:
            entry["verdict"] = judge(printed[0] - printed[1], ours[0] - ours[1], noise)
        elif ablation.paper_full is None:
            entry["verdict"] = judge(1.0, ours[0] - ours[1], noise)
        ways[way] = entry
    entry = {**asdict(ablation), "full": full["variant"], "ablated": ablated["variant"], "r1": ways}
    entry["rsum"] = [result["evaluation"]["rsum"] for result in (full, ablated)]
    if ablation.full_diversity is not None and ablation.ablated_diversity is not None:
        ours = [last_terms(result["log"])["diversity"] for result in (full, ablated)]
        entry["diversity"] = {
            "ours": ours,
            "paper": [ablation.full_diversity, ablation.ablated_diversity],
            "verdict": judge(ablation.full_diversity - ablation.ablated_diversity, ours[0] - ours[1], 0.0),
        }
    return entry


def last_terms(log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Terms of the loss of the last epoch with lines of steps: means over its lines, each a mean over some steps."""
    steps = [entry for entry in log if entry["kind"] == "step"]
    last = [entry for entry in steps if entry["epoch"] == steps[-1]["epoch"]]
    return {name: sum(entry[name] for entry in last) / len(last) for name in last[0] if name not in STEP_FIELDS}


def markdown(report: Mapping[str, Any]) -> str:
    """The rows as a table, with the rule of their verdicts."""
    headings = ["paper", "ablation", *(f"{name}: paper, ours" for name in WAYS.values()), "rsum", *WAYS.values()]
    lines = ["| " + " | ".join(headings) + " |", "| --- | --- |" + " ---: |" * 3 + " --- | --- |"]
    for entry in report["rows"]:
        cells = [entry["source"], f"{entry['change']}: `{entry['full']}` → `{entry['ablated']}`"]
        for way in WAYS:
            r1 = entry["r1"][way]
            paper = "–" if None in r1["paper"] else "{:.1f} → {:.1f}".format(*r1["paper"])
            cells.append(f"{paper}, {r1['ours'][0]:.1f} → {r1['ours'][1]:.1f}")
        cells.append("{:.1f} → {:.1f}".format(*entry["rsum"]))
        for way in WAYS:
            r1 = entry["r1"][way]
            cells.append(f"{r1.get('verdict', '–')}: {r1['difference']:+.1f} ± {r1['margin']:.1f}")
        lines.append("| " + " | ".join(cells) + " |")
    for entry in report["rows"]:
        if "diversity" in entry:
            value = entry["diversity"]
            lines += [
                "",
                f"{entry['source']}, {entry['change']}: diversity loss in the paper {value['paper'][0]:.2f} → "
                f"{value['paper'][1]:.2f} on the test set, ours {value['ours'][0]:.2f} → {value['ours'][1]:.2f} in the "
                f"last epoch of training: {value['verdict']}.",
            ]
    rule = (
        "R@1 in percent, full → ablated. The verdict is by the sign of full less ablated; within noise, where that is "
        f"less than {STANDARD_ERRORS:g} standard errors of the difference of two shares of as many queries, one seed. "
        f"What a variant does not name is its model's preset {PRESET}, in which all models but HAN learn from the sum "
        "over a batch's negatives unless it says otherwise."
    )
    train, test = report["data"]["train"], report["data"]["test"]
    size = (
        f"Trained on {train['images']:,} images with {train['captions']:,} captions, tested on {test['images']:,} with "
        f"{test['captions']:,}."
    )
    return "\n".join([*lines, "", rule, "", size, "", f"`{report['command']}`", ""])


def run(
    scenes: Path,
    output: Path,
    *,
    ablations: Sequence[Ablation] = ABLATIONS,
    threads: int | None = None,
    seed: int = 0,
    command: str,
    console: Console,
) -> dict[str, Any]:
    """Train and evaluate all variants, and write ablations.json and ablations.md beside their comparison."""
    names = dict.fromkeys(sized(variant) for each in ablations for variant in (each.full, each.ablated))
    variants = dict(parse_variant(name, PRESET) for name in names)
    compared = run_comparison(
        variants, Conditions(scenes, seed=seed, threads=threads), output, command=command, console=console
    )
    test = compared["data"]["test"]
    results = {
        result["variant"]: {**result, "log": read_json_lines(directory_of(output, result["variant"]) / LOG)}
        for result in compared["variants"]
    }
    queries = {"i2t": test["images"], "t2i": test["captions"]}
    rows = [row(ablation, results, queries) for ablation in ablations]
    report = {"command": command, "seed": seed, "data": compared["data"], "rows": rows}
    write_json(output / "ablations.json", report)
    with atomic_write(output / "ablations.md") as file:
        file.write(markdown(report).encode())
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path, help="directory of `crossret render-scenes`")
    parser.add_argument("--output", type=Path, required=True, help="directory for the tables and all trainings")
    parser.add_argument("--only", default="", help="only ablations of which source or change contains this text")
    parser.add_argument("--threads", type=int, help="of the CPU; by default one a core")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chosen = [each for each in ABLATIONS if arguments.only.lower() in f"{each.source} {each.change}".lower()]
    command = shlex.join(["python", "-m", "benchmarks.ablations", *sys.argv[1:]])
    try:
        if not chosen:
            raise ValueError(f"--only: no ablation contains {arguments.only!r}")
        report = run(
            arguments.scenes,
            arguments.output,
            ablations=chosen,
            threads=arguments.threads,
            seed=arguments.seed,
            command=command,
            console=Console(emoji=False),
        )
    except (OSError, ValueError) as error:
        print(f"ablations: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ablations: interrupted; the same command goes on", file=sys.stderr)
        return 130
    print(markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
