"""Google Cloud Storage that waits for a store which does not answer for a while."""

import logging
import time
from typing import Any

import fsspec
import gcsfs
from fsspec import asyn
from gcsfs.retry import is_retriable
from google.auth.exceptions import RefreshError

from ensemble.errors import InputError, StorageError, in_one_line, logger

PATIENCE_SECONDS = 300.0
"""After so long without an answer to a request a run ends: the same command resumes it."""


class PatientBucket(gcsfs.GCSFileSystem):  # type: ignore[misc]
    """A gcsfs file system, which tries a request six times within half a minute, and then again."""

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return await super()._call(*args, **kwargs)
            except Exception as error:
                if not (is_retriable(error) or isinstance(error, TimeoutError)):
                    raise
                reason = in_one_line(error)
                if isinstance(error, RefreshError) or str(getattr(error, "code", "")) == "401":
                    raise InputError(
                        f"gs:// refuses these credentials ({reason}); log in again, as by gcloud "
                        "auth application-default login"
                    ) from None
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"gs:// has not answered for {PATIENCE_SECONDS:g} s ({reason}); run the "
                        "same command when it does: it resumes from the last whole checkpoint"
                    ) from None
                logger.warning("gs:// does not answer (%s): the run tries again.", reason)

    call = asyn.sync_wrapper(_call)  # Large files are sent by this one.


def register() -> None:
    """Makes it the class of `gs://` in this process, unless that is not gcsfs's."""
    if fsspec.get_filesystem_class("gcs") is gcsfs.GCSFileSystem:
        for prefix in ("gcs", "gs"):  # etils asks for the one, fsspec of a path for the other.
            fsspec.register_implementation(prefix, PatientBucket, clobber=True)
        # It logs a trace for each request that it gives up; what matters is raised as well.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
