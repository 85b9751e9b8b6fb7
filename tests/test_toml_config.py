"""The file that declares without Python: what it can say, and that every mistake is told with its line."""

import datetime as dt
import re
import tomllib
from pathlib import Path

import attrs
import orjson
import pytest
from schedules import jobs_of, lane_of, one_pass, set_mark, stored

import awa_actors as awa
from awa_actors.store.insert import admit
from awa_actors.toml_config import TomlConfig, load, parse
from awa_actors.toml_lines import line_numbers

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to" / "declare-without-python.md"
NIGHTLY = '[cron.nightly]\nexpression = "0 3 * * *"\nkind = "report"\n'


def example() -> str:
    found = re.search(r"```toml\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def refused(text: str) -> str:
    with pytest.raises(awa.UsageError) as error:
        parse(text)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_example_of_the_how_to_is_a_file_that_works(tmp_path: Path) -> None:
    file = tmp_path / "awa.toml"
    file.write_text(example(), encoding="utf-8")
    config = load(file)
    assert config.registry.application == "billing"
    assert config.maintenance == awa.MaintenanceSettings(
        completed_retention=172_800.0, failed_retention=604_800.0, dlq_retention=2_592_000.0
    )
    assert list(config.registry.schedules) == ["nightly", "cleanup"]
    nightly = config.registry.schedules["nightly"]
    assert (nightly.expression.text, nightly.expression.timezone) == ("0 3 * * *", "Pacific/Auckland")
    assert (nightly.overlap, nightly.jitter) == (awa.Overlap.SKIP_IF_RUNNING, 30.0)
    assert (nightly.job.kind, nightly.job.queue, nightly.job.priority) == ("nightly_report", "reports", 3)
    assert orjson.loads(nightly.job.args) == {"full": True, "currencies": ["NZD", "EUR"]}
    assert config.registry.queue_descriptors["reports"].extra == {"pager": "finance-oncall"}
    assert config.registry.kind_descriptors["nightly_report"].owner == "finance"
    assert config.registry.declared_follow_ups["tell_finance"].enqueue == "send_message"
    assert config.registry.workers == {}


def test_an_empty_file_declares_nothing_and_changes_no_setting() -> None:
    config = parse("")
    assert config.registry.schedules == {}
    assert config.maintenance == awa.MaintenanceSettings()


def test_a_schedule_of_a_file_is_the_same_job_as_one_of_a_class() -> None:
    @attrs.frozen
    class Report:
        full: bool
        queue = "reports"

    text = (
        NIGHTLY
        + 'queue = "reports"\nargs = {full = true}\npriority = 1\ndeadline = 9\nmetadata = {a = 1}\nunique = true\n'
    )
    opts = awa.InsertOpts(priority=1, deadline=9.0, metadata={"a": 1}, unique=awa.UniqueOpts())
    assert parse(text).registry.schedules["nightly"].job == admit(Report(True), opts)


def test_unique_can_be_told_in_detail() -> None:
    text = NIGHTLY + 'unique = { by_queue = true, states = ["available", "running"], key = "one" }\n'
    job = parse(text).registry.schedules["nightly"].job
    assert orjson.loads(job.options or "") == {
        "unique_key": b"one".hex(),
        "unique_states": "01100000",
        "on_conflict": "raise",
    }


async def test_a_schedule_of_a_file_fires(database: str) -> None:
    text = '[cron.yearly]\nexpression = "0 0 1 1 *"\nkind = "audit"\nqueue = "audits"\nargs = {depth = 3}\n'
    registry = parse(text).registry
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        await set_mark(client, "yearly", dt.datetime(2024, 6, 1, tzinfo=dt.UTC))
        await one_pass(client, step)
        [job] = await jobs_of(client, "yearly")
        assert (job.kind, job.queue, job.args) == ("audit", "audits", {"depth": 3})
        assert (await stored(client, "yearly")).enqueued == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("application = 7", "awa.toml:1: application: must be text, not a whole number"),
        ("\n\nbogus = 1", "awa.toml:3: bogus: unknown key; there are application, cron, follow_ups, "),
        ("[maintenance]\nrescue_intervall = 1", "awa.toml:2: maintenance.rescue_intervall: unknown key; did you mean "),
        ("[maintenance]\nbatch = 0", "awa.toml:2: maintenance.batch: batch must be greater than 0, got 0"),
        ("[maintenance]\nbatch = 1.5", "awa.toml:2: maintenance.batch: must be a whole number, not a number"),
        ("[maintenance]\nlead = 1", "awa.toml:2: maintenance.lead: must be true or false, not a whole number"),
        ("[maintenance]\nring_turn = true", "awa.toml:2: maintenance.ring_turn: must be a number, not true or false"),
        ("[maintenance]\nring_turn = inf", "awa.toml:2: maintenance.ring_turn: must be a finite number of seconds"),
        ("[maintenance]\nring_turn = -1", "awa.toml:2: maintenance.ring_turn: must be a finite number of seconds"),
        (
            "[maintenance.lease]\n\ntrust = 20",
            "awa.toml:1: maintenance.lease.lease: lease (10.0 s) must be longer than",
        ),
        (
            "[maintenance]\nlease = {trust = 4}",
            "awa.toml:2: maintenance.lease.trust: trust (4.0 s) must be longer than 2",
        ),
        ("maintenance = 1", "awa.toml:1: maintenance: must be a table, not a whole number"),
        ("cron = {a = 1}", "awa.toml:1: cron.a: must be a table: write [cron.a]"),
        ("[cron.nightly]\nkind = 'x'", "awa.toml:1: cron.nightly: lacks 'expression'"),
        ("[cron.nightly]\nexpression = '* * * * *'", "awa.toml:1: cron.nightly: lacks 'kind'"),
        (NIGHTLY.replace("0 3", "0 99"), "awa.toml:2: cron.nightly.expression: '0 99 * * *' is not a cron expression"),
        (NIGHTLY.replace("* * *", "30 2 *"), "awa.toml:2: cron.nightly.expression: '0 3 30 2 *' "),
        (NIGHTLY + "\ntimezone = 'Mars/Olympus'", "awa.toml:5: cron.nightly.timezone: "),
        (NIGHTLY + "priority = 5", "awa.toml:4: cron.nightly.priority: must be an integer from 1 to 4, not 5"),
        (
            NIGHTLY + "missed_fire = 'never'",
            "awa.toml:4: cron.nightly.missed_fire: must be one of coalesce, catch_up, ",
        ),
        (NIGHTLY + "overlap = true", "awa.toml:4: cron.nightly.overlap: must be text, not true or false"),
        (NIGHTLY + "jitter = -1", "awa.toml:4: cron.nightly.jitter: must be a finite number of seconds above 0"),
        (NIGHTLY + "args = [1]", "awa.toml:4: cron.nightly.args: must be a table, not an array"),
        (NIGHTLY + "args = {x = nan}", "awa.toml:4: cron.nightly.args.x: "),
        (NIGHTLY + "[cron.nightly.args]\na = 1\nb = inf", "awa.toml:6: cron.nightly.args.b: "),
        (NIGHTLY + 'tags = ["a",\n  7]', "awa.toml:4: cron.nightly.tags[1]: must be a string, not 7"),
        (NIGHTLY + "metadata = {cron_name = 'x'}", "awa.toml:4: cron.nightly.metadata: key 'cron_name' is reserved"),
        (NIGHTLY + "queue = ''", "awa.toml:4: cron.nightly.queue: must not be empty or blank"),
        (
            NIGHTLY + "unique = {sates = []}",
            "awa.toml:4: cron.nightly.unique.sates: unknown key; did you mean 'states'?",
        ),
        (NIGHTLY + "unique = {states = ['gone']}", "awa.toml:4: cron.nightly.unique.states: 'gone' is no state"),
        (NIGHTLY + "deadline = 07:32:00", "awa.toml:4: cron.nightly.deadline: must be a number, not a date or time"),
        ('[queues."a b"]\nowner = ""', 'awa.toml:2: queues."a b".owner: must be text that is not blank'),
        ("[queues.a]\ntags = 'x'", "awa.toml:2: queues.a.tags: must be an array, not text"),
        ("[kinds.a]\ncolour = 'red'", "awa.toml:2: kinds.a.colour: unknown key; there are "),
        ("[kinds.'']\nowner = 'x'", 'awa.toml:1: kinds."": must not be empty or blank'),
        (
            "[follow_ups.x]\nkind = 'a'\noutcome = 'b'\nenqueue = 'c'\nargs = {}",
            "awa.toml:1: follow_ups.x: there is no outc",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(text: str, line: str) -> None:
    assert refused(text).startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = \n", "awa.toml:2: Invalid value"),
        ("a = 1\na = 2\n", "awa.toml:2: Cannot overwrite a value"),
        ("a = 1\n[b\n", "awa.toml:2: "),
        ("a = 'x", "awa.toml:1: "),
        ('a = """\n\n', "awa.toml:3: Unterminated string"),
    ],
)
def test_a_syntax_error_is_told_with_its_line(text: str, line: str) -> None:
    assert refused(text).startswith(line)


@pytest.mark.parametrize("how", ["missing", "a directory", "not text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, how: str) -> None:
    file = tmp_path / "awa.toml"
    if how == "a directory":
        file.mkdir()
    elif how == "not text":
        file.write_bytes(b"# \xff\n")
    with pytest.raises(awa.UsageError, match=re.escape(str(file))):
        load(file)


TRICKY = '''# [not.a.table]
a = 1 # b = 2
"quoted key" = "x = 1\\" # not a comment"
'lit.eral'.sub = 2
multi = """
[not.a.table]
c = 3 ""quotes"" inside \\"""
"""
literal = \'\'\'
d = 4 \'\'two\'\'
\'\'\'
array = [
  1, # [comment]
  "]",
  { e = 5 },
  [[2]],
]
inline = { f = { g = 6 }, h = [7,
  8] }
dotted.keys.too = true

[table] # comment
i = 2026-11-29T07:00:00Z
[ table . "in.side" ]
  j = """one line"""
[[many]]
k = 1
[[many]]
[x.y.z]
l = \'\'
m = 5'''


def test_lines_are_found_whatever_the_values_look_like() -> None:
    tomllib.loads(TRICKY)
    lines = TRICKY.splitlines()
    found = line_numbers(TRICKY)
    assert {keys: lines[line - 1].split("=")[0].strip() for keys, line in found.items()} == {
        ("a",): "a",
        ("quoted key",): '"quoted key"',
        ("lit.eral",): "'lit.eral'.sub",
        ("lit.eral", "sub"): "'lit.eral'.sub",
        ("multi",): "multi",
        ("literal",): "literal",
        ("array",): "array",
        ("inline",): "inline",
        ("dotted",): "dotted.keys.too",
        ("dotted", "keys"): "dotted.keys.too",
        ("dotted", "keys", "too"): "dotted.keys.too",
        ("table",): "[table] # comment",
        ("table", "i"): "i",
        ("table", "in.side"): '[ table . "in.side" ]',
        ("table", "in.side", "j"): "j",
        ("many",): "[[many]]",
        ("many", "k"): "k",
        ("x",): "[x.y.z]",
        ("x", "y"): "[x.y.z]",
        ("x", "y", "z"): "[x.y.z]",
        ("x", "y", "z", "l"): "l",
        ("x", "y", "z", "m"): "m",
    }


def test_windows_line_ends_change_no_number() -> None:
    assert line_numbers(TRICKY.replace("\n", "\r\n")) == line_numbers(TRICKY)


def test_what_is_loaded_is_a_value() -> None:
    assert isinstance(parse(""), TomlConfig)
