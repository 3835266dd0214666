"""Translate what can go wrong into one line and an exit code, once for all commands."""

from __future__ import annotations

USAGE = 2
INFRASTRUCTURE = 3
INTERRUPTED = 130


def explain(problem: BaseException) -> tuple[str, int] | None:
    """The line to print and the exit code; None for what nobody foresaw, which deserves its traceback."""
    import redis

    from aggregate.reading import RecordsError
    from producer.baseline_cache import UnusableCache
    from producer.blessing import NotBlessed
    from producer.config import InvalidConfig
    from producer.importers.found import Unimportable
    from producer.local import Busy, NoServer
    from producer.names import InvalidId
    from producer.options import InvalidOption
    from producer.places import Unwritable
    from producer.ranking import InvalidRanking
    from producer.reports import NoReport
    from producer.skills import InvalidSkill
    from producer.suite import InvalidSuite, UnknownSelection
    from producer.watch import Interrupted, RunLost
    from workers.bundles import BundleError
    from workers.models import ModelError
    from workers.models.choose import UnknownModel
    from workers.server import UnusableServer
    from workers.settings import InvalidBroker
    from workers.store import UnknownRun

    usage = (
        *(
            InvalidSuite,
            UnknownSelection,
            InvalidSkill,
            InvalidRanking,
            InvalidOption,
            InvalidConfig,
            UnknownModel,
            InvalidId,
        ),
        *(
            InvalidBroker,
            BundleError,
            Unwritable,
            UnknownRun,
            RecordsError,
            ModelError,
            UnusableCache,
            NoReport,
            NotBlessed,
            Unimportable,
        ),
    )
    if isinstance(problem, Interrupted):
        return str(problem), INTERRUPTED
    if isinstance(problem, usage):
        return str(problem), USAGE
    if isinstance(problem, redis.AuthenticationError):
        return (
            f"the broker refuses the password ({problem}); check the one in --broker or UPLIFT_BROKER",
            INFRASTRUCTURE,
        )
    if isinstance(problem, redis.ConnectionError | redis.TimeoutError):
        return (
            f"the broker cannot be reached ({problem}); is it running, and is its address right?",
            INFRASTRUCTURE,
        )
    if isinstance(problem, redis.RedisError):
        return f"the broker refused a command ({problem})", INFRASTRUCTURE
    if isinstance(problem, NoServer | Busy | UnusableServer | RunLost):
        return str(problem), INFRASTRUCTURE
    if isinstance(problem, OSError) and problem.filename is not None:
        return f"{problem.filename}: {problem.strerror}", INFRASTRUCTURE
    return None
