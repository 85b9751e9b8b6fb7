"""Pages of jobs: newest first, each job once, none left out."""

from queue_plane import Plane

PAGE = "SELECT (j ->> 'id')::bigint AS id FROM awa.list_jobs(NULL, NULL, NULL, NULL, NULL, NULL, %s, %s) j"


def pages(plane: Plane, size: int) -> list[list[int]]:
    """All jobs, page by page."""
    found: list[list[int]] = []
    while page := [row["id"] for row in plane.rows(PAGE, found[-1][-1] if found else None, size)]:
        found.append(page)
    return found


def test_a_job_with_several_bodies_hides_no_other_from_a_page(plane: Plane) -> None:
    """A body of an earlier availability stays in its segment; the walk meets such a job twice."""
    deferred = [plane.job(delay=3600.0) for _ in range(100)]
    plain = plane.insert(100)
    again = plane.insert(100)
    plane.rows("SELECT awa_queue.turn('segments', 0)")
    for attempt in plane.claim(200).attempts[100:]:
        plane.retry(attempt)
    assert plane.promote()["moved"] == 100
    everything = sorted([*deferred, *plain, *again], reverse=True)
    found = pages(plane, 100)
    assert [job for page in found for job in page] == everything
    assert [len(page) for page in found] == [100, 100, 100]
