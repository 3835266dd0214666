"""How YAML files are read: what unquoted words mean, where things stand, and what hostile files come to."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from judges.safe_text import path_of, shown
from producer.suites import yaml_file


def value_of(text: str) -> Any:
    document = yaml_file.parse(text, "file.yaml")
    assert document.findings == ()
    assert document.root is not None
    return document.root.value


def complaints(text: str) -> list[str]:
    document = yaml_file.parse(text, "file.yaml")
    return [str(problem) for problem in document.problems(document.findings)]


def complaint(text: str) -> str:
    """The only complaint about a text."""
    (only,) = complaints(text)
    return only


def written(folder: Path, data: bytes) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("plain", "value"),
    [
        *[("null", None), ("Null", None), ("~", None), ("", None)],
        *[("true", True), ("True", True), ("TRUE", True), ("false", False)],
        *[
            ("0", 0),
            ("30", 30),
            ("-1", -1),
            ("+5", 5),
            (".5", 0.5),
            ("1.", 1.0),
            ("1e3", 1000.0),
            ("-2.5E-1", -0.25),
        ],
        *[(word, word) for word in ("yes", "no", "on", "off", "y", "Yes", "NO", "tRue", "nan", "inf")],
        *[
            (word, word)
            for word in ("2026-01-01", "12:30", "1:30", "1_000", "0x10", "0o17", "007", "1.2.3", "1e")
        ],
    ],
)
def test_an_unquoted_word_is_what_json_would_make_of_it_and_otherwise_text(plain: str, value: object) -> None:
    assert value_of(f"key: {plain}\n") == {"key": value}
    assert type(value_of(f"key: {plain}\n")["key"]) is type(value)


@pytest.mark.parametrize("word", ["null", "true", "42", "1.5", ".nan", "~", ""])
def test_quotes_always_make_text(word: str) -> None:
    assert value_of(f"[\"{word}\", '{word}']") == [word, word]


json_text = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff\ufffe\uffff"), max_size=20
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | json_text,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(json_text, parts, max_size=4),
    max_leaves=30,
)


@given(json_values)
@settings(deadline=None)
def test_every_json_document_means_the_same_as_yaml(value: Any) -> None:
    assert value_of(json.dumps(value, ensure_ascii=False, indent=1)) == value


def test_a_node_knows_where_it_and_its_key_start_in_characters_not_bytes() -> None:
    document = yaml_file.parse("é: 1\nlist:\n  - a\n  - {né: [x, 'y']}\n", "f")
    assert document.root is not None
    node, found = document.root.at(("list", 1, "né", 1))
    (value,) = document.problems([yaml_file.Finding(node.start, "", "")])
    assert (found, value.line, value.column) == (True, 4, 14)
    (key,) = document.problems([yaml_file.Finding(document.root.at(("list", 1, "né"))[0].key_start, "", "")])
    assert (key.line, key.column) == (4, 6)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_the_same_however_they_end(line_end: str) -> None:
    text = line_end.join(["a: 1", "", "b: x", "a: 2", ""])
    assert complaint(text) == "file.yaml:4:1  a: duplicate key 'a', first on line 1; keep one of them"


def test_a_line_separator_inside_text_is_not_a_line_as_editors_count_them() -> None:
    assert complaint("a: 'x\u2028y'\nb: 1\nb: 2\n").startswith("file.yaml:3:1")


def test_a_byte_order_mark_at_the_start_is_accepted_and_takes_no_column(tmp_path: Path) -> None:
    document = yaml_file.read(written(tmp_path, b"\xef\xbb\xbfa: 1\r\na: 2\r\n"))
    assert document.root is not None
    assert document.root.value == {"a": 1}
    (problem,) = document.problems(document.findings)
    assert (problem.line, problem.column) == (2, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x 1\n", "1:4  a: anchor '&x' is not allowed; write the value out"),
        ("a: *x\n", "1:4  a: alias '*x' is not allowed; write the value out"),
        ("a:\n  <<: {b: 1}\n", "2:3  a: merge key << is not allowed; write the keys out"),
        (
            "a: !!python/object:os.system {}\n",
            "1:4  a: tag '!!python/object:os.system' is not allowed; remove it",
        ),
        ("a: !!str 5\n", "1:4  a: tag '!!str' is not allowed; remove it"),
        ("a: !mine x\n", "1:4  a: tag '!mine' is not allowed; remove it"),
        ("a: ! x\n", "1:4  a: tag '!' is not allowed; remove it"),
        ("? [a, b]\n: c\n", "1:3  a list is not a key; keys must be text"),
        ("? {a: b}\n: c\n", "1:3  a mapping is not a key; keys must be text"),
        ("1: x\n", "1:1  key 1 is not text; keys must be text (quote it)"),
        ("b:\n  null: x\n", "2:3  b: key null is not text; keys must be text (quote it)"),
        ("a: .inf\n", "1:4  a: .inf is not a finite number; write a finite one (or quote it to mean text)"),
        ("a: -.INF\n", "1:4  a: -.INF is not a finite number; write a finite one (or quote it to mean text)"),
        (
            "a: [.NaN]\n",
            "1:5  a[0]: .NaN is not a finite number; write a finite one (or quote it to mean text)",
        ),
        (
            "a: 1e999\n",
            "1:4  a: 1e999 is not a finite number; write a smaller one (or quote it to mean text)",
        ),
        (
            "a: " + "7" * 5000,
            "1:4  a: a number of 5,000 characters; at most 40 are allowed (quote it to mean text)",
        ),
        ("a: x\x07y\n", "1:5  a: forbidden character U+0007; remove it"),
        ("a: x\x85y\n", "1:5  a: forbidden character U+0085; remove it"),
        ("a: 1 # \x1b[31m\n", "1:8  forbidden character U+001B; remove it"),
        ('b: 1\na: "x\\ay"\n', "2:4  a: forbidden character U+0007; remove its escape"),
        ('a: "\\0"\n', "1:4  a: forbidden character U+0000; remove its escape"),
        ("%YAML 1.2\n---\na: 1\n", "1:1  a YAML directive is not allowed; remove the line"),
        ("a: 1\n---\nb: 2\n", "2:1  a second YAML document starts; only one is allowed (remove it)"),
        ("a: 1\n...\n# fine\nb: 2\n", "4:1  a second YAML document starts; only one is allowed (remove it)"),
        ("a:\n\tb: 1\n", "2:1  a: invalid YAML: a tab cannot indent; use spaces"),
        ("a: @b\n", "1:4  a: invalid YAML: text starts with '@'; quote it"),
    ],
)
def test_what_yaml_may_not_hold_is_named_with_its_place_and_remedy(text: str, said: str) -> None:
    assert complaint(text) == f"file.yaml:{said}"


@pytest.mark.parametrize(
    "text", ["a: [1, 2\n", "a: 'b\n", "a: b: c\n", "a: 1\n b: 2\n", "]", "a: |9\nx", "\tx: 1"]
)
def test_a_syntax_error_is_one_located_complaint_about_invalid_yaml(text: str) -> None:
    assert "invalid YAML: " in complaint(text)
    assert yaml_file.parse(text, "f").root is None


def test_a_lone_surrogate_is_an_error_even_as_an_escape() -> None:
    assert complaint('a: "\\ud800"\n').startswith("file.yaml:1:")


@pytest.mark.parametrize(
    "text", ["a: 1\n...\n", "---\na: 1\n", "# c\n---\na: 1\n...\n# c\n\n", "a: 1\n# end"]
)
def test_document_marks_and_comments_around_the_one_document_are_accepted(text: str) -> None:
    assert value_of(text) == {"a": 1}


def test_reading_goes_on_after_a_complaint_so_that_all_are_made_at_once() -> None:
    text = "a: 1\na: 2\nb: *x\nc: \x00\nd: {<<: 1, e: .nan, e: !t 1}\n? []\n: 1\n"
    assert [line.split()[0] for line in complaints(text)] == [
        "file.yaml:2:1",
        "file.yaml:3:4",
        "file.yaml:4:4",
        "file.yaml:5:5",
        "file.yaml:5:15",
        "file.yaml:5:21",
        "file.yaml:5:24",
        "file.yaml:6:3",
    ]


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_32_levels_are_allowed_and_33_are_not() -> None:
    assert value_of(nested(32))
    assert complaint(nested(33)).endswith("nested 33 levels deep; at most 32 are allowed")


def test_what_follows_too_deep_a_value_is_still_read() -> None:
    said = complaints(f"a: {nested(40)}\nb: 1\nb: 2\n")
    assert [line.split()[0] for line in said] == ["file.yaml:1:35", "file.yaml:3:1"]


@pytest.mark.parametrize("part", ["[", "{", "- ", "? ", "[{a: ", "{? "])
def test_a_hundred_thousand_levels_give_one_complaint_and_no_crash(part: str) -> None:
    assert len(complaints(part * 100_000)) == 1


def anchored(text: str) -> tuple[Any, list[str]]:
    document = yaml_file.parse_anchored(text, "f")
    said = [str(problem) for problem in document.problems(document.findings)]
    return (document.root.value if document.root else None), said


def test_other_tools_files_may_repeat_values_and_merge_mappings() -> None:
    text = "a: &x {k: 1, l: 2}\nb: {l: 3, <<: *x}\nc: {<<: [*x, {l: 8, m: 9}], q: [*x]}\n"
    value, said = anchored(text)
    assert said == []
    # The mapping's own key counts, then the first of the mappings that lend it.
    assert (value["b"], value["c"]) == ({"l": 3, "k": 1}, {"q": [{"k": 1, "l": 2}], "k": 1, "l": 2, "m": 9})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: *none\n", "f:1:4  a: alias '*none' has no anchor before it"),
        ("a: &x [1, *x]\n", "f:1:11  a[1]: alias '*x' stands inside the value that it repeats"),
        ("a: {<<: 3}\n", "f:1:9  merge key << needs a mapping, or a list of mappings"),
        ("a: &x 1\n*x : 2\n", "f:2:1  alias '*x' is not a key; keys must be text"),
    ],
)
def test_what_no_anchor_can_mean_is_told_where(text: str, said: str) -> None:
    assert said in anchored(text)[1]


@pytest.mark.parametrize("times", [10, 1])
def test_a_bomb_of_anchors_is_refused_before_it_goes_off(times: int) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * times)}]\n" for n in range(1, 60)]
    value, (said,) = anchored("a0: &a0 [" + "x, " * 10 + "]\n" + "".join(levels))
    assert value is None
    # 10 x 10 x 10 x 10 x 10 values are in a4; alone, each level lies deeper than the last.
    assert said.startswith("f:5:" if times == 10 else "f:32:")
    assert said.endswith("repeats too many values; at most 100,000 may be repeated in all, 32 levels deep")


def test_aliases_are_never_expanded_so_a_bomb_does_not_go_off() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 60)]
    said = complaints("l0: &l0 [x]\n" + "\n".join(levels))
    assert len(said) == 60 + 59 * 9


def test_a_flood_of_complaints_is_cut_and_the_cut_is_said() -> None:
    said = complaints("[" + "*a, " * 50_000 + "]")
    assert len(said) == yaml_file.MAX_PROBLEMS + 1
    assert said[-1].endswith("more than 1,000 problems; mend these first")


def test_a_million_directives_are_not_handed_to_the_parser_which_would_compare_each_with_all() -> None:
    head = "".join(f"%TAG !{n}! x\n" for n in range(200_000))
    assert len(complaints(head + "---\na: 1\n")) == 1
    assert len(complaints("a: 1\n...\n" + head)) == 1


def test_a_file_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "MAX_EVENTS", 1000)
    assert complaint("[" + "x, " * 2000 + "]").endswith("holds too many values; split the file")


def test_a_huge_scalar_is_read_and_never_quoted_in_full() -> None:
    assert len(value_of("a: " + "x" * 3_000_000)["a"]) == 3_000_000
    said = complaints("'" + "k" * 900 + "': 1\n'" + "k" * 900 + "': 2\n")
    assert len(said[0]) < 250


fragments = st.sampled_from(
    [
        *["a", "b: ", ": ", "- ", "? ", "[", "]", "{", "}", ",", "\n", "\n  ", "\t", "#", " ", "|\n", ">-\n"],
        *["&x ", "*x", "!t ", "!!int ", "<<: ", "---\n", "...\n", "%YAML 1.1\n", '"', "'", "\\", '"\\ud800"'],
        *["1", ".nan", "1e999", "\x00", "\x85", "\u2028", "\ufeff", "é", "😀", '"\\UFFFFFFFF"', "\r", "\r\n"],
    ]
)
shreds = st.lists(fragments, max_size=40).map("".join)


@given(shreds | st.text(max_size=60))
@example("? \n- a: &x !t [*x\n")
@settings(max_examples=400, deadline=None)
def test_any_text_gives_values_or_complaints_that_lie_inside_it(text: str) -> None:
    for loader in (yaml_file.DEFAULT_LOADER, yaml.SafeLoader):
        document = yaml_file.parse(text, "f", partial(yaml.parse, Loader=loader))
        root, findings = document.root, document.findings
        assert all(0 <= found.start <= len(text) for found in findings)
        if root is None and not findings:
            lines = [line.strip() for line in text.splitlines()]
            assert all(not line or line.startswith(("#", "...")) for line in lines)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_any_bytes_give_values_or_complaints(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    document = yaml_file.read(written(tmp_path_factory.getbasetemp(), data))
    assert all(problem.line >= 1 and problem.column >= 1 for problem in document.problems(document.findings))


def test_the_pure_parser_stands_in_where_libyaml_is_missing() -> None:
    text = "a: 1\nb: [x, {c: .5}]\nb: 2\nd: *e\n"
    fast = yaml_file.parse(text, "f")
    pure = yaml_file.parse(text, "f", partial(yaml.parse, Loader=yaml.SafeLoader))
    assert fast.findings == pure.findings
    assert fast.root is not None
    assert pure.root is not None
    assert fast.root.value == pure.root.value == {"a": 1, "b": ["x", {"c": 0.5}], "d": None}


def said_of(path: Path) -> str:
    document = yaml_file.read(path)
    assert document.root is None
    (problem,) = document.problems(document.findings)
    return str(problem).removeprefix(str(path))


def test_bytes_that_are_not_utf8_are_located(tmp_path: Path) -> None:
    path = written(tmp_path, "é: 1\nb: ".encode() + b"\xff\xfe")
    assert said_of(path) == ":2:4  byte 0xff is not UTF-8 text; save the file as UTF-8"


def test_a_utf16_file_is_told_to_be_utf8(tmp_path: Path) -> None:
    assert said_of(written(tmp_path, "a: 1".encode("utf-16"))).endswith("save the file as UTF-8")


def test_16_mib_are_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = written(tmp_path, b"a: 1\n#".ljust(yaml_file.MAX_BYTES, b"x"))
    document = yaml_file.read(path)
    assert document.root is not None
    assert document.root.value == {"a": 1}
    with path.open("ab") as file:
        file.write(b"x")
    assert said_of(path) == ":1:1  holds 16,777,217 bytes; at most 16 MiB are allowed (split it)"


def test_the_size_is_checked_before_the_content_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, b"")
    os.truncate(path, 10**12)
    assert "at most 16 MiB" in said_of(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert said_of(tmp_path) == ":1:1  is a folder; must be a YAML file"


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert said_of(pipe) == ":1:1  is a pipe and not a regular file; must be a YAML file"
    assert said_of(Path("/dev/zero")) == ":1:1  is not a regular file; must be a YAML file"


def test_a_loop_of_links_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "cannot be read" in said_of(tmp_path / "a")


@pytest.mark.parametrize("name", ["none.yaml", "none/none.yaml", "nul\0.yaml"])
def test_a_file_that_is_not_there_raises(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        yaml_file.read(tmp_path / name)


def test_paths_are_written_as_people_write_them() -> None:
    assert path_of(("tasks", 3, "judge", "type")) == "tasks[3].judge.type"
    assert path_of(("a b", "c")) == "['a b'].c"
    assert path_of((0, "a")) == "[0].a"


def test_quoted_values_hold_nothing_that_a_terminal_obeys_and_are_cut() -> None:
    assert shown("a\x1b[31m\u202e") == r"'a\x1b[31m\u202e'"
    assert len(shown("x" * 1000)) < 70
