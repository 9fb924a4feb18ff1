"""Files of captions of every kind, in their published shapes: what is read of them, and each mistake by its place."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crossret.captions.reading import CaptionsFile, read_captions_file


def read(tmp_path: Path, contents: str | bytes | object) -> CaptionsFile:
    text = contents if isinstance(contents, (str, bytes)) else json.dumps(contents)
    (tmp_path / "captions").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_captions_file(tmp_path / "captions")


def captions(tmp_path: Path, contents: str | bytes | object) -> dict[str | None, list[str]]:
    found = read(tmp_path, contents)
    assert found.notes == []
    return {image.file: image.captions for image in found.images}


TWO = {"b.jpg": ["A red bus", "a, b"], "a.jpg": ["a bear"]}


@pytest.mark.parametrize(
    "contents",
    [
        '[{"image": "b.jpg", "caption": ["A  red bus", "a, b"]}, {"image": "a.jpg", "caption": "a bear"}]',
        '[{"image": "b.jpg", "caption": "A red bus"}, {"image": "a.jpg", "caption": "a bear", "image_id": 3},\n'
        '{"image": "b.jpg", "caption": "a, b"}]',
        '\ufeff{\n"b.jpg": ["A red bus\\n", "a, b"], "a.jpg": "a bear"}\r\n',
        '{"file_name": "b.jpg", "text": ["A red bus", "a, b"]}\n{"filename": "a.jpg", "captions": ["a bear"]}\n',
        '{"images": [{"filename": "b.jpg", "sentences": [{"raw": "A red bus"}, {"raw": "a, b"}]}, '
        '{"filename": "a.jpg", "sentences": [{"raw": "a bear"}]}]}',
        "b.jpg\tA red\u00a0bus \r\na.jpg\ta bear\r\nb.jpg\ta, b",
        "b.jpg#0\tA red bus\nb.jpg#1\ta, b\na.jpg#0\ta bear\n",
        "\ufeffb.jpg,A red bus\nb.jpg,a, b\na.jpg,a bear\n",
        'image,caption\nb.jpg,A red bus\nb.jpg,"a, b"\na.jpg,"a bear"\n',
        '"b.jpg";0;"A red\nbus"\r\n"b.jpg";1;"a, b"\r\n"a.jpg";0;a bear\r\n',
        "image_name| comment_number| comment\nb.jpg| 0| A red bus\nb.jpg| 1| a, b\na.jpg| 0| a bear\n",
        "caption,filename,split\nA red bus,b.jpg,test\n\"a, b\",b.jpg,test\na bear,a.jpg,\n",
    ],
    ids=["list", "rows", "by file", "lines", "Karpathy", "TSV", "token", "CSV", "mixed", "quoted", "bars", "columns"],
)  # fmt: skip
def test_every_kind_says_the_same(contents: str, tmp_path: Path) -> None:
    assert captions(tmp_path, contents) == TWO


def test_what_else_files_say(tmp_path: Path) -> None:
    coco = "val2014/COCO_val2014_000000391895.jpg"
    found = read(tmp_path, [{"image": coco, "caption": "x", "image_id": "coco_391895", "split": "test"}]).images[0]
    assert (found.id, found.own_id, found.file, found.split) == ("391895", "coco_391895", coco, "test")
    assert found.place == f"{tmp_path}/captions: [0]" and found.caption_ids == []
    sentences = [{"raw": "x", "sentid": 4}, {"raw": "y", "sentid": 2}]
    images = [{"cocoid": 9, "filename": "c.jpg", "split": "val", "sentences": sentences},
              {"filename": "12.jpg", "sentences": [{"raw": "z"}, {"raw": "v", "sentid": 3}]},
              {"cocoid": 0, "sentences": [{"raw": "z"}]}]  # fmt: skip
    first, second, third = read(tmp_path, {"images": images}).images
    assert (first.id, first.file, first.split, first.caption_ids) == ("9", "c.jpg", "val", ["4", "2"])
    assert (second.id, second.split, second.caption_ids, third.id, third.file) == ("12", None, [], "0", None)
    told = [{"image_id": 9, "id": 5, "caption": "x"}, {"image_id": 9, "id": 6, "caption": "y"}]
    document = {"images": [{"id": 8, "file_name": "d.jpg"}, {"id": 9, "file_name": "c.jpg"}], "annotations": told}
    only, notes = read(tmp_path, document)
    assert [(image.id, image.file, image.caption_ids) for image in only] == [("9", "c.jpg", ["5", "6"])]
    assert notes == [f"{tmp_path}/captions: images[0]: the image has no captions, and is left out; there are 1 such"]


def test_quotes_of_captions_that_are_not_csv(tmp_path: Path) -> None:
    flickr = 'a.jpg#0\t"Stop" says a man\na.jpg#1\t"Go"\na.jpg#2\t"a man\na.jpg#3\tsays "stop"\n'
    assert captions(tmp_path, flickr) == {"a.jpg": ['"Stop" says a man', '"Go"', '"a man', 'says "stop"']}
    kaggle = 'image,caption\na.jpg,says "stop", and goes\na.jpg,"Stop" , he says\na.jpg,"one, ""two"""\n'
    assert captions(tmp_path, kaggle) == {"a.jpg": ['says "stop", and goes', '"Stop" , he says', 'one, "two"']}


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("image_id,caption", "1.jpg,a dog"),
        ("img,captions", "1.jpg,a dog"),
        ("Image Name,Caption", "1.jpg,a dog"),
        ("file_path,caption", "1.jpg,a dog"),
        ("image,title,caption", "1.jpg,My title,a dog"),
        ("image,image_path,caption", "1.jpg,x/1.jpg,a dog"),
        ("caption_id,image_id,caption", "10,1.jpg,a dog"),
    ],
)
def test_headers_tell_columns_by_the_likeliest_names(header: str, row: str, tmp_path: Path) -> None:
    assert captions(tmp_path, f"{header}\n{row}\n\n") == {"1.jpg": ["a dog"]}


def test_known_mistakes_are_read_and_said(tmp_path: Path) -> None:
    # A row of Kaggle's Flickr30K, whose first line names the columns.
    rows = "image_name| comment_number| comment\n1.jpg| 0|  a dog .\n1.jpg| 4   A dog runs | and a cat\n"
    for text, line in ((rows, 3), (rows.partition("\n")[2], 2)):
        found = read(tmp_path, text)
        assert found.images[0].captions == ["a dog .", "A dog runs | and a cat"]
        note = f"{tmp_path}/captions, line {line}: lacks the '|' before its caption, and is read; there are 1 such"
        assert found.notes == [note]
    found = read(tmp_path, "22.jpg.1#0\ta dog\n22.jpg.1#1\ta cat\n")
    assert (found.images[0].id, found.images[0].captions) == ("22", ["a dog", "a cat"])
    assert "has a number behind the ending of its image, which is left out; there are 2 such" in found.notes[0]


def test_lines_may_end_in_carriage_returns_alone(tmp_path: Path) -> None:
    assert captions(tmp_path, "image,caption\ra.jpg,x\rb.jpg,y\r") == {"a.jpg": ["x"], "b.jpg": ["y"]}


def test_what_is_between_columns_without_a_header(tmp_path: Path) -> None:
    for line, file, caption in (
        ("a,b.jpg\tx", "a,b.jpg", "x"),
        ("a,b.jpg#0\tx", "a,b.jpg", "x"),
        ("a b,c\td, e", "a b,c", "d, e"),
        ("b.jpg,a\tb|c", "b.jpg", "a b|c"),
        ("b.jpg;see c.jpg, d", "b.jpg", "see c.jpg, d"),
        ('"b,.JPG",x', "b,.JPG", "x"),
        ("12,2 dogs, one cat", "12", "2 dogs, one cat"),
    ):
        assert captions(tmp_path, line) == {file: [caption]}, line


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("", ", line 1: '' is not an image's file, a tab, '|', ',' or ';', and a caption"),
        ("a.jpg a bus\n", ", line 1: 'a.jpg a bus' is not an image's file, a tab,"),
        ("a.jpg\tx\nb\n", r", line 2: 'b' is not a row of image, caption with '\t' between"),
        ("img_id,words\n1.jpg,a dog\n", ", line 1: 'img_id,words' is not an image's file"),
        ("caption\turl\na dog\thttp://x/1.jpg\n", r", line 1: 'caption\\turl' is not an image's file"),
        ("1.jpg| 0| a dog\n1.jpg| A dog | runs\n", ", line 2: '1.jpg| A dog | runs' is not a row of image, another"),
        ("a.jpg\tx\n\ty\n", ", line 2: '\\\\ty' is not a row of image, caption"),
        ("a.jpg\tx\nb.jpg\t \n", ", line 2: the caption is empty"),
        ("a.jpg|0|x\nb.jpg|y\n", ", line 2: 'b.jpg|y' is not a row of image, another, caption with '|' between"),
        ("image|number|caption\na.jpg\n", ", line 2: 'a.jpg' is not a row of image, another, caption with '|' between"),
        ("caption,image\na, b,a.jpg\n", ", line 2: 'a, b,a.jpg' is not a row of caption, image with ',' between"),
        ('a.jpg,"x\ny"\nb.jpg,a "z"\n', ", line 2: 'y\"' is not a row of image, caption with ',' between; quotes are "
         "read as text, for line 3 is not quoted as CSV"),
        ('"a.jpg",says "x"\n', ", line 1: '\"a.jpg\",says \"x\"' is not a row of image, caption with ',' between"),
        ('a.jpg,x\nb.jpg,"y, z",v\n', ", line 2: 'b.jpg,\"y, z\",v' is not a row"),
        (b"a.jpg\tx\nb.jpg\t\xff\n", ", line 2: not UTF-8 (invalid start byte at byte 6)"),
        ('{"image": "a.jpg"}\n', ', line 1: must be an object with "image", a text, and "caption", a text or a list'),
        ('{"image": "a", "text": "x"}\n{"image": 3, "text": "x"}\n', ', line 2: must be an object with "image"'),
        ('{"image": "a", "text": "x"}\n{"image": \n', ", line 2: not JSON"),
        ("{a.jpg\tx\n", ": not JSON"),
        ("[" * 10**5, ": not JSON (nested too deeply)"),
        ("[]", ": no captions"),
        ("[3]", ': [0]: must be an object with "image"'),
        ({"a.jpg": 3}, ": 'a.jpg': must be an object with"),
        ([{"image": "/", "caption": "x"}], ": [0]: neither an id nor the path of a file names the image"),
        ([{"image": "a\n.jpg", "caption": "x"}], ": [0]: neither an id nor the path"),
        ([{"image": "a.jpg", "caption": "\udc80"}], ": [0]: half of a surrogate pair"),
        ([{"image": f"a.{end}", "caption": "x"} for end in ("jpg", "png")], ": [1]: another image has the id a, too: "),
        ([{"image": "a.jpg", "caption": "x", "split": split} for split in ("val", "test")],
         ": [1]: image a is of split test here, of val in "),
        ({"images": [{"filename": "a.jpg"}]}, ": images[0]: not an image with 'sentences', nor are"),
        ({"images": [{"cocoid": 1, "sentences": [3]}]}, ": images[0], 1: sentences[0] has no text 'raw'"),
        ({"images": [{"cocoid": 1, "sentences": [{"raw": "\n"}]}]}, ", 1: sentences[0]: the caption is empty"),
        ({"images": [{"cocoid": 1, "sentences": []}] * 2}, ": images[1]: another image has the id 1, too"),
        ({"images": [{"sentences": []}]}, ": images[0]: neither an id nor the path of a file names the image"),
        ({"images": [3], "annotations": []}, ": images[0]: not an image"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": 2, "caption": "x"}]},
         ": annotations[0]: its 'image_id' is the 'id' of none of 'images'"),
        ({"images": [{"id": 1}], "annotations": [{"image_id": 1}]}, ": annotations[0] has no text 'caption'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(contents: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as raised:
        read(tmp_path, contents)
    assert str(raised.value).startswith(f"{tmp_path}/captions") and message in str(raised.value)


WORDS = st.text(st.sampled_from("ab ,;|\t\"'\n\r#é"), max_size=12).map(lambda text: f"x{text}x")
FILES = st.integers(0, 9).map("{}.jpg".format)
HEADERS = st.sampled_from([None, ["image", "caption"], ["caption", "file_name"], ["image_name", "n", "comment"]])


@given(
    rows=st.lists(st.tuples(FILES, WORDS), min_size=1, max_size=5),
    header=HEADERS,
    delimiter=st.sampled_from("|,;"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
)
@example(rows=[("0.jpg", 'x"x'), ("0.jpg", "x\rx")], header=None, delimiter=";", quoting=csv.QUOTE_MINIMAL, end="\n")
@example(rows=[("0.jpg", 'x"x'), ("1.jpg", "x\nx")], header=None, delimiter=",", quoting=csv.QUOTE_MINIMAL, end="\n")
def test_what_the_csv_module_writes_comes_back(
    rows: list[tuple[str, str]],
    header: list[str] | None,
    delimiter: str,
    quoting: Any,
    end: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    written = io.StringIO()
    writer = csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator=end)
    if header is not None:
        writer.writerow(header)
    expected: dict[str | None, list[str]] = {}
    for file, caption in rows:
        named = {"caption": caption, "comment": caption, "n": "3"}
        writer.writerow([named.get(name, file) for name in header or ["image", "caption"]])
        expected.setdefault(file, []).append(" ".join(caption.split()))
    assert captions(tmp_path_factory.getbasetemp(), written.getvalue()) == expected
