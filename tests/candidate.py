"""A maintenance process for tests that kill or freeze one: prints a line when it leads, and one when a term is over.

Run as ``python candidate.py URL LEASE TRUST RENEW MARGIN``.
"""

import sys

import trio

import awa_actors as awa


async def main(url: str, *timing: float) -> None:
    """Stand for maintenance until killed."""
    settings = awa.MaintenanceSettings(lease=awa.LeaseTiming(*timing))
    async with awa.open_client(url) as client, trio.open_nursery() as nursery:
        maintenance: awa.Maintenance = await nursery.start(
            lambda task_status: client.run_maintenance(settings=settings, task_status=task_status)
        )
        while True:
            print("leads", await maintenance.wait_leader(), flush=True)
            while maintenance.is_leader:  # noqa: ASYNC110 - the end of a term is not announced to anybody outside
                await trio.sleep(0.01)
            print("over", flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], *map(float, sys.argv[2:]))
