"""One attempt, from permission to record: claim it, ask the model, judge what it said, store the record.

What goes wrong with a model or a judge is data: raising would cancel the chord's callback and lose every other record
of the run. Only a server that cannot be reached, and the end of this worker, hand an attempt back.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import redis

import judges
from aggregate.records.record import AttemptRecord, Outcome
from judges.judgment import Ask, Completion, Judgment, usage
from judges.judgment import Workspace as Place
from judges.safe_text import each_text, storable, storable_text
from judges.spec import Rubric
from workers.attempts.permits import Halted, Turn, Turns
from workers.attempts.run_context import Answer, Bill, Question, Run, is_ungraded, measured, now
from workers.attempts.workspace import AttemptFolder, Stored
from workers.models.choose import graders, is_simulated
from workers.models.model import ModelError, ModelTimedOut, Request, own_secrets, without_secrets
from workers.models.prices import attempt_estimate
from workers.models.sim import Sim
from workers.models.steps import Trace
from workers.store import keys
from workers.store.claims import Claim, Finished, StoreResult, Wanted
from workers.store.keys import WORKING_SECONDS
from workers.store.run_store import pack

_OUTCOMES: dict[bool | None, Outcome] = {True: "passed", False: "failed", None: "error"}
# What a judgment is without that which its record holds itself.
_MEASURED: dict[str, Any] = {"benchmarks": (), "tests": None, "snapshot": None}
# The fields of a record that may hold what models, agents and judges said.
_TEXTS = {"details", "error", "judgments", "benchmarks", "tests", "snapshot", "completion"}
MAX_ERROR_CHARACTERS = 2000
LARGE_CHARACTERS = (
    100_000  # to pack so much takes milliseconds, in which every other attempt would stand still
)
LONGEST_WAIT = 2.0
BUDGET_SECONDS = (0.1, 0.3)
POISON = "poison: every process that ran this attempt died, at last one that ran nothing else"
# Far above what a model, a judge and our own limits allow, and far below the largest value that a server takes.
MOST_RECORD_BYTES = 64 << 20


class Host(Protocol):
    """The worker process that makes attempts: an engine. `count` notes one that has ended."""

    name: str
    turns: Turns

    def check_draining(self) -> None: ...

    def waits(self, run: Run) -> AbstractContextManager[None]: ...

    def count(self, run_id: str, record: AttemptRecord, bill: Bill, result: StoreResult) -> None: ...


class Attempt:
    """One delivery of one attempt; `make` it, or `give_up` on it."""

    def __init__(
        self, host: Host, run: Run, question: Question, index: int, round: int, *, quarantine: bool = False
    ) -> None:
        self._host = host
        self._run = run
        self._question = question
        self._index = index
        self._round = round
        self._quarantine = quarantine
        self._claim = Claim("halted")
        self._answer: Answer | None = None
        self._workspace: AttemptFolder | Stored | None = None

    async def make(self) -> int:
        """See the attempt to its end; returns how many records it stored: 1, or 0 where it is not wanted."""
        try:
            while True:
                await self._ask_when_allowed()
                # Without a turn: by the time there is money, a pace would not hold.
                if self._claim.code == "full":
                    seconds = random.uniform(*BUDGET_SECONDS)
                elif self._claim.code == "held":
                    # Somebody else has it: its record will make this delivery idle, or its lease will run out.
                    seconds = min(self._claim.wait_seconds + 0.05, LONGEST_WAIT)
                else:
                    break
                with self._host.waits(self._run):
                    await asyncio.sleep(seconds)
            if self._claim.code == "poison":
                return await self.store(self._failed(POISON), Bill())
            if self._answer is None:
                return 0
            record = await self._with_steps(await self._judged(self._answer), self._answer)
            if self._answer.bill.calls:  # what only judging an answer cost tells nothing of the next attempt
                self._note_cost(self._answer)
            return await self.store(record, self._answer.bill)
        finally:
            # Whatever went wrong, a claim without anybody at work would be renewed for ever.
            try:
                await self._run.claims.release(self._index, self._claim.token)
            finally:
                if self._workspace is not None:
                    await asyncio.to_thread(self._workspace.close)

    async def give_up(self, why: str) -> int:
        """Record an error if the attempt is still wanted; returns how many records that were."""
        # As in quarantine, where any number of deaths is an answer too.
        self._claim = await self._run.claims.claim(Wanted(self._index, self._round, quarantine=True))
        try:
            wanted = self._claim.code in ("go", "poison")
            return await self.store(self._failed(why), Bill()) if wanted else 0
        finally:
            await self._run.claims.release(self._index, self._claim.token)

    async def _ask_when_allowed(self) -> None:
        """Wait for a slot, claim, wait for the limit, ask; there is no answer where the claim was refused."""
        run, model = self._run, self._question.model
        answer: Answer | None = None
        try:
            async with self._host.turns.turn(run, self._question) as turn:
                unseen = model not in run.largest_costs
                wanted = Wanted(self._index, self._round, self._quarantine, self._estimate(), unseen)
                self._claim = await run.claims.claim(wanted)
                if self._claim.code in ("halted", "budget"):
                    run.halted.set()
                self._host.check_draining()
                if self._claim.code == "go":
                    answer = await self._stored_or_asked(turn)
                    # Before the turn goes on: whoever has it next must see that the run is halted.
                    await self.note(answer)
        except Halted:
            await run.claims.release(self._index, self._claim.token)
            self._claim = Claim("halted")
            return
        self._answer = answer

    async def _stored_or_asked(self, turn: Turn) -> Answer:
        """The answer of an earlier run or a recording, or of a try that only lacks a grade; else ask the model."""
        run = self._run
        terms = run.terms(self._question.model)
        if terms.source is not None or self._claim.errors or run.manifest.has_answers:
            self._workspace = stored = Stored(run, self._index)
            if (answer := await stored.answer(self._question, terms.source)) is not None:
                return answer
            self._workspace = None
        if terms.is_agent:
            self._workspace = AttemptFolder(self._question.task, run.fixtures)
        await turn.permit()
        run.claims.asked.add(self._claim.token)
        return await self.ask(turn)

    async def ask(self, turn: Turn) -> Answer:
        """Ask the model within the task's time; whatever goes wrong is in the answer."""
        started_at, begun = now(), time.perf_counter()
        request = Request(prompt=self._question.task.prompt)
        trace = Trace(skill := self._run.skill_of(self._question))

        def ended(completion: Completion | None = None, **how: Any) -> Answer:
            seconds = time.perf_counter() - begun
            retries = max(0, turn.tries - 1)
            steps = trace.trajectory()
            if completion is not None and steps is not None:
                told = completion.skill_loaded  # by a declared program's own word
                loaded = trace.loaded if told is None else told
                completion = completion.model_copy(update={**steps.facts(), "skill_loaded": loaded})
            return Answer(
                *(request, started_at, seconds, completion),
                **how,
                retries=retries,
                bill=turn.bill,
                trajectory=steps,
                skill=skill,
            )

        try:
            request = self._request(trace)
            model = self._run.model(self._question.model)
            # A wait that the deadline would cut short is not begun: an outage is an error, never a slow answer.
            return ended(completion=kept(await turn.answer(model, request, wait_beyond=False)))
        except TimeoutError as late:
            spent = turn.bill.unanswered()
            if isinstance(late, ModelTimedOut):
                spent = kept(late.completion.model_copy(update=usage(turn.bill.failed or [late.completion])))
            words = f"no answer within {self._question.task.timeout_seconds:g} s"
            return ended(outcome="timeout", error=words, completion=spent)
        # Any exception of a client is this attempt's error; the type names what broke where the message does not.
        except Exception as problem:
            hopeless = getattr(problem, "hopeless", False)
            spent = turn.bill.unanswered()
            return ended(outcome="error", error=_words(problem), hopeless=hopeless, completion=spent)

    def _request(self, trace: Trace) -> Request:
        run, question, workspace = self._run, self._question, self._workspace
        prompt, mounted = run.prompt_and_skill(question)
        others = () if question.arm in run.skills else tuple(run.skills.values())
        return Request(
            prompt=prompt,
            task=question.task,
            arm=question.arm,
            attempt=question.number,
            earlier_errors=self._claim.errors,
            skill=mounted,
            others=others,
            trace=trace,
            workspace=workspace.folder if isinstance(workspace, AttemptFolder) else None,
            suite=run.fixtures,
            params=run.settings.params,
            timeout_seconds=question.task.timeout_seconds,
            sandbox=run.manifest.sandbox,
        )

    def _estimate(self) -> float:
        """What the attempt may cost, to be reserved: the largest seen here, at first the longest answer's price.

        Rounded up to two digits: equal estimates are claimed together. It is 0 where nobody knows a price.
        """
        run, question = self._run, self._question
        seen = run.largest_costs.get(question.model)
        if seen is not None:
            return _rounded_up(seen)
        prompt, _ = run.prompt_and_skill(question)
        judging = graders(question.task, question.model, run.manifest.judge_model)
        return _rounded_up(attempt_estimate(question.model, len(prompt), judging, run.settings) or 0.0)

    def _note_cost(self, answer: Answer) -> None:
        """Remember the dearest attempt of a model: the next ones reserve as much. A failed one only raises that."""
        cost, costs, model = answer.bill.usd, self._run.largest_costs, self._question.model
        is_known = cost > 0 or is_simulated(model)
        if is_known and (answer.outcome is None or cost > self._estimate()):
            costs[model] = max(cost, costs.get(model, 0.0))

    async def note(self, answer: Answer) -> None:
        """End the run when its model cannot answer anybody."""
        run, model = self._run, self._question.model
        if answer.hopeless:
            why = await run.breaker.failed(model, answer.error or "")
            # What began before a resume says nothing of the run as it goes on.
            if why is not None and await run.claims.halt(self._claim.generation, "hopeless", why):
                run.halted.set()
        elif answer.outcome is None and not is_simulated(model):
            await run.breaker.answered(model)

    async def _judged(self, answer: Answer) -> AttemptRecord:
        """The record of an answer, which is judged if there is one.

        Whatever breaks once an answer is paid for becomes its record: handing it back would pay again, for ever.
        """
        left, digest = None, None
        try:
            if answer.outcome is not None:
                return self._record(answer)
            if self._workspace is not None:
                left, bundle = await asyncio.to_thread(self._workspace.left)
                if bundle is not None:
                    digest = bundle.digest
                    await self._run.client.set(keys.bundle(digest), bundle.data, ex=WORKING_SECONDS)
            judgment, seconds = await self.judge(answer, left)
            return self._record(answer, **_grade(judgment), judge_ms=milliseconds(seconds), workspace=digest)
        except redis.RedisError:
            raise
        except Exception as problem:
            return self._record(replace(answer, outcome="error", error=_words(problem)))

    async def _with_steps(self, record: AttemptRecord, answer: Answer) -> AttemptRecord:
        """The record with the digest of its steps, which are kept beside it where the run wants them."""
        wanted, trajectory = self._run.manifest.trajectory, answer.trajectory
        if trajectory is None or wanted == "off" or (wanted == "failed" and record.outcome == "passed"):
            return record
        try:
            kept = await self._run.keep_steps(trajectory, answer.skill)
        except redis.RedisError:
            raise
        except Exception as problem:
            kept = f"not kept: {_words(problem)}"
        return record.model_copy(update={"trajectory": kept})

    async def judge(self, answer: Answer, left: Path | None = None) -> tuple[Judgment, float]:
        """Judge a completion; returns the judgment and the seconds it took. Its calls go on the answer's bill."""
        assert answer.completion is not None
        run, begun = self._run, time.perf_counter()
        task, asked = self._question.task, self._question.model
        client = run.model(asked) if is_simulated(asked) else None
        passes = client.passes(answer.request) if isinstance(client, Sim) else True if client else None
        sandbox = run.manifest.sandbox
        done = answer.trajectory and answer.trajectory.with_skill(answer.skill)
        where = Place(run.fixtures, left, sandbox, task.prompt, passes, done, answer.seconds)

        def ask_about(rubric: Rubric, where: Place) -> Ask:
            async def ask_judge(model: str, prompt: str, *, system: str = "") -> Completion:
                # Where the run's model is not real, no judge is asked either.
                spec = asked if is_simulated(asked) else model or run.manifest.judge_model or asked
                if is_simulated(spec):
                    return self._simulated_grade(answer.request, spec, rubric, where.passes)
                request = Request(
                    prompt=prompt, system=system, params=run.settings.params, sandbox=run.manifest.sandbox
                )
                return kept(await self._graded(spec, request, answer.bill))

            return ask_judge

        if task.judge is not None:
            judgment = await judges.judge_about(task.judge, answer.completion, ask_about, where)
        else:
            judgment = await judges.judge_all(
                task.checks,
                task.threshold,
                answer.completion,
                ask_about,
                where,
                spare=run.manifest.spare_checks,
            )
        return judgment, time.perf_counter() - begun

    def _simulated_grade(
        self, request: Request, spec: str, rubric: Rubric, passes: bool | None
    ) -> Completion:
        """A mocked judge is content, a simulated one gives the score that was drawn for the attempt."""
        from judges.checks.rubric import reply_with_score

        client = self._run.model(spec)
        reply = reply_with_score(rubric, 0.0 if passes is False else 1.0, "mock")
        if isinstance(client, Sim):
            score = client.rubric_score(request, rubric.pass_threshold, passes=passes)
            reply = reply_with_score(rubric, score, "simulated")
        return Completion(text=reply, cost_usd=0.0, cost_source="simulated")

    async def _graded(self, spec: str, request: Request, bill: Bill) -> Completion:
        """What a judge's model says, within its limits and with the retries of any other call."""
        async with self._host.turns.judging(self._run, spec, request.prompt) as turn:
            try:
                return await turn.answer(self._run.model(spec), request)
            except ModelError as problem:
                problem.completion = turn.bill.unanswered() or problem.completion
                raise
            finally:
                bill.include_judging(turn.bill)

    def _record(self, answer: Answer, **judged: Any) -> AttemptRecord:
        """Everything that is known of this attempt, as it will be stored; `judged` where a judge saw the answer."""
        # A time-out counts as failed, so it weighs as much as a failed answer; an error weighs nothing.
        score = 0.0 if answer.outcome == "timeout" else None
        fields = {"outcome": answer.outcome, "error": answer.error, "score": score, **judged}
        record = AttemptRecord(
            **self._identity(),
            **fields,
            completion=answer.completion,
            model_ms=milliseconds(answer.seconds),
            started_at=answer.started_at,
            retries=answer.retries,
        )
        return _redacted(record)

    def _failed(self, error: str) -> AttemptRecord:
        """The record of an attempt of which nothing else is known."""
        return AttemptRecord(**self._identity(), outcome="error", error=error)

    def _identity(self) -> dict[str, Any]:
        """Which attempt it was and who made it."""
        task = self._question.task
        return {
            "run_id": self._run.manifest.run_id,
            "task": task.id,
            "tier": task.tier,
            "tags": task.tags,
            "should_trigger": task.should_trigger,
            "arm": self._question.arm,
            "model": self._question.model,
            "attempt": self._question.number,
            "worker": self._host.name,
            "deliveries": self._claim.deliveries,
        }

    async def store(self, record: AttemptRecord, bill: Bill) -> int:
        """Store the record, which ends the claim; returns 1 where it counts, and 0 where another one does."""
        large = _characters(record) > LARGE_CHARACTERS
        record, payload = await asyncio.to_thread(_packed, record) if large else _packed(record)
        finished = Finished(
            index=self._index,
            token=self._claim.token,
            round=self._round,
            outcome=record.outcome,
            cost=bill.usd,
            lost=bill.judging_usd if is_ungraded(record) else bill.usd,
            unpriced=bill.unpriced,
            arm=self._index % self._run.grid.arms,
            payload=payload,
        )
        stored = await self._run.claims.store(finished)
        self._host.count(self._run.manifest.run_id, record, bill, stored)
        return int(stored in ("stored", "replaced"))


def kept(completion: Completion) -> Completion:
    """The completion as it can be kept: texts that can be stored, numbers that can have been measured.

    And without any secret of this worker: an agent has its key and may print it.
    """
    return each_text(measured(completion), lambda text: without_secrets(storable_text(text)))


def _rounded_up(amount: float) -> float:
    if amount <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return math.ceil(amount / digit) * digit


def _words(problem: Exception) -> str:
    # Cut after the secrets are gone: half of one is a secret, too.
    return storable(without_secrets(f"{type(problem).__name__}: {problem}")[:MAX_ERROR_CHARACTERS])


def _redacted(record: AttemptRecord) -> AttemptRecord:
    """The record without any secret of this worker in what models, agents and judges said."""
    if not own_secrets():
        return record
    return record.model_copy(
        update={name: each_text(getattr(record, name), without_secrets) for name in _TEXTS}
    )


def milliseconds(seconds: float) -> float:
    """A duration to be stored; never negative, because the clocks of some virtual machines step back a little."""
    return round(max(0.0, seconds) * 1000, 3)


def without_content(record: AttemptRecord, error: str) -> AttemptRecord:
    """What is left of a record that cannot be stored: whose it is, how long it took and what it cost."""
    no_text = {"text": "", "warnings": (), "agent_version": None, "served_model": None}
    return record.model_copy(
        update={
            **dict.fromkeys(("details", "tests", "snapshot", "score")),
            **dict.fromkeys(("judgments", "benchmarks"), ()),
            "outcome": "error",
            "error": storable(error),
            "completion": record.completion.model_copy(update=no_text) if record.completion else None,
        }
    )


def _characters(record: AttemptRecord) -> int:
    """About how much text a record has: what the model said, and what judges said of it."""
    said = len(record.completion.text) if record.completion else 0
    for judgment in record.judgments:
        said += len(judgment.details) + sum(map(len, judgment.matched + judgment.missed))
        said += sum([len(criterion.name) for criterion in judgment.criteria])
    return said + len(record.details or "") + len(record.error or "")


def _grade(judgment: Judgment) -> dict[str, Any]:
    """The fields of a record that a judge decides."""
    # What was measured is the record's, and not its judgment's too.
    judgments = judgment.panel or (judgment,)
    if judgment.benchmarks or judgment.tests or judgment.snapshot:
        judgments = tuple(
            one.model_copy(update=_MEASURED) if _measured_by(one, judgment) else one for one in judgments
        )
    return {
        "outcome": _OUTCOMES[judgment.passed],
        "judgments": judgments,
        "score": judgment.score,
        "details": judgment.details,
        "error": judgment.error,
        "benchmarks": judgment.benchmarks,
        "tests": judgment.tests,
        "snapshot": judgment.snapshot,
    }


def _measured_by(one: Judgment, judgment: Judgment) -> bool:
    """Whether what the judgment measured is what this one of its parts, or it alone, has measured."""
    return all(getattr(one, name) is getattr(judgment, name) for name in _MEASURED)


def _packed(record: AttemptRecord) -> tuple[AttemptRecord, bytes]:
    """A record as it is stored. One that cannot be is an error: handing it back would ask, and pay, for ever."""
    try:
        payload = pack(record)
        why = "" if len(payload) <= MOST_RECORD_BYTES else f"it has {len(payload):,} bytes"
    except Exception as problem:
        payload, why = b"", _words(problem)
    if why:
        record = without_content(record, f"the record cannot be stored: {why}")
        payload = pack(record)
    return record, payload
