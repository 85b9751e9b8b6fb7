"""Any system's adapter for the peer benchmark, with 100 KiB of args in each job that it enqueues in bulk.

The harness runs it in place of the adapter that ``PEERBENCH_ADAPTER`` names. A text takes the place of the integer
``i``, since every adapter carries this field and some handlers take no others. It is random base64, in which Postgres
finds nothing to compress, and each job has its own.
"""

import base64
import os
import random
import runpy
import sys
from typing import Any

sys.path.insert(0, os.environ["PEERBENCH"])
sys.path.insert(0, os.path.dirname(os.environ["PEERBENCH_ADAPTER"]))

import common  # type: ignore[import-not-found]  # the harness is found at run time only

SIZE = 102_400


def with_large_args(adapter: type[Any]) -> type[Any]:
    """The same adapter, whose texts are made before the clock starts and put in place while it runs."""

    class WithLargeArgs(adapter):  # type: ignore[misc]  # the harness has no types
        async def open(self) -> None:
            await super().open()
            text = base64.b64encode(random.Random(0).randbytes(self.args.n * SIZE // 4 * 3)).decode()
            self.texts = [text[begin : begin + SIZE] for begin in range(0, len(text), SIZE)]

        async def enqueue_many(self, payloads: list[dict[str, Any]]) -> None:
            pairs = zip(payloads, self.texts, strict=True)
            await super().enqueue_many([payload | {"i": text} for payload, text in pairs])

    return WithLargeArgs


if __name__ == "__main__":
    measure = common.main
    common.main = lambda adapter: measure(with_large_args(adapter))
    runpy.run_path(os.environ["PEERBENCH_ADAPTER"], run_name="__main__")
