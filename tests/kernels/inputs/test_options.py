"""Options objects of scores: one declaration for an object and for keywords, the same results by either."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, fields
from typing import Any, get_type_hints

import pytest
import torch

import crossret_kernels
from crossret.hyperparameters import HanConfig, ScanConfig
from crossret_kernels import (
    HeterogeneousFields,
    HeterogeneousOptions,
    MaxSimFields,
    MaxSimOptions,
    ScanFields,
    ScanOptions,
    heterogeneous_attention_weights,
    scan_scores,
)
from tests.kernels.heterogeneous_attention.calls import make_layers

KINDS = {ScanOptions: ScanFields, MaxSimOptions: MaxSimFields, HeterogeneousOptions: HeterogeneousFields}
kinds = pytest.mark.parametrize(("kind", "keywords"), KINDS.items(), ids=lambda kind: kind.__name__)
FAMILIES = {
    ScanOptions: ("scan_scores", "scan_topk", "scan_attend", "scan_attention", "scan_contributions"),
    MaxSimOptions: ("maxsim_scores", "maxsim_topk", "maxsim_argmax"),
    HeterogeneousOptions: ("heterogeneous_scores", "heterogeneous_attention_weights"),
}
functions = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in FAMILIES.items() for name in names], ids=str
)
CHANGED = {"direction": "i2t", "pooling": "max", "normalize": False}
REGIONS, WORDS = (torch.randn(n, 3, 8, generator=torch.Generator().manual_seed(n)) for n in (2, 3))


def call_of(name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The function of two items a side, with what it needs besides options."""
    more: dict[str, Any] = {}
    if name.startswith("heterogeneous"):
        more["layers"] = make_layers(1, 8)
    if name.endswith("topk"):
        more["k"] = 2
    elif name not in ("scan_scores", "maxsim_scores"):
        more["pairs"] = torch.tensor([[0, 2], [1, 0]])

    def call(**options: Any) -> tuple[torch.Tensor, ...]:
        made = getattr(crossret_kernels, name)(REGIONS, WORDS, **more, **options)
        return made if isinstance(made, tuple) else (made,)

    return call


@kinds
def test_fields_and_keywords_are_the_same(kind: Any, keywords: Any) -> None:
    types = get_type_hints(kind)
    assert get_type_hints(keywords) == {field.name: types[field.name] for field in fields(kind)}
    assert not keywords.__required_keys__


@kinds
def test_every_field_is_documented(kind: Any, keywords: Any) -> None:
    documented = inspect.getdoc(kind) or ""
    assert all(f"\n    {name}: " in documented for name in keywords.__annotations__)


@kinds
def test_options_are_values(kind: Any, keywords: Any) -> None:
    options = kind()
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(kind()) == hash(options)
    with pytest.raises(FrozenInstanceError):
        options.direction = "i2t"


def test_defaults_are_the_published_numbers() -> None:
    """Numbers of SCAN's train.py and the slope in its model.py; of SCAN Eqs. 9 and 10; of the models' presets here."""
    published = {"direction": "t2i", "raw_feature_norm": "clipped_l2norm", "clip_slope": 0.1, "lambda_softmax": 9.0}
    others = {"pooling": "avg", "normalize": False, "relevance": "cosine", "focal": False, "threshold": None}
    assert asdict(ScanOptions()) == {**published, "lambda_lse": 6.0, **others}
    model = ScanConfig(image_dim=1, vocabulary_size=1).attention_options("t2i")
    assert {**published, "lambda_lse": 6.0}.items() <= model.items()
    plain = {"direction": "t2i", "pooling": "sum", "normalize": False, "clip_slope": 1.0, "context_pooling": "max"}
    assert plain.items() <= asdict(MaxSimOptions()).items()
    options, han = asdict(HeterogeneousOptions()), HanConfig(image_dim=1, vocabulary_size=1)
    assert all(options[name] == getattr(han, name) for name in ("lambda_attention", "matching", "lambda_softmax"))


@pytest.mark.parametrize(("operation", "kind"), [("scan_scores", ScanOptions), ("maxsim_scores", MaxSimOptions)])
def test_codes_are_what_operations_take(operation: str, kind: Any) -> None:
    """Codes agree with schemas by number, name and type, ahead of what only gradients need."""
    assert kind.schema in str(getattr(torch.ops.crossret, operation).default._schema)
    assert len(kind().codes) == len(kind.schema.split(","))


def test_options_come_back_from_codes() -> None:
    options = ScanOptions(
        direction="i2t", normalize=True, raw_feature_norm="l1norm", clip_slope=0.25, lambda_softmax=2.5, pooling="max",
        lambda_lse=0.5, relevance="projection", focal=True,
    )  # fmt: skip
    spread = ScanOptions(raw_feature_norm="minmax", threshold=0.25)
    for kept in (options, spread, ScanOptions(raw_feature_norm="minmax")):
        assert ScanOptions.of_codes(*kept.codes) == kept
    best = MaxSimOptions(
        direction="both", normalize=True, pooling="topk", clip_slope=0.25, lambda_lse=2.5, top=3, context_pooling="lse",
        temperature=0.5,
    )  # fmt: skip
    assert MaxSimOptions.of_codes(*best.codes, "what is behind them") == best


@functions
def test_an_object_and_keywords_give_the_same(kind: Any, name: str) -> None:
    call = call_of(name)
    expected = call(**CHANGED)
    assert not all(torch.equal(one, other) for one, other in zip(expected, call(), strict=True))
    for options in ({"options": kind(**CHANGED)}, {"options": kind(pooling="sum"), **CHANGED}):
        assert all(torch.equal(one, other) for one, other in zip(call(**options), expected, strict=True))


@functions
def test_mistakes_are_told(kind: Any, name: str) -> None:
    call, other = call_of(name), ScanOptions() if kind is MaxSimOptions else MaxSimOptions()
    for options in ({}, {"options": kind()}):
        with pytest.raises(TypeError, match="unexpected keyword argument 'lambda_sofmax'"):
            call(lambda_sofmax=9.0, **options)
        with pytest.raises(TypeError, match="normalize must be True or False, not 1"):
            call(normalize=1, **options)
        for field in ("pooling", "direction"):
            with pytest.raises(ValueError, match=f"{field}.* must be one of"):
                call(**{field: "median"}, **options)
    with pytest.raises(TypeError, match=f"options must be {kind.__name__}, not {type(other).__name__}"):
        call(options=other)


@functions
def test_help_says_where_options_are_documented(kind: Any, name: str) -> None:
    function = getattr(crossret_kernels, name)
    said = f"{inspect.signature(function)} {inspect.getdoc(function)}"
    assert f"options: '{kind.__name__} | None'" in said
    assert f"**fields: 'Unpack[{KINDS[kind].__name__}]'" in said


def test_an_options_object_goes_through_torch_compile() -> None:
    options = ScanOptions(direction="i2t", pooling="lse")
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *sides: scan_scores(*sides, options=options, lambda_lse=5.0), fullgraph=True, backend="eager"
    )
    expected = scan_scores(REGIONS, WORDS, direction="i2t", pooling="lse", lambda_lse=5.0)
    assert torch.equal(compiled(REGIONS, WORDS), expected)


def test_weights_of_the_global_matching_are_refused() -> None:
    with pytest.raises(ValueError, match="heterogeneous_attention_weights has matching 'local' alone"):
        heterogeneous_attention_weights(
            REGIONS, WORDS, layers=make_layers(1, 8), matching="global", pairs=torch.tensor([[0, 0]])
        )
