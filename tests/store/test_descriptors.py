"""What applications say about queues and kinds: published by whoever declares, with what is stale and what is drift."""

import attrs
import pytest
import trio
from at_work import until

import awa_actors as awa
from awa_actors.actors.descriptors import Descriptors
from awa_actors.actors.hygiene import Hygiene
from awa_actors.config import MaintenanceSettings
from awa_actors.core.descriptors import Descriptor
from awa_actors.store.descriptors import Described


@attrs.frozen
class Invoice:
    number: int = 0


def describing(application: str = "shop", description: str = "Bills") -> awa.Registry:
    registry = awa.Registry(application)
    registry.describe_queue("email", display_name="E-mail", owner="growth", tags=("mail",), extra={"runbook": 7})
    registry.describe_kind(Invoice, description=description, docs_url="https://docs.example/invoice")
    return registry


async def described(client: awa.Client) -> dict[str, Described]:
    return {one.name: one for one in await client.admin.descriptors()}


async def age(client: awa.Client, application: str, seconds: float) -> None:
    async with client.transaction() as tx:
        await tx.execute(
            "UPDATE awa.descriptors SET last_seen_at = last_seen_at - make_interval(secs => $2) WHERE application = $1",
            application,
            seconds,
        )


async def test_queues_and_kinds_are_published_with_what_was_said(database: str) -> None:
    async with awa.open_client(database) as client:
        await Descriptors(client.pool, describing()).publish()
        found = await client.admin.descriptors()
        assert [(one.subject, one.name, one.application) for one in found] == [
            ("queue", "email", "shop"),
            ("kind", "invoice", "shop"),
        ]
        assert found[0].descriptor == {
            "display_name": "E-mail",
            "owner": "growth",
            "tags": ["mail"],
            "extra": {"runbook": 7},
        }
        assert found[1].descriptor == {"description": "Bills", "docs_url": "https://docs.example/invoice"}
        assert not any(one.stale or one.drift for one in found)


async def test_publishing_the_same_again_writes_only_when_the_row_ages(database: str) -> None:
    async with awa.open_client(database) as client:
        publisher = Descriptors(client.pool, describing())
        await publisher.publish()
        first = await described(client)
        await publisher.publish()
        assert await described(client) == first
        await age(client, "shop", 31)
        await publisher.publish()
        assert (await described(client))["email"].last_seen_at > first["email"].last_seen_at


async def test_what_nobody_says_any_more_is_stale(database: str) -> None:
    async with awa.open_client(database) as client:
        await Descriptors(client.pool, describing()).publish()
        await age(client, "shop", 179)
        assert not (await described(client))["email"].stale
        await age(client, "shop", 2)
        assert (await described(client))["email"].stale


async def test_two_live_applications_that_differ_are_drift(database: str) -> None:
    async with awa.open_client(database) as client:
        await Descriptors(client.pool, describing("shop", "Bills")).publish()
        await Descriptors(client.pool, describing("billing", "Invoices")).publish()
        found = await described(client)
        assert found["invoice"].drift
        assert found["invoice"].applications == ("billing", "shop")
        assert found["invoice"].descriptor["description"] == "Invoices", "the newest word counts"
        assert not found["email"].drift, "they say the same"


async def test_drift_ends_when_the_old_release_is_gone(database: str) -> None:
    async with awa.open_client(database) as client:
        old, new = (Descriptors(client.pool, describing(description=said)) for said in ("Bills", "Invoices"))
        await old.publish()
        await age(client, "shop", 170)
        await new.publish()
        assert (await described(client))["invoice"].drift
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.descriptors SET last_seen_at = last_seen_at - interval '60 seconds'")
        await new.publish()
        found = (await described(client))["invoice"]
        assert not found.drift
        assert found.descriptor["description"] == "Invoices"


async def test_a_rollback_shows_the_old_word_again_once_the_new_release_is_gone(database: str) -> None:
    async with awa.open_client(database) as client:
        old, new = (Descriptors(client.pool, describing(description=said)) for said in ("Bills", "Invoices"))
        await old.publish()
        await new.publish()
        await age(client, "shop", 200)
        await old.publish()
        assert (await described(client))["invoice"].descriptor["description"] == "Bills"


async def test_descriptors_are_forgotten_after_their_retention(database: str) -> None:
    async with awa.open_client(database) as client:
        await Descriptors(client.pool, describing("old")).publish()
        await Descriptors(client.pool, describing("new", "other")).publish()
        await age(client, "old", 31 * 86_400)
        async with client.pool.acquire() as session:
            await Hygiene(MaintenanceSettings()).run(session, 100)
        assert {one.application for one in await client.admin.descriptors()} == {"new"}


async def test_thousands_of_descriptors_are_published_and_listed(database: str) -> None:
    registry = awa.Registry()
    for number in range(2_500):
        registry.describe_queue(f"queue-{number}", description="x" * 100)
    async with awa.open_client(database) as client:
        await Descriptors(client.pool, registry).publish()
        assert len(await client.admin.descriptors()) == 2_500


@pytest.mark.parametrize("role", ["worker", "maintenance"])
async def test_any_process_that_declares_publishes_at_its_start_whoever_leads(database: str, role: str) -> None:
    registry = describing()

    @registry.worker(Invoice)
    async def send(job: awa.Job[Invoice]) -> None:
        pass

    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        if role == "worker":
            await nursery.start(lambda task_status: client.run_worker(maintenance=False, task_status=task_status))
        else:
            lead = MaintenanceSettings(lead=False)
            await nursery.start(lambda task_status: client.run_maintenance(settings=lead, task_status=task_status))
        await until(client.admin.descriptors)
        assert await client.admin.leader() is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"display_name": "x" * 201}, "display_name"),
        ({"description": "x" * 2001}, "description"),
        ({"owner": " "}, "owner"),
        ({"docs_url": "x" * 2049}, "docs_url"),
        ({"tags": ["x"] * 21}, "tags"),
        ({"extra": {"bad": float("nan")}}, "extra.bad"),
        ({"description": "nul\x00"}, "description"),
    ],
)
def test_a_descriptor_that_cannot_be_stored_is_refused_when_it_is_declared(wrong: dict[str, object], path: str) -> None:
    with pytest.raises(awa.ValidationError) as refused:
        awa.Registry().describe_queue("email", **wrong)  # type: ignore[arg-type]  # that is the point
    assert refused.value.path == f"$.{path}"


def test_the_digest_tells_what_is_said_and_nothing_else() -> None:
    one = Descriptor("email", tags=("a", "b"), extra={"x": 1, "y": 2})
    assert one.digest == Descriptor("other", tags=["a", "b"], extra={"y": 2, "x": 1}).digest
    assert one.digest != Descriptor("email", tags=("b", "a"), extra={"x": 1, "y": 2}).digest
    # Pinned: processes of different releases must agree on it.
    assert Descriptor("email", owner="growth").digest == (
        "ec5223ada4e189edaa1996e1c075e475f14d376d9b0a4e75d85e22d761dd9a86"
    )
