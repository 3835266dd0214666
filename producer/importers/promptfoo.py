"""Read a promptfoo configuration: each prompt with each test becomes a task.

Read are prompts and tests, inline and in text, YAML, JSON, JSONL and CSV files of the configuration's folder,
`defaultTest`, scenarios, variables (lists are multiplied out) and references to assertion templates, each with its
place. Prompts or providers that differ only by a skill or a system prompt become baseline and candidate. What else
there is, is named.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import StringIO
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from aggregate.text import files
from judges.safe_text import shown
from producer.importers import imported
from producer.importers import promptfoo_checks as checks
from producer.importers.imported import Found, ImportedSource, ImportedTask, Refused, kind_of, slug
from producer.importers.promptfoo_checks import Asked, Made, rendered, text_of
from producer.skills import skill as skills
from producer.suites import json_file, yaml_file
from producer.suites.yaml_file import Document, Finding, Node

_PROMPT_FILES = (".txt", ".md", ".j2", ".json", ".jsonl", ".yaml", ".yml")
_TEST_FILES = (".yaml", ".yml", ".json", ".jsonl", ".csv")
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)
# What of a provider's config holds a system prompt, and names the folder in which an agent finds skills.
_SYSTEM_KEYS = (
    *("system", "system_prompt", "systemPrompt", "custom_system_prompt", "append_system_prompt"),
    *("instructions", "developer_instructions"),
)
_FOLDER_KEY = "working_dir"
_FROM_ENVIRONMENT = re.compile(r"""\{\{\s*env\.\w+\s*\|\s*default\((["'])(.*?)\1\)\s*\}\}""")
_SKILL_FILE = re.compile(r"(\.(?:claude|agents)/skills/([^/]+)/)SKILL\.md")

Placed = tuple[ImportedSource, Node]


@dataclass(frozen=True)
class Prompt:
    """A template, or the roles and templates of a conversation; its name for tests, and the skill before it."""

    text: str | tuple[tuple[str, str], ...]
    label: str
    origin: str
    skill: str = ""

    def filled(self, values: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
        """The prompt or messages of a task; raises Refused."""
        talk = (("user", self.text),) if isinstance(self.text, str) else self.text
        said = [{"role": role, "content": rendered(content, values)} for role, content in talk]
        if [message["role"] for message in said] == ["user"]:
            around = (rendered(str(options.get(key, "")), values) for key in ("prefix", "suffix"))
            if not (prompt := said[0]["content"].join(around)).strip():
                raise Refused("its prompt is blank")
            return {"prompt": prompt}
        if options.get("prefix") or options.get("suffix"):
            raise Refused("its options put a text before or behind a conversation")
        return {"messages": said}


@dataclass(frozen=True)
class Assertion:
    """An assertion where it stands, with references followed.

    Of a set, it has the place, the mean that the set must reach, and the part of the set's weight that it bears.
    """

    place: str
    kind: str
    value: dict[str, Any]
    group: str = ""
    share: float = 1.0
    threshold: float | None = None


class PromptfooConfig:
    """One configuration; `sources` are its file and the files of tests that it names."""

    def __init__(self, source: ImportedSource, root: Node, home: Path, found: Found) -> None:
        self.sources = [source]
        self.root = root
        self.home = home
        self._found = found

    def leave_out(self, node: Node, what: str, why: str) -> None:
        """Note a setting that is not carried over."""
        self._found.leave_out("setting", self.sources[0].place(node), what, why)

    def prompts(self) -> Iterator[Prompt]:
        """Every prompt, in order; files with several are taken apart."""
        source = self.sources[0]
        node = self.root.get("prompts")
        if node is None:
            source.wrong(self.root, "prompts", "is missing; a configuration needs one prompt or more")
            return
        for number, entry in enumerate(_listed(node)):
            where = f"prompts[{number}]"
            raw, label = entry.value, ""
            if isinstance(entry.value, dict):
                raw = next((entry.value[key] for key in ("raw", "content", "id") if key in entry.value), None)
                label = str(entry.value.get("label", entry.value.get("id", "")))
            if not isinstance(raw, str) or not raw.strip():
                source.wrong(entry, where, f"is {kind_of(raw)}; must be text, or a mapping with raw or id")
                continue
            try:
                texts = list(self._prompt_texts(raw))
                for index, text in enumerate(texts, start=1):
                    origin = source.place(entry) + (f", part {index}" if len(texts) > 1 else "")
                    skill, asked = _apart(text)
                    yield Prompt(_conversation(asked), label or raw, origin, skill)
            except Refused as refused:
                self.leave_out(entry, where, str(refused))

    def _prompt_texts(self, raw: str) -> Iterator[str]:
        if not raw.startswith("file://") and (not raw.endswith(_PROMPT_FILES) or "\n" in raw):
            yield raw
            return
        name = raw.removeprefix("file://")
        if not name.endswith(_PROMPT_FILES):
            raise Refused(f"only prompts in {', '.join(_PROMPT_FILES)} files can be read; write it out")
        text = imported.text_beside(self.home, name)
        if name.endswith((".yaml", ".yml")):
            yield json.dumps(checks.values_of(text, name))
        elif name.endswith(".json") or not skills.is_absent(text):
            yield text
        else:
            separator = "\n" if name.endswith(".jsonl") else _SEPARATOR
            yield from (part.strip() for part in re.split(separator, text) if part.strip())

    def tests(self) -> Iterator[tuple[Placed, ...]]:
        """Every test and the file that it stands in, after the scenario's values that it is tried with."""
        node, scenarios = self.root.get("tests"), self.root.get("scenarios")
        if node is None and scenarios is None:
            yield ((self.sources[0], Node(self.root.start, {}, {})),)
        for test in self.placed(node):
            yield (test,)
        for source, scenario in self.placed(scenarios):
            holders = (list(self.placed(scenario.get(key), source)) for key in ("tests", "config"))
            yield from ((values, test) for test, values in product(*holders))

    def placed(self, node: Node | None, source: ImportedSource | None = None) -> Iterator[Placed]:
        """The mappings that stand in a list, or in the files that it names."""
        source = source or self.sources[0]
        for entry in _listed(node):
            if isinstance(entry.value, dict) and "path" not in entry.value:
                yield source, entry
            elif isinstance(entry.value, dict | str):
                name = str(entry.value["path"] if isinstance(entry.value, dict) else entry.value)
                try:
                    yield from self._in_file(name.removeprefix("file://"))
                except Refused as refused:
                    what = f"tests {shown(name)}"
                    self._found.leave_out("setting", source.place(entry), what, str(refused))
            elif entry.value is not None:
                source.wrong_kind(entry, "tests", "a mapping or a file's name")

    def _in_file(self, name: str) -> Iterator[Placed]:
        if not name.endswith(_TEST_FILES):
            raise Refused(f"only tests in {', '.join(_TEST_FILES)} files can be read; write them out")
        text = imported.text_beside(self.home, name)
        shown_as = str(Path(self.sources[0].name).parent / name)
        parse = _rows if name.endswith((".csv", ".jsonl")) else checks.parser_of(name)
        source = ImportedSource(parse(text, shown_as), shown_as)
        source.check()
        self.sources.append(source)
        root = source.document.root
        if root and isinstance(root.value, dict):
            yield source, root
        else:
            yield from ((source, node) for _, node in source.mappings(root, ""))

    def assertions(self, source: ImportedSource, node: Node | None, where: str) -> Iterator[Assertion]:
        """The assertions of a list; sets are taken apart."""
        for entry in source.entries(node, where):
            value = self._followed(source, entry)
            if value is None:
                continue
            kind = value.get("type")
            if not isinstance(kind, str):
                source.wrong(entry, where, "an assertion has no type; name one, such as contains")
            elif kind == "assert-set":
                held = list(self.assertions(source, entry.get("assert"), where))
                try:
                    whole = sum(checks.weight_of(each.value) * each.share for each in held) or 1.0
                    share, threshold = checks.weight_of(value) / whole, checks.share_of(value)
                except Refused as refused:
                    source.wrong(entry, where, f"assert-set: {refused}")
                    continue
                place = source.place(entry)
                for each in held:
                    yield replace(each, group=place, share=each.share * share, threshold=threshold)
            else:
                yield Assertion(source.place(entry), kind, value)

    def _followed(self, source: ImportedSource, entry: Node) -> dict[str, Any] | None:
        if not isinstance(entry.value, dict):
            source.wrong_kind(entry, "assert", "a mapping with type and value")
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

    def find_arms(self, prompts: list[Prompt]) -> list[str]:
        """Note the skills that are compared, as prompts or else providers have them; the files that agents work on."""
        told = dict.fromkeys(prompt.skill for prompt in prompts if prompt.skill)
        arms: list[tuple[dict[str, bytes], dict[str, bytes]]]
        arms = [({skills.FILE_NAME: text.encode()}, {}) for text in told]
        if len(arms) > 2:
            self.leave_out(self.root, "prompts", "a third skill; import it in a configuration of its own")
        alike: dict[str, list[Node]] = {}
        for entry in (entry for key in _PROVIDERS for entry in self.root.items(key) if not arms):
            whole = entry.value if isinstance(entry.value, dict) else {"id": entry.value}
            config = whole["config"] if isinstance(whole.get("config"), dict) else {}
            rest = {key: config[key] for key in config if key not in (*_SYSTEM_KEYS, _FOLDER_KEY)}
            alike.setdefault(json.dumps([whole.get("id"), rest], sort_keys=True), []).append(entry)
        pair = next((entries for entries in alike.values() if len(entries) > 1), [])[:2]
        try:
            arms = arms[:2] or [self._agent_files(entry) for entry in pair]
        except Refused as refused:
            self.leave_out(pair[0], "providers", f"cannot be compared: {refused}")
        given = [skill for skill, _ in arms if skill]
        if not given or given[1:] == given[:1]:
            return []
        # Of two the first is the baseline; the only one there is, is the candidate.
        self._found.skills.update(zip(("baseline", "candidate")[-len(given) :], given, strict=True))
        self._found.note(f"{' and '.join(self._found.skills)}, which are compared, lie beside the suite")
        shared = {name: data for name, data in arms[0][1].items() if arms[-1][1].get(name) == data}
        self._found.fixtures.update(shared)
        return [f"fixtures/{name}" for name in shared]

    def _agent_files(self, entry: Node) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """The skill that a provider has, in files or as its system prompt, and the other files of its folder."""
        whole = entry.value if isinstance(entry.value, dict) else {}
        config = whole.get("config") or {}
        label = str(whole.get("label") or "system prompt")
        if texts := [config[key] for key in _SYSTEM_KEYS if isinstance(config.get(key), str)]:
            text = "\n\n".join(rendered(text_of(each, self.home), {}) for each in texts)
            head = f"---\nname: {slug(label) or 'skill'}\ndescription: {json.dumps(label)}\n---\n\n"
            return {skills.FILE_NAME: f"{head}{text}\n".encode()}, {}
        if not isinstance(folder := config.get(_FOLDER_KEY), str):
            return {}, {}
        place = rendered(_FROM_ENVIRONMENT.sub(r"\2", folder), {})
        inside = imported.files_in(self.home, place)
        named = {found[2]: found[1] for name in inside if (found := _SKILL_FILE.fullmatch(name))}
        wanted = config.get("skills")
        chosen = [name for name in named if not isinstance(wanted, list) or name in wanted]
        if len(chosen) > 1:
            raise Refused(f"{shown(place)} holds several skills, and one is compared ({', '.join(chosen)})")
        under = tuple(named[name] for name in chosen)
        skill = {name[len(under[0]) :]: data for name, data in inside.items() if name.startswith(under)}
        return skill, {name: data for name, data in inside.items() if not name.startswith(".")}


def _apart(text: str) -> tuple[str, str]:
    """A prompt that begins as a SKILL.md does: the skill, and the lines from the first variable on; raises Refused."""
    try:
        body = skills.read(text).body if not skills.is_absent(text) else None
    except skills.InvalidFrontMatter:
        body = None
    if body is None:
        return "", text
    if (variable := text.find("{{", body)) < 0:
        raise Refused("it is a SKILL.md and asks nothing; put a variable such as {{request}} below it")
    start = text.rfind("\n", 0, variable) + 1
    return text[:start], text[start:].strip()


def _conversation(text: str) -> str | tuple[tuple[str, str], ...]:
    """The roles and texts of a prompt in JSON's chat form; any other prompt as it is; raises Refused."""
    if not text.lstrip().startswith("["):
        return text
    document = json_file.parse(text, "")
    said = document.root.value if document.root else None
    if document.root is None and '"role"' in text:
        raise Refused("its messages must be JSON before variables are filled in")
    if not isinstance(said, list) or not all(isinstance(each, dict) and "role" in each for each in said):
        return text
    parts = [(each["role"], each.get("content")) for each in said]
    for role, content in parts:
        if role not in ("system", "user", "assistant") or not isinstance(content, str) or not content.strip():
            raise Refused("only messages of system, user and assistant with text can be asked")
    if all(role != "user" for role, _ in parts):
        raise Refused("nobody asks in its messages; one must have the role user")
    return tuple(parts)


def _rows(text: str, file: str) -> Document:
    """The tests that stand one to a line or to a table's row, each on the line where that begins."""
    lines = list(StringIO(text, newline=""))
    rows = {number: line.rstrip() for number, line in enumerate(lines) if line.strip()}
    if file.endswith(".csv"):
        rows, reader, begins = {}, csv.reader(lines, strict=True), 0
        try:
            head = next(reader, [])
            while (begins := reader.line_num) < len(lines):
                if any(cells := next(reader, [])):
                    rows[begins] = json.dumps(_test_of_row(dict(zip(head, cells, strict=False))))
        except csv.Error as wrong:
            place = Finding(len("".join(lines[:begins])), "", f"invalid CSV: {wrong}")
            return Document(file, text, None, (place,))
    first = next(iter(rows), 0)
    joined = {number: ("," if number > first else "[") + row for number, row in rows.items()}
    listed = "\n".join(joined.get(number, "") for number in range(len(lines)))
    return json_file.parse(listed + "]" if rows else "[]", file)


# promptfoo's names, which a cell of a table may begin with; all other cells are texts to be equal to.
_KINDS = """agent-rubric answer-relevance bleu classifier contains contains-all contains-any contains-html contains-json
contains-sql contains-xml context-faithfulness context-recall context-relevance conversation-relevance cost equals
factuality finish-reason g-eval gleu guardrails icontains icontains-all icontains-any is-html is-json is-refusal is-sql
is-valid-function-call is-valid-openai-function-call is-valid-openai-tools-call is-xml javascript latency levenshtein
llm-rubric meteor model-graded-closedqa model-graded-factuality moderation perplexity perplexity-score pi python regex
rouge-n ruby search-rubric similar skill-used starts-with tool-call-f1 trace-error-spans trace-span-count
trace-span-duration trajectory webhook word-count"""
_CELL = re.compile(r"(not-)?([a-z][a-z0-9-]*)(?:\((\d+(?:\.\d+)?)\))?(?::(.*))?", re.DOTALL)
_PREFIXES = {"fn": "javascript", "eval": "javascript", "grade": "llm-rubric"}


def assertion_of_cell(cell: str) -> dict[str, Any]:
    """The assertion that a table's cell stands for, such as `icontains: yes` or `similar(0.8): hello`."""
    prefix, colon, rest = cell.partition(":")
    kind = _PREFIXES.get(prefix, prefix)
    if colon and kind in ("javascript", "llm-rubric", "python"):
        return {"type": kind, "value": rest.strip()}
    if prefix == "file" and re.search(r"\.(py|js|cjs|mjs|ts)(:|$)", cell):
        return {"type": "python" if ".py" in cell else "javascript", "value": cell}
    if (found := _CELL.fullmatch(cell)) is None or found[2] not in _KINDS.split():
        return {"type": "equals", "value": cell}
    made: dict[str, Any] = {"type": (found[1] or "") + found[2]}
    if found[4] and found[4].strip():
        made["value"] = found[4].strip()
    if found[3] or found[2] in ("latency", "cost"):
        made["threshold"] = float(found[3] or 0.75)
    return made


def _test_of_row(row: dict[str, str]) -> dict[str, Any]:
    """The test that a table's row stands for: variables by their columns, and columns that begin with `__`."""
    row = {key.strip(): value for key, value in row.items()}
    expected = [value.strip() for key, value in row.items() if key.startswith("__expected") and value.strip()]
    assertions = [assertion_of_cell(cell) for cell in expected]
    for key, value in row.items():
        found = re.fullmatch(r"__config:__expected(\d{0,3}):threshold", key)
        place = int(found[1] or 1) - 1 if found else -1
        if 0 <= place < len(assertions) and re.fullmatch(r"\d*\.?\d+", value.strip()):
            assertions[place]["threshold"] = float(value)
    test: dict[str, Any] = {"vars": {key: value for key, value in row.items() if not key.startswith("__")}}
    test["options"] = {key: row[f"__{key}"] for key in ("prefix", "suffix") if row.get(f"__{key}")}
    if row.get("__description"):
        test["description"] = row["__description"]
    if re.fullmatch(r"\d*\.?\d+", row.get("__threshold", "").strip()):
        test["threshold"] = float(row["__threshold"])
    if row.get("__metric"):
        assertions = [{**each, "metric": row["__metric"]} for each in assertions]
    return {**test, "assert": assertions}


_TEST_KEYS = ("description", "vars", "assert", "prompts", "options", "metadata", "threshold")
_OPTION_KEYS = ("prefix", "suffix", "transform", "postprocess", "rubricPrompt", "disableVarExpansion")
_ROOT_KEYS = ("description", "prompts", "tests", "scenarios", "defaultTest", "assertionTemplates")
_PROVIDERS = ("providers", "targets")


@dataclass(frozen=True)
class Test:
    """One test: where it stands, what it is called and what it asserts."""

    place: str
    where: str
    name: str
    description: str
    assertions: list[Assertion]
    options: dict[str, Any]
    threshold: Any


def convert(path: Path) -> Found:
    """The tasks of a configuration; raises Unimportable with everything that is wrong with the file."""
    source, root = imported.open_source(path, keys="prompts and tests")
    found = Found(source=str(path), skill_id=slug(path.resolve().parent.name) or "skill")
    found.description = " ".join((source.text(root.get("description"), "description") or "").split())
    config = PromptfooConfig(source, root, path.parent, found)
    _Cases(config, found).fill()
    for each in config.sources:
        each.check()
    return found


class _Cases:
    """Makes a task of every test with every prompt and every combination of variables."""

    def __init__(self, config: PromptfooConfig, found: Found) -> None:
        self._config = config
        self._found = found
        self._met: dict[str, Assertion] = {}
        self._used: set[str] = set()
        self._files: list[str] = []

    def fill(self) -> None:
        config = self._config
        prompts = list(config.prompts())
        self._files = config.find_arms(prompts)
        if any(prompt.skill for prompt in prompts):  # the arms tell them apart
            prompts = list({prompt.text: prompt for prompt in prompts}.values())
        default = tuple(config.placed(config.root.get("defaultTest")))[:1]
        for number, holders in enumerate(config.tests()):
            self._test((*default, *holders), number, prompts)
        named = [key for key in config.root.value if key.startswith("x-")]
        self._found.leave_out_settings(config.sources[0], config.root, (*_ROOT_KEYS, *_PROVIDERS, *named))
        if any(key in config.root.value for key in _PROVIDERS):
            self._found.note("providers are not carried over; choose models with --model and --judge-model")
        self._found.assertion_count = len(self._met)
        told = {item.place for item in self._found.left_out if item.kind == "assertion"}
        for place, assertion in self._met.items():
            if place not in self._used | told:
                self._found.leave_out("assertion", place, assertion.kind, "its test is left out")

    def _test(self, holders: tuple[Placed, ...], number: int, prompts: list[Prompt]) -> None:
        where, (source, node) = f"tests[{number}]", holders[-1]
        assertions: list[Assertion] = []
        variables: dict[str, Any] = {}
        options: dict[str, Any] = {}
        threshold: Any = None
        for owner, holder in holders:
            assertions += self._config.assertions(owner, holder.get("assert"), f"{where}.assert")
            self._found.leave_out_settings(owner, holder, _TEST_KEYS)
            threshold = holder.value.get("threshold", threshold)
            variables |= owner.mapping(holder.get("vars"), "vars")
            options |= owner.mapping(holder.get("options"), "options")
            self._found.leave_out_settings(owner, holder.get("options"), _OPTION_KEYS, "options.")
        self._met.update({assertion.place: assertion for assertion in assertions})
        description = " ".join((source.text(node.get("description"), f"{where}.description") or "").split())
        name = slug(description) or f"test-{number + 1}"
        test = Test(source.place(node), where, name, description, assertions, options, threshold)
        lists = {key: value for key, value in variables.items() if isinstance(value, list) and value}
        if options.get("disableVarExpansion"):
            lists = {}
        wanted = node.get("prompts")
        names = wanted.value if wanted is not None and isinstance(wanted.value, list) else None
        chosen = [prompt for prompt in prompts if names is None or prompt.label in names]
        if self._found.task_count + len(chosen) * prod(map(len, lists.values())) > imported.MAX_TASKS:
            source.wrong(
                node, where, f"makes more than {imported.MAX_TASKS:,} tasks; split the configuration"
            )
            return
        for prompt, values in product(chosen, product(*lists.values())):
            self._found.task_count += 1
            self._case(test, prompt, {**variables, **dict(zip(lists, values, strict=True))})

    def _case(self, test: Test, prompt: Prompt, values: dict[str, Any]) -> None:
        what = f"{test.where} with the prompt of {prompt.origin}"
        try:
            home = self._config.home
            values = {key: text_of(one, home) if isinstance(one, str) else one for key, one in values.items()}
            asked = prompt.filled(values, test.options)
            threshold = checks.share_of({"threshold": test.threshold})
        except Refused as refused:
            self._found.leave_out("task", test.place, what, str(refused))
            return
        said = asked.get("prompt") or json.dumps(asked["messages"])
        parts, reached = self._parts(test, Asked(values, said, self._config.home, False), threshold)
        judged = checks.judged_by(list(parts.values()), reached)
        if not judged:
            why = "none of its assertions can be judged" if test.assertions else "it has nothing to judge by"
            if parts:
                has_judge = any(part.judge for part in parts.values())
                why = "its assertions have weight 0" if has_judge else "it has only a time limit to judge by"
            self._found.leave_out("task", test.place, what, why)
            return
        self._used.update(parts)
        fields: dict[str, Any] = {"id": self._found.new_id(test.name)}
        if test.description:
            fields["description"] = test.description
        fields |= {**asked, **judged}
        if seconds := [part.seconds for part in parts.values() if part.seconds]:
            fields["timeout_seconds"] = min(seconds)
        if self._files:
            fields["files"] = self._files
        for place, part in parts.items():
            self._found.fixtures.update(part.fixtures)
            if part.changed:
                self._found.change(place, self._met[place].kind, part.changed)
        origin = f"{test.place} ({test.where}), prompt of {prompt.origin}"
        self._found.tasks.append(ImportedTask(origin, fields))

    def _parts(
        self, test: Test, asked: Asked, threshold: float | None
    ) -> tuple[dict[str, Made], float | None]:
        """What becomes of the assertions, by their places, and the mean that the task must reach.

        Without a threshold of its own, a test can have one set with a threshold: all else has no weight then.
        """
        inherited = {key: test.options[key] for key in checks.CHANGES_MEANING if key in test.options}
        kept: list[tuple[Assertion, Made]] = []
        lost, chosen, reached = set[str](), "", threshold
        for each in test.assertions:
            in_mean = threshold is not None or each.threshold is not None
            try:
                if each.threshold is not None and threshold is None and chosen not in ("", each.group):
                    raise Refused("a task can have one set with a threshold, and this is the second")
                made = checks.check_of({**inherited, **each.value}, replace(asked, scored=in_mean))
                if made.seconds is not None and in_mean:
                    raise Refused("a time limit cannot be part of a mean")
                kept.append((each, made))
                if "llm-rubric" in str(made.judge):
                    self._found.note("a rubric without a threshold passes from a score of 0.7 on")
                if each.threshold is not None and threshold is None:
                    chosen, reached = each.group, each.threshold
            except Refused as refused:
                lost.add(each.group if threshold is None else "")
                self._found.leave_out("assertion", each.place, each.kind, str(refused))
        parts = {}
        for each, made in kept:
            in_mean = threshold is not None or bool(chosen and each.group == chosen)
            scale = each.share if threshold is not None else float(in_mean or not chosen)
            required = not in_mean and made.weight > 0
            parts[each.place] = replace(made, weight=made.weight * scale, required=required)
            if in_mean and (chosen if threshold is None else "") in lost:
                self._found.change(each.place, each.kind, "the mean is that of the others that were kept")
        return parts, reached


def _listed(node: Node | None) -> list[Node]:
    """The entries of a list, or what stands alone in place of one."""
    return [] if node is None else node.items() if isinstance(node.value, list) else [node]


def is_configuration(path: Path) -> bool:
    """Whether a JSON file holds a promptfoo configuration and no evals; unreadable ones are neither."""
    try:
        value = json.loads(files.read(path, yaml_file.MAX_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "prompts" in value and "evals" not in value
