"""An agent makes its gateway ask no host that the job does not list, and a listed host cannot send it elsewhere, hold
it up, or fill it."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web

from sandgate.contract.errors import MediaUnavailable, SandgateError, Unsupported
from sandgate.gateway.config import MediaConfig
from sandgate.gateway.media.allowed_hosts import AllowedHosts, address_of, allowed_hosts
from sandgate.gateway.media.fetch import Fetcher
from sandgate.gateway.media.sources import BYTES_MAX, PICTURES_MAX
from sandgate.gateway.service.fetched_images import AT_ONCE_PER_SESSION, FRESH_MAX
from tests.gateway.media.image_host import ImageHost, image_host
from tests.gateway.media.seeing import codec, encoded, picture, shown
from tests.gateway.media.test_images import engine
from tests.support.gateway import Running, gateway, rest

NAME = "images.example.com"


@dataclass
class Place:
    g: Running
    listed: ImageHost
    trap: ImageHost
    """On loopback, too, but of nobody's list."""


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with image_host() as listed, image_host() as trap:
        media = MediaConfig(allowed_hosts=(NAME, listed.origin))
        async with gateway(engine(), model=codec(), media=media) as g:
            yield Place(g, listed, trap)
            assert g.core.turns.fetched is not None
            last = g.core.turns.fetched.fetch  # the test's own, if it hurried: the gateway closes its own
            assert isinstance(last, Fetcher)
            await last.aclose()


def hurried(place: Place, seconds: float = 0.2) -> None:
    """Nobody waits long for a host."""
    fetched = place.g.core.turns.fetched
    assert fetched is not None
    fetched.fetch = Fetcher(fetched.allowed, total_s=seconds)


URLS: dict[str, str] = {
    "loopback by name": "http://localhost:{trap}/red.png",
    "loopback": "http://127.0.0.1:{trap}/red.png",
    "loopback by another of its addresses": "http://127.0.0.2:{listed}/red.png",
    "loopback in octal": "http://0177.0.0.1:{listed}/red.png",
    "loopback in hex": "http://0x7f000001:{listed}/red.png",
    "loopback as a number": "http://2130706433:{listed}/red.png",
    "loopback in short": "http://127.1:{listed}/red.png",
    "loopback of IPv6": "http://[::1]:{trap}/red.png",
    "loopback mapped into IPv6": "http://[::ffff:127.0.0.1]:{listed}/red.png",
    "anywhere": "http://0.0.0.0:{listed}/red.png",
    "the cloud's metadata": "http://169.254.169.254/latest/meta-data/",
    "the engine": "http://127.0.0.1:9/v1/models",
    "a user before the host": "http://images.example.com@127.0.0.1:{trap}/red.png",
    "the listed host as a user": "http://127.0.0.1:{listed}@127.0.0.1:{trap}/red.png",
    "a listed host with a user": "http://me:secret@127.0.0.1:{listed}/red.png",
    "a backslash for the path": "http://127.0.0.1:{trap}\\@127.0.0.1:{listed}/red.png",
    "a listed host in the fragment": "http://127.0.0.1:{trap}#@127.0.0.1:{listed}/red.png",
    "a listed host in the query": "http://127.0.0.1:{trap}?http://127.0.0.1:{listed}/red.png",
    "a listed host as a label of another": "https://images.example.com.evil.net/red.png",
    "a name that ends like a listed host": "https://evilimages.example.com/red.png",
    "a name below a listed host": "https://a.images.example.com/red.png",
    "the domain above": "https://example.com/red.png",
    "a listed host with a dot at its end": "https://images.example.com./red.png",
    "another port of a listed host": "https://images.example.com:8443/red.png",
    "a listed host without TLS": "http://images.example.com/red.png",
    "a listed address with TLS": "https://127.0.0.1:{listed}/red.png",
    "a host in percents": "http://%3127.0.0.1:{trap}/red.png",
    "no host": "http:///red.png",
    "a line break in the path": "http://127.0.0.1:{listed}/red.png\r\nHost: x",
    "a tab in the host": "http://127.0.\t0.1:{trap}/red.png",
    "a file": "file:///etc/passwd",
    "a file of a host": "file://127.0.0.1/etc/passwd",
    "gopher": "gopher://127.0.0.1:{trap}/_GET%20/red.png",
    "ftp": "ftp://127.0.0.1:{trap}/red.png",
    "a path alone": "/red.png",
    "no scheme": "//127.0.0.1:{trap}/red.png",
    "one slash": "http:/127.0.0.1:{trap}/red.png",
    "a port that is none": "http://127.0.0.1:99999/red.png",
    "an address without end": "http://127.0.0.1:{listed}/" + "a" * 5_000,
}  # fmt: skip


@pytest.mark.parametrize("which", URLS)
async def test_no_other_host_is_asked(place: Place, which: str) -> None:
    asked = URLS[which].format(trap=place.trap.port, listed=place.listed.port)
    agent = await place.g.session()
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": asked}}]}
    answer = await agent.post(message)
    assert answer.status_code == 400, answer.text
    assert "messages[0].content[0].image_url.url" in answer.text
    assert (place.trap.asked, place.listed.asked, place.g.generations) == ([], [], 0)


async def test_another_jobs_host_is_not_asked(place: Place) -> None:
    async with gateway(engine(), model=codec(), media=MediaConfig(allowed_hosts=(NAME,))) as other:
        answer = await (await other.session()).post(shown(f"{place.listed.origin}/red.png"))
        assert (answer.status_code, place.listed.asked) == (400, [])


async def redirect(place: Place) -> web.Response:
    return web.Response(status=302, headers={"Location": f"{place.trap.origin}/red.png"})


async def huge(place: Place) -> web.Response:
    return web.Response(body=b"\x89PNG" + bytes(BYTES_MAX))


async def packed(place: Place) -> web.Response:
    """What unpacks to a picture: nobody unpacks it."""
    return web.Response(body=gzip.compress(encoded(picture())), headers={"Content-Encoding": "gzip"})


async def gone(place: Place) -> web.Response:
    return web.Response(status=410)


async def page(place: Place) -> web.Response:
    return web.Response(body=b"<html>no picture</html>", content_type="image/png")


async def empty(place: Place) -> web.Response:
    return web.Response()


REFUSED: dict[Callable[[Place], Any], str] = {
    redirect: "answers 302: a redirect, and none is followed",
    huge: f"an image has at most {BYTES_MAX} bytes",
    packed: "it is no whole PNG",
    gone: "answers 410",
    page: "it is no whole PNG",
    empty: "it is no whole PNG",
}


@pytest.mark.parametrize("does", REFUSED, ids=lambda does: does.__name__)
async def test_what_a_listed_host_says_wrongly_is_a_400_that_says_which_image(
    place: Place, does: Any
) -> None:
    async def answer(_: web.Request) -> web.Response:
        made: web.Response = await does(place)
        return made

    place.listed.answers["/x"] = answer
    agent = await place.g.session()
    said = await agent.post(shown("a", f"{place.listed.origin}/red.png", f"{place.listed.origin}/x"))
    assert said.status_code == 400, said.text
    assert REFUSED[does] in said.text
    assert "messages[0].content[2].image_url.url" in said.text
    assert place.trap.asked == []
    assert place.g.generations == 0


async def endless(request: web.Request) -> web.StreamResponse:
    """Without a length."""
    answer = web.StreamResponse()
    answer.enable_chunked_encoding()
    await answer.prepare(request)
    while True:
        await answer.write(bytes(1 << 16))


async def test_an_answer_without_end_is_given_up(place: Place) -> None:
    place.listed.answers["/x"] = endless
    said = await (await place.g.session()).post(shown(f"{place.listed.origin}/x"))
    assert said.status_code == 400
    assert f"an image has at most {BYTES_MAX} bytes" in said.text


async def drip(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    while True:
        await answer.write(b"\x89")
        await rest()


async def broken(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b"\x89PNG")
    assert request.transport is not None
    request.transport.abort()
    return answer


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def busy(_: web.Request) -> web.StreamResponse:
    return web.Response(status=429)


async def down(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


@pytest.mark.parametrize("does", [drip, broken, silent, busy, down], ids=lambda does: does.__name__)
async def test_trouble_of_an_address_is_a_503_which_no_agent_can_make_infrastructures(
    place: Place, does: Any
) -> None:
    hurried(place)
    place.listed.answers["/x"] = does
    agent = await place.g.session()
    for stream in (False, True):
        said = await agent.post(shown(f"{place.listed.origin}/x"), stream=stream)
        assert said.status_code == 503, said.text
        assert said.headers["x-sandgate-reason"] == "MediaUnavailable"
        assert float(said.headers["retry-after"]) > 0
    assert place.g.core.sessions.get(agent.id).engine_failing == 0
    place.listed.answers["/x"] = encoded(picture())
    await agent.ask(shown(f"{place.listed.origin}/x"))


async def test_a_host_that_is_not_there_is_infrastructures_fault() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with gateway(engine(), model=codec(), media=MediaConfig(allowed_hosts=(origin,))) as g:
            agent = await g.session()
            said = await agent.post(shown(f"{origin}/x.png"))
            assert said.status_code == 503, said.text
            assert "is not reached" in said.text
            assert g.core.sessions.get(agent.id).engine_failing == 1
            await agent.ask("something else")
            assert g.core.sessions.get(agent.id).engine_failing == 0


async def test_a_thousand_addresses_are_refused_before_one_is_asked(place: Place) -> None:
    agent = await place.g.session()
    for many in (1_000, PICTURES_MAX, FRESH_MAX + 1):
        said = await agent.post(shown(*(f"{place.listed.origin}/{n}.png" for n in range(many))))
        assert (said.status_code, place.listed.asked) == (400, []), said.text


async def test_a_session_has_few_images_fetched_at_once(place: Place) -> None:
    most, now, go = 0, 0, asyncio.Event()

    async def held(_: web.Request) -> web.Response:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await go.wait()
        now -= 1
        return web.Response(body=encoded(picture()))

    urls = [f"{place.listed.origin}/{n}" for n in range(12)]
    place.listed.answers |= {f"/{n}": held for n in range(12)}
    agent = await place.g.session()
    asking = [asyncio.ensure_future(agent.ask(shown(*urls[6 * n : 6 * n + 6]))) for n in range(2)]
    while now < AT_ONCE_PER_SESSION:
        await rest()
    await rest()
    go.set()
    await asyncio.gather(*asking)
    assert (most, len(place.listed.asked)) == (AT_ONCE_PER_SESSION, 12)


async def test_no_secret_goes_along(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cookie(_: web.Request) -> web.Response:
        return web.Response(body=encoded(picture()), headers={"Set-Cookie": "a=b"})

    place.listed.answers["/x"] = cookie
    agent = await place.g.session()  # whose own client reads the environment, too
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, place.trap.origin)
    await agent.ask(shown(f"{place.listed.origin}/x", f"{place.listed.origin}/red.png"))
    await agent.ask(shown(f"{place.listed.origin}/green.png"))
    assert place.trap.asked == []
    assert len(place.listed.asked) == 3
    for request in place.listed.asked:
        assert {"cookie", "authorization", "referer"}.isdisjoint(name.lower() for name in request.headers)
        assert request.method == "GET"


# -- names -----------------------------------------------------------------------------------------------------------


def fetcher(*ips: str, private: bool = False, asked: list[str] | None = None) -> Fetcher:
    """For NAME without TLS, which leads to these addresses in turn."""
    answers = iter(ips)

    async def lookup(host: str, port: int) -> list[str]:
        if asked is not None:
            asked.append(host)
        return next(answers).split()

    return Fetcher(allowed_hosts([f"http://{NAME}"], private=private), lookup, connect_s=0.2, total_s=1.0)


async def told(fetch: Fetcher, port: int = 80) -> SandgateError:
    origin = f"http://{NAME}" if port == 80 else f"http://{NAME}:{port}"
    try:
        with pytest.raises(SandgateError) as caught:
            await fetch(address_of(f"{origin}/red.png", "here"), "here")
        return caught.value
    finally:
        await fetch.aclose()


CLOSED = (
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "::",
    "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:0:0:0:0:80ff:fffe", "2001:db8::1",
    "93.184.216.34 127.0.0.1", "2606:2800:220:1::1 ::1",
)  # fmt: skip
PRIVATE = frozenset(
    {"10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fc00::1", "::ffff:10.0.0.1", "198.18.0.1"}
)
"""What `private_addresses` opens; documentation's and others that nobody has are no matter."""


@pytest.mark.parametrize("ips", CLOSED)
async def test_a_listed_name_that_leads_inside_is_not_followed_there(ips: str) -> None:
    error = await told(fetcher(ips))
    assert isinstance(error, Unsupported), error
    assert "spec.gateway.media.privateAddresses" in str(error)


@pytest.mark.parametrize("ip", ["93.184.216.34", "2606:2800:220:1::1"])
def test_a_public_address_is_open(ip: str) -> None:
    assert AllowedHosts().refused([ip]) is None


@pytest.mark.parametrize("ip", sorted({*CLOSED, *PRIVATE}))
def test_private_addresses_are_opened_and_no_others(ip: str) -> None:
    refused = AllowedHosts(private=True).refused(ip.split())
    if ip in PRIVATE:
        assert refused is None
    elif ip != "2001:db8::1":
        assert refused is not None


async def test_a_name_is_looked_up_once_and_what_was_checked_is_what_is_asked() -> None:
    """DNS that says something public first, and loopback next."""
    async with image_host() as trap:
        asked: list[str] = []
        fetch = Fetcher(
            allowed_hosts([f"http://{NAME}:{trap.port}"]),
            _changing(["93.184.216.34", "127.0.0.1", "127.0.0.1"], asked),
            connect_s=0.2,
            total_s=1.0,
        )
        error = await told(fetch, trap.port)
        assert isinstance(error, MediaUnavailable), error
        assert error.unreached
        assert (asked, trap.asked) == ([NAME], [])


def _changing(ips: list[str], asked: list[str]) -> Any:
    answers = iter(ips)

    async def lookup(host: str, _: int) -> list[str]:
        asked.append(host)
        return [next(answers)]

    return lookup


async def test_each_fetch_looks_up_anew_and_checks_again() -> None:
    asked: list[str] = []
    fetch = fetcher("10.0.0.1", "127.0.0.1", asked=asked)
    for _ in range(2):
        with pytest.raises(Unsupported):
            await fetch(address_of(f"http://{NAME}/red.png", "here"), "here")
    await fetch.aclose()
    assert asked == [NAME, NAME]


async def test_a_name_that_is_not_found_may_be_later() -> None:
    async def lookup(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    error = await told(Fetcher(allowed_hosts([f"http://{NAME}"]), lookup))
    assert isinstance(error, MediaUnavailable)
    assert error.unreached
