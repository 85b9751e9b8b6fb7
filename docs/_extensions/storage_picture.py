"""Where a job's rows are on the queue plane, and the two planes. A test looks for each table in the migrations."""

from drawing import Arrow, Box, picture

TABLES = {
    "bodies": Box(450, 60, "bodies", 250, 44, note="all that does not change; written once"),
    "ready": Box(130, 175, "ready", 150, 44, note="waits for a claim"),
    "leases": Box(450, 175, "leases", 150, 44, note="an attempt runs"),
    "done": Box(770, 175, "done", 150, 44, note="completed"),
    "deferred_jobs": Box(130, 305, "deferred_jobs", 170, 44, note="scheduled, retryable"),
    "terminal": Box(450, 305, "terminal", 170, 44, note="failed, cancelled"),
    "dlq_entries": Box(770, 305, "dlq_entries", 170, 44, note="dead letters"),
}
RINGS = ("bodies", "ready", "leases", "done")


def storage_picture() -> str:
    """Draw the tables of the queue plane and how rows move between them."""
    t = TABLES
    arrows = [
        Arrow(t["ready"], t["leases"], "claim"),
        Arrow(t["leases"], t["done"], "complete"),
        Arrow(t["leases"], t["deferred_jobs"], "retry · snooze · rescue"),
        Arrow(t["leases"], t["terminal"], "fail · cancel"),
        Arrow(t["leases"], t["dlq_entries"], "fail, by policy"),
        Arrow(t["deferred_jobs"], t["ready"], "promote", "maintenance"),
        *(Arrow(t[name], t["bodies"], "", quiet=True) for name in ("ready", "leases", "done")),
    ]
    start = Box(20, 240, "", 10, 10)
    inserts = [Arrow(start, t["ready"], "insert", bend=-6), Arrow(start, t["deferred_jobs"], "run_at", bend=6)]
    ring = (
        '<rect class="group" x="30" y="20" width="840" height="196" rx="12"/>'
        '<text class="left small" x="42" y="34">rings: partitions that come back by TRUNCATE</text>'
    )
    plain = (
        '<rect class="group" x="30" y="262" width="840" height="86" rx="12"/>'
        '<text class="left small" x="42" y="358">plain tables: the whole row</text>'
    )
    dot = '<circle cx="14" cy="240" r="6" fill="currentColor"/>'
    drawn = [ring, plain, dot, *(box.svg() for box in t.values()), *(arrow.svg() for arrow in [*arrows, *inserts])]
    return picture(900, 372, "The tables of the queue plane and the moves between them", drawn)


PLANES = {
    "producers": Box(110, 120, "producers", 130, 44, note="every bridge, SQL"),
    "canonical": Box(450, 55, "canonical plane", 270, 48, note="one row per job, updated in place"),
    "queue": Box(450, 185, "queue plane", 270, 48, note="rows move between narrow tables"),
    "workers": Box(790, 120, "workers", 130, 44, note="claim from both"),
}


def planes_picture() -> str:
    """Draw the two planes while an upgraded database moves from one to the other."""
    p = PLANES
    arrows = [
        Arrow(p["producers"], p["canonical"], "before", quiet=True),
        Arrow(p["producers"], p["queue"], "from then on"),
        Arrow(p["canonical"], p["queue"], "a job that is rescheduled moves", "maintenance"),
        Arrow(p["canonical"], p["workers"], "until it is empty", quiet=True),
        Arrow(p["queue"], p["workers"], "claims"),
    ]
    view = (
        '<rect class="group" x="270" y="14" width="360" height="216" rx="12"/>'
        '<text class="small" x="450" y="244">awa.jobs shows every job of both, each once</text>'
    )
    return picture(
        900,
        258,
        "The two storage planes",
        [view, *(box.svg() for box in p.values()), *(arrow.svg() for arrow in arrows)],
    )
