"""What a provider's HTTP error means for an attempt: ask later, do not ask again, or give up on the model."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time

from workers.models import ModelBusy, ModelError, ModelFailed
from workers.models.output import message

HOPELESS = frozenset({401, 402, 403, 404})
BUSY = frozenset({408, 409, 425, 429})
_OUT_OF_MONEY = ("insufficient_quota", "credit balance is too low")


def status_error(status: int, text: str, headers: Mapping[str, str]) -> ModelError:
    """What an HTTP error means for the attempt: try later, or not at all."""
    words = message(f"HTTP {status}: {text}")
    if any(sign in text for sign in _OUT_OF_MONEY):
        return ModelFailed(words, hopeless=True)
    if status in BUSY or status >= 500:
        return ModelBusy(words, retry_after=retry_after(headers))
    return ModelFailed(words, hopeless=status in HOPELESS)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait (`retry-after-ms`, `Retry-After`); None if it does not."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            seconds = float(milliseconds) / 1000
        elif (value := headers.get("retry-after")) is None:
            return None
        elif value.strip().replace(".", "", 1).isdigit():
            seconds = float(value)
        else:
            seconds = max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if 0 <= seconds < float("inf") else None
