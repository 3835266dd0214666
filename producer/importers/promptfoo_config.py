"""The parts of a promptfoo configuration: its prompts, its tests and their assertions, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producer import located_json, located_yaml
from producer.importers.found import Found, Refused, Source, kind_of, text_beside
from producer.yaml_nodes import Node, shown

TEXT_FILES = (".txt", ".md", ".j2")
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Prompt:
    """A prompt's template, and the name by which tests may ask for it."""

    text: str
    label: str
    origin: str


@dataclass(frozen=True)
class Assertion:
    """An assertion where it stands, with references followed."""

    node: Node
    source: Source
    value: dict[str, Any]

    @property
    def place(self) -> str:
        return self.source.place(self.node)

    @property
    def kind(self) -> str:
        return str(self.value["type"])


class Config:
    """One configuration; `sources` are its file and the files of tests that it names."""

    def __init__(self, source: Source, root: Node, home: Path, found: Found) -> None:
        self.sources = [source]
        self.root = root
        self.home = home
        self._found = found

    def leave_out(self, source: Source, node: Node, what: str, why: str) -> None:
        """Note a setting that is not carried over."""
        self._found.leave_out("setting", source.place(node), what, why)

    def prompts(self) -> Iterator[Prompt]:
        """Every prompt, in order; files with several are taken apart."""
        source = self.sources[0]
        node = self.root.get("prompts")
        if node is None:
            source.wrong(self.root, "prompts", "is missing; a configuration needs one prompt or more")
            return
        entries = node.items() if isinstance(node.value, list) else [node]
        for number, entry in enumerate(entries):
            where = f"prompts[{number}]"
            raw, label = entry.value, ""
            if isinstance(entry.value, dict):
                raw = entry.value.get("raw", entry.value.get("id"))
                label = str(entry.value.get("label", entry.value.get("id", "")))
            if not isinstance(raw, str) or not raw.strip():
                source.wrong(entry, where, f"is {kind_of(raw)}; must be text, or a mapping with raw or id")
                continue
            try:
                parts = self._prompt_texts(raw)
                for index, part in enumerate(parts, start=1):
                    origin = source.place(entry) + (f", part {index}" if len(parts) > 1 else "")
                    yield Prompt(part, label or raw, origin)
            except Refused as refused:
                self.leave_out(source, entry, where, str(refused))

    def _prompt_texts(self, raw: str) -> list[str]:
        name = raw.removeprefix("file://")
        if not raw.startswith("file://") and not raw.endswith(TEXT_FILES):
            return [raw]
        if not name.endswith(TEXT_FILES) or "*" in name:
            raise Refused("only prompts in .txt, .md and .j2 files can be read; write it out")
        text = text_beside(self.home, name)
        return [part.strip() for part in _SEPARATOR.split(text) if part.strip()]

    def tests(self) -> Iterator[tuple[Source, Node]]:
        """Every test and the file that it stands in."""
        source = self.sources[0]
        node = self.root.get("tests")
        if node is None:
            return
        for entry in node.items() if isinstance(node.value, list) else [node]:
            if isinstance(entry.value, dict):
                yield source, entry
            elif isinstance(entry.value, str):
                yield from self._tests_in(entry.value, entry)
            else:
                source.wrong(entry, "tests", f"is {kind_of(entry.value)}; must be a mapping or a file's name")

    def _tests_in(self, name: str, entry: Node) -> Iterator[tuple[Source, Node]]:
        file = name.removeprefix("file://")
        if not file.endswith((".yaml", ".yml", ".json")) or "*" in file:
            why = "only tests in .yaml and .json files can be read; write them out"
            self.leave_out(self.sources[0], entry, f"tests {shown(name)}", why)
            return
        try:
            text = text_beside(self.home, file)
        except Refused as refused:
            self.leave_out(self.sources[0], entry, f"tests {shown(name)}", str(refused))
            return
        module = located_json if file.endswith(".json") else located_yaml
        shown_as = str(Path(self.sources[0].name).parent / file)
        source = Source(module.parse(text, shown_as), shown_as)
        source.check()
        self.sources.append(source)
        for node in source.entries(source.document.root, ""):
            if isinstance(node.value, dict):
                yield source, node
            else:
                source.wrong(node, "", f"is {kind_of(node.value)}; must be a mapping")

    def assertions(self, source: Source, node: Node | None, where: str) -> Iterator[Assertion]:
        """The assertions of a list; sets in which all must hold are taken apart."""
        for entry in source.entries(node, where):
            value = self._followed(source, entry)
            if value is None:
                continue
            kind = value.get("type")
            if not isinstance(kind, str):
                source.wrong(entry, where, "an assertion has no type; name one, such as contains")
            elif kind == "assert-set" and value.get("threshold") is None:
                yield from self.assertions(source, entry.get("assert"), where)
            else:
                yield Assertion(entry, source, value)

    def _followed(self, source: Source, entry: Node) -> dict[str, Any] | None:
        if not isinstance(entry.value, dict):
            source.wrong(entry, "assert", f"is {kind_of(entry.value)}; must be a mapping with type and value")
            return None
        reference = entry.value.get("$ref")
        if reference is None:
            return entry.value
        steps = str(reference).removeprefix("#/").split("/")
        target, there = self.root.at(steps) if str(reference).startswith("#/") else (entry, False)
        if not there or not isinstance(target.value, dict) or "$ref" in target.value:
            source.wrong(entry, "assert", f"$ref {shown(reference)} leads to no assertion template")
            return None
        return target.value
