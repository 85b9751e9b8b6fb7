"""The callback ingress in every kind of server, each a process of its own: `python callback_servers.py FLAVOUR`.

The examples of the documentation are among them: what is written there is what runs here.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

REPOSITORY = Path(__file__).parents[1]
EXAMPLES = REPOSITORY / "docs" / "how-to" / "callbacks-in-your-server.md"
SECRET = "07" * 32
BODY_LIMIT = 2_000


@attrs.frozen
class Errand:
    n: int = 0


@attrs.frozen
class Next:
    what: str


def declared() -> Any:
    """The registry of the application."""
    import awa_actors as awa

    registry = awa.Registry()

    @registry.on_completed_enqueue(Errand)
    def tell(event: awa.events.Completed[Errand]) -> Next:
        if event.job.result == "break the follow-up":
            raise RuntimeError("cannot tell")
        return Next(f"completed {event.job.result}")

    return registry


def _listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    return listener


def _config() -> Any:
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{_listening().detach()}"]
    config.errorlog = None
    return config


def on_trio_with_a_client() -> None:
    import trio
    from hypercorn.trio import serve

    import awa_actors as awa
    from awa_actors.web.callback_app import callback_app

    async def run() -> None:
        async with awa.open_client(os.environ["DATABASE_URL"], registry=declared()) as client:
            app: Any = callback_app(client, secret=SECRET, body_limit=BODY_LIMIT)
            await serve(app, _config())

    trio.run(run)


def on_trio() -> None:
    import trio
    from hypercorn.trio import serve

    trio.run(serve, _app(), _config())


def on_asyncio() -> None:
    import asyncio

    from hypercorn.asyncio import serve

    asyncio.run(serve(_app(), _config()))


def _app() -> Any:
    from awa_actors.web.callback_app import callback_app

    return callback_app(os.environ["DATABASE_URL"], secret=SECRET, registry=declared(), body_limit=BODY_LIMIT)


def _uvicorn(app: Any) -> None:
    import uvicorn

    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([_listening()])


def on_uvicorn() -> None:
    _uvicorn(_app())


def mounted() -> None:
    from fastapi import FastAPI

    host = FastAPI()
    host.mount("/", _app())
    _uvicorn(host)


def _example(heading: str) -> dict[str, Any]:
    """Run the code below a heading of the documentation; gives its names."""
    shop = types.ModuleType("shop.jobs")
    vars(shop)["registry"] = declared()
    sys.modules["shop"], sys.modules["shop.jobs"] = types.ModuleType("shop"), shop
    found = re.search(rf"^## {heading}\n+```python\n(.*?)^```", EXAMPLES.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    module = types.ModuleType("example")
    sys.modules["example"] = module
    exec(compile(found[1], str(EXAMPLES), "exec"), vars(module))
    module.service = attrs.evolve(module.service, body_limit=BODY_LIMIT)  # type: ignore[attr-defined]
    return vars(module)


def fastapi() -> None:
    _uvicorn(_example("FastAPI")["app"])


def flask() -> None:
    _wsgi(_example("Flask")["app"])


def django() -> None:
    import django.conf
    from producers import django_settings

    django.conf.settings.configure(
        USE_TZ=True,
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": django_settings(os.environ["DATABASE_URL"])},
        ROOT_URLCONF="example",
        LOGGING_CONFIG=None,
    )
    django.setup()
    _example("Django")
    from django.core.wsgi import get_wsgi_application

    _wsgi(get_wsgi_application())


def _wsgi(app: Any) -> None:
    import logging

    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    listener = _listening()
    make_server("127.0.0.1", 0, app, threaded=True, fd=listener.fileno()).serve_forever()


FLAVOURS: dict[str, Callable[[], None]] = {
    "hypercorn on Trio, a client": on_trio_with_a_client,
    "hypercorn on Trio": on_trio,
    "hypercorn on asyncio": on_asyncio,
    "uvicorn": on_uvicorn,
    "mounted in FastAPI": mounted,
    "FastAPI": fastapi,
    "Flask": flask,
    "Django": django,
}


@contextmanager
def served(flavour: str, url: str) -> Iterator[str]:
    """Run a server for the block; gives the URL that callbacks begin with."""
    with serving(flavour, url) as (base, _):
        yield base


@contextmanager
def serving(flavour: str, url: str) -> Iterator[tuple[str, int]]:
    """Run a server for the block; gives the URL that callbacks begin with, and the id of its process."""
    environment = {
        **os.environ,
        "DATABASE_URL": url,
        "AWA_CALLBACK_HMAC_SECRET": SECRET,
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}",
    }
    process = subprocess.Popen(
        [sys.executable, __file__, flavour], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, process.communicate()[1]
        yield f"http://127.0.0.1:{port}/api/callbacks", process.pid
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.kill()
        # What it logged, for whoever looks at a failure.
        print(process.communicate()[1], file=sys.stderr)


if __name__ == "__main__":
    FLAVOURS[sys.argv[1]]()
