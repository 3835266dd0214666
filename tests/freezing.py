"""What a run prints and writes, with times, ids, hosts, versions and paths masked: text that only the seed determines.

Everything else stays as it is, numbers and sentences to the last digit that does not depend on the order of sums.
"""

from __future__ import annotations

import base64
import csv
import difflib
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aggregate.report.markdown import escaped

# By key in JSON and by column in CSV; what is missing stays missing.
TIMES = {
    "created_at",
    "duration_ms",
    "judge_ms",
    "mean_model_ms",
    "model_ms",
    "ms",
    "started_at",
    "wall_seconds",
}
RATE = "attempts_per_second"  # missing where a run took no time at all
VERSIONS = {"celery", "python", "uplift"}
HOSTS = {"worker", "workers"}
RATIO = {"high", "low", "ratio", "ratio_of_totals"}
RUN = re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{6}\b")
DIGITS = 12  # of a number that was summed in the order of arrival
PROGRESS = re.compile(r"^uplift: \d+/\d+ attempts; .*\n", re.MULTILINE)
TOOK = re.compile(r"(?<=\S) {2,}(\S.*), (?:\d+ h )?\d+ (?:s|min)$", re.MULTILINE)
RATIOS = re.compile(r"^.* % intervals  .*\n(.+\n)+", re.MULTILINE)  # in the terminal, up to an empty line
NUMBER = re.compile(r"\d[\d.]*(e-?\d+)?")
OWN_CODE = re.compile(r"(<style>|<script>).*?(</style>|</script>)", re.DOTALL)


class Mask:
    """Masks what belongs to one run in one folder, with its broker; times only where they were measured."""

    def __init__(self, folder: Path, broker: str, *, measured: bool) -> None:
        self._places = {broker: "BROKER", str(folder): "FOLDER"}
        self._places |= {escaped(place, 500): name for place, name in self._places.items()}  # in Markdown
        self._measured = measured

    def text(self, text: str) -> str:
        for place, name in self._places.items():
            text = text.replace(place, name)
        return RUN.sub("RUN", text)

    def value(self, value: Any, key: str = "") -> Any:
        """JSON with masked values; the key says what a number is."""
        if isinstance(value, dict):
            if key == "model_seconds" and self._measured:
                return {
                    name: "TIME" if one is not None and name in RATIO else one for name, one in value.items()
                }
            return {self.text(name): self.value(one, name) for name, one in value.items()}
        if key == RATE or (key in TIMES and value is not None and self._measured):
            return "TIME"
        if key in VERSIONS and isinstance(value, str):
            return "VERSION"
        if isinstance(value, list):
            return [self.value(one, key) for one in value]
        if key in HOSTS and isinstance(value, str):
            return "HOST"
        if isinstance(value, float):
            return float(f"{value:.{DIGITS}g}")
        return self.text(value) if isinstance(value, str) else value

    def json(self, text: str) -> str:
        return json.dumps(self.value(json.loads(text)), indent=1, ensure_ascii=False) + "\n"

    def stdout(self, text: str) -> str:
        return "".join(f"{_line(self.value(json.loads(line)))}\n" for line in text.splitlines())

    def csv(self, text: str) -> str:
        head, *rows = csv.reader(io.StringIO(text))
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([head, *(self._row(head, row) for row in rows)])
        return out.getvalue()

    def _row(self, head: list[str], row: list[str]) -> list[str]:
        masked = []
        for name, cell in zip(head, row, strict=True):
            number = re.fullmatch(r"-?\d+\.\d+(e-?\d+)?", cell)
            value: Any = float(cell) if number else cell or None
            made = self.value(value, name)
            masked.append("" if made is None else str(made))
        return masked

    def junit(self, text: str) -> str:
        return self.text(re.sub(r'\b(time|timestamp)="[^"]*"', r'\1="TIME"', text))

    def markdown(self, text: str) -> str:
        return self.text(self._without_model_time(text))

    def stderr(self, text: str) -> str:
        """Without the progress, which shows what was done at some moment, and how long the run took."""
        return self.text(self._without_model_time(TOOK.sub(r"  \1, TIME", PROGRESS.sub("", text))))

    def page(self, text: str, *, whole: bool) -> str:
        """The page with its data in place and readable; its own style and script only in a whole one.

        Where they are left out, their digests in the page's policy still tell when they change.
        """
        texts = [entry for block in _scripts(text, r"block-\d+") for entry in _unpacked(block)]
        (index,) = _scripts(text, "index")
        text = re.sub(r'(<script [^>]*id="(index|block-\d+)">).*?(</script>)', r"\1\3", text, flags=re.DOTALL)
        text = text if whole else OWN_CODE.sub(r"\1\2", text)
        text = re.sub(r"(<dt>(?:Made|Took)</dt><dd>)[^<]*", r"\1TIME", self._without_model_time(text))
        return self.text(text) + "\n" + "".join(f"{line}\n" for line in self._data(json.loads(index), texts))

    def _without_model_time(self, text: str) -> str:
        """Mask the numbers of every line that tells how long the model took, and the width of columns with ratios."""
        if not self._measured:
            return text
        text = RATIOS.sub(lambda table: re.sub(r" {2,}", "  ", re.sub(r"─+", "─", table[0])), text)
        lines = text.splitlines(keepends=True)
        return "".join(_without_numbers(line) if "Model time" in line else line for line in lines)

    def _data(self, index: dict[str, Any], texts: list[Any]) -> Iterator[str]:
        """What the page's script shows, a line for each row, question and attempt; their order in a block is chance."""
        rows = index.pop("rows")
        yield _line(self.value(index))
        for row in rows:
            arms = [arm and {**arm, "entries": None} for arm in row["arms"]]
            yield _line(self.value({**row, "prompt": None, "arms": arms}))
            shown = [row["prompt"], *(one for arm in row["arms"] if arm for one in arm["entries"])]
            yield from (f"  {_line(self.value(texts[one]))}" for one in shown if one is not None)


def _without_numbers(line: str) -> str:
    return re.sub(r" {2,}", "  ", NUMBER.sub("TIME", line))


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _scripts(page: str, name: str) -> list[str]:
    return re.findall(rf'<script [^>]*id="(?:{name})">(.*?)</script>', page, re.DOTALL)


def _unpacked(block: str) -> list[Any]:
    unpacked: list[Any] = json.loads(gzip.decompress(base64.b64decode(block)))
    return unpacked


def outputs(folder: Path, mask: Mask, *, whole_page: bool) -> Iterator[tuple[str, str]]:
    """Name and masked text of every file that a run and its reports left in a folder's state root."""
    kinds: dict[str, Callable[[str], str]] = {
        ".html": lambda text: mask.page(text, whole=whole_page),
        ".md": mask.markdown,
        ".xml": mask.junit,
        ".csv": mask.csv,
        ".json": mask.json,
    }
    for path in sorted((folder / "state").rglob("*")):
        place = path.relative_to(folder / "state")
        if path.suffix in kinds and path.name not in ("notes.json", "grounds.json"):
            yield "-".join(mask.text(str(place)).split("/")), kinds[path.suffix](path.read_text("utf-8"))


def differences(frozen: dict[str, str], now: dict[str, str]) -> str:
    """What to show somebody who has to see what has changed; empty where nothing has."""
    told = []
    for name in sorted(frozen.keys() | now.keys()):
        before, after = (text.get(name, "").splitlines(keepends=True) for text in (frozen, now))
        told += difflib.unified_diff(before, after, f"frozen/{name}", f"now/{name}", n=1)
    return "".join(told)
