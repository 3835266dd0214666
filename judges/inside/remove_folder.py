"""Remove a folder with everything in it, also what a program has locked against its own user."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

LONG_PATH = 900  # characters, of up to 4 bytes each; Linux takes paths of up to 4096 bytes


def remove(folder: Path) -> None:
    """Delete a folder and all that it holds, or a file; nothing is raised, and what cannot be deleted stays.

    Of a link only the link goes, never what it leads to.
    Only root may delete from a folder without write permission, so each one gets it first. A program can nest
    folders more deeply than a path, open files or recursion reach: below LONG_PATH they are moved up.
    """
    if folder.is_symlink() or not folder.is_dir():
        with suppress(OSError):
            folder.unlink()
        return
    found = [folder]
    for place in found:  # which grows meanwhile
        with suppress(OSError):
            place.chmod(0o700)
            for entry in _listed(place):
                with suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        Path(entry).unlink()
                    elif len(entry.path) < LONG_PATH:
                        found.append(Path(entry))
                    else:
                        Path(entry).chmod(0o700)  # moving a folder writes its ".."
                        found.append(Path(entry).rename(folder / secrets.token_hex(16)))
    for place in reversed(found):
        with suppress(OSError):
            place.rmdir()


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)
