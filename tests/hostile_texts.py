"""Texts that try to run, hide, break out or break a parser, and a run that holds them in every place it can."""

from __future__ import annotations

from functools import cache

from aggregate.artifact import build
from aggregate.records.record import AttemptRecord
from aggregate.records.run_info import RunInfo
from aggregate.report.result_tables import Material, TaskText

_RUN = "window.ran=(window.ran||0)+1"

MARKUP = [
    f"<script>{_RUN}</script>",
    f"</script><script>{_RUN}</script>",
    f"</ScRiPt ><sCrIpT>{_RUN}</sCrIpT>",
    f"<!--</script><script>{_RUN}</script>-->",
    f"<!--<script>{_RUN}",
    f"</title><script>{_RUN}</script>",
    f"</style><script>{_RUN}</script>",
    f"</textarea><script>{_RUN}</script>",
    f"]]><script>{_RUN}</script>",
    f"<img src=x onerror={_RUN}>",
    f'"><img src=x onerror="{_RUN}">',
    f"'><img src=x onerror='{_RUN}'>",
    f"<svg onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{_RUN}'><text x=20 y=20>go</text></a></svg>",
    "<svg><use href='data:image/svg+xml;base64,PHN2Zy8+#x'/></svg>",
    f"<math><mtext><script>{_RUN}</script></mtext></math>",
    f"<iframe srcdoc='<script>parent.{_RUN}</script>'></iframe>",
    f"<iframe src=javascript:{_RUN}></iframe>",
    f"<object data='javascript:{_RUN}'></object>",
    "<embed src='http://attacker.invalid/x.swf'>",
    f"<details open ontoggle={_RUN}>",
    f"<body onload={_RUN}>",
    f"<input autofocus onfocus={_RUN}>",
    f"<video><source onerror={_RUN}></video>",
    f"<audio src=x onerror={_RUN}>",
    f"<marquee onstart={_RUN}>x</marquee>",
    f"<form action='javascript:{_RUN}'><button>go</button></form>",
    f"<a href='javascript:{_RUN}'>go</a>",
    f"<a href='java\tscript:{_RUN}'>go</a>",
    f"<a href='data:text/html,<script>{_RUN}</script>'>go</a>",
    "<a href='http://attacker.invalid/leak'>go</a>",
    "<link rel=stylesheet href='http://attacker.invalid/x.css'>",
    "<style>@import 'http://attacker.invalid/x.css';*{display:none}</style>",
    "<div style=\"background:url('http://attacker.invalid/x.png')\">x</div>",
    "<meta http-equiv=refresh content='0;url=http://attacker.invalid/'>",
    "<base href='http://attacker.invalid/'>",
    f"<template><script>{_RUN}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={_RUN}>'></noscript>",
    f"<x onclick={_RUN} tabindex=1>x</x>",
    "\\3c script\\3e alert(1)\\3c /script\\3e",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    f"&#60;script&#62;{_RUN}&#60;/script&#62;",
    f"${{{_RUN}}}",
    "{{ 7 * 7 }}{% for x in ().__class__.__base__.__subclasses__() %}{% endfor %}",
    f"';{_RUN};//",
    f'";{_RUN};//',
    f"\\u003cscript\\u003e{_RUN}\\u003c/script\\u003e",
    f"javascript:{_RUN}",
    f"[go](javascript:{_RUN})",
    "![x](http://attacker.invalid/x.png)",
    "| a | b |\n|---|---|\n</details>",
    "```\n</details>\n```",
    "@everyone #1 https://attacker.invalid/ <!-- hidden -->",
    "=cmd|' /C calc'!A0",
    "+1+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "-2+3",
    "\u202eevil\u202c \u2066x\u2069 \u200b\u200d\ufeff \U000e0041",
    "\u2028\u2029",
    "__proto__",
    "constructor",
]
CONTROLS = [
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m",
    "a\x00b\x01c\x08d\x0be\x0cf\x1fg\x7fh\x85i",
    "\ufffe\uffff",
    "]]>]]&gt;<![CDATA[",
    "line\r\nline\rline\ttab",
]
PAYLOADS = [*MARKUP, *CONTROLS]
LONG_LINE = "<b>" * (4 * 2**20 // 3)


def hostile_records() -> list[AttemptRecord]:
    """Every payload as task id, tier, tag, output, detail, error, judge, criterion and matched text, in both arms."""
    records = []
    for number, payload in enumerate(PAYLOADS):
        for arm in ("baseline", "candidate"):
            failed = arm == "baseline" or number % 7 == 0
            fields = {
                "run_id": "hostile",
                "task": payload,
                "tier": payload,
                "tags": (payload,),
                "arm": arm,
                "model": f"anthropic:{PAYLOADS[number % 3]}",
                "completion": {
                    "text": f"{arm} {payload}" if number else LONG_LINE,
                    "cost_usd": 0.01,
                    "cost_source": payload,
                    "input_tokens": 3,
                    "turns": 1,
                    "warnings": (payload,),
                },
                "worker": payload,
                "started_at": "2026-01-01T00:00:00Z",
                "model_ms": 12.5,
            }
            judgment = {
                "judge": payload,
                "judge_model": payload,
                "score": 0.0 if failed else 1.0,
                "passed": not failed,
                "details": payload,
                "matched": (payload,),
                "missed": (payload,),
                "criteria": ({"name": payload, "achieved": 1.0, "max_points": 2.0},),
            }
            outcome = "failed" if failed else "passed"
            records.append(
                AttemptRecord(
                    **fields,
                    attempt=1,
                    outcome=outcome,
                    score=0.0 if failed else 1.0,
                    details=payload,
                    judgments=[judgment],
                )
            )
            records.append(AttemptRecord(**fields, attempt=2, outcome="error", error=payload))
    return records


@cache
def hostile_material() -> Material:
    """The hostile run with its artifact, under a hostile skill's name."""
    records = hostile_records()
    info = RunInfo.from_records(records).model_copy(
        update={"skill_id": PAYLOADS[1], "warnings": tuple(PAYLOADS)}
    )
    tasks = {
        payload: TaskText(
            id=payload,
            prompt=payload,
            description=payload,
            tags=(payload,),
            judge={"type": "llm-rubric", "rubric": payload, payload: [payload]},
        )
        for payload in PAYLOADS
    }
    return Material(build.build(info, records)[0], lambda: records, tasks)
