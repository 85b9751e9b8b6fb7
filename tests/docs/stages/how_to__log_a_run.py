"""A shop whose worker runs."""

FILES = {
    "shop/__init__.py": "",
    "shop/jobs.py": """
import attrs
import awa_actors as awa


@attrs.frozen
class Greet:
    name: str


registry = awa.Registry()


@registry.worker(Greet)
async def greet(job: awa.Job[Greet]) -> None: ...
""",
}
